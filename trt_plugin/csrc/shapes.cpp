#include "shapes.h"

#include <cstring>
#include <numeric>
#include <string>

namespace msda::trt {
namespace {

// A pattern has a letter or digit for each size. A digit means itself, C means 2 or 4, T means L *
// P, R means 3 * M * L * P, and X means 3 * M * K. The header explains the other letters.
struct Pattern {
  const char* name;
  const char* equal;   // every level has P points
  const char* ragged;  // points_per_level is given
};

constexpr Pattern kAttentionInputs[] = {
    {"value", "NSMD", "NSMD"},
    {"spatial_shapes", "L2", "L2"},
    {"level_start_index", "L", "L"},
    {"sampling_locations", "NQMLP2", "NQMK2"},
    {"attention_weights", "NQMLP", "NQMK"},
};

constexpr Pattern kFusedInputs[] = {
    {"value", "NSMD", "NSMD"},
    {"spatial_shapes", "L2", "L2"},
    {"level_start_index", "L", "L"},
    {"reference_points", "NQLC", "NQLC"},
    {"sampling_offsets", "NQMLP2", "NQMK2"},
    {"attention_logits", "NQMT", "NQMK"},
};

constexpr Pattern kProjection = {"projection", "NQR", "NQX"};

int32_t num_inputs(Operator op) { return op == Operator::kFusedAttention ? 6 : 5; }

Pattern const& pattern_of(Operator op, int32_t index) {
  if (op == Operator::kAttention) return kAttentionInputs[index];
  const bool packed = op == Operator::kPackedAttention && index == locations_index(op);
  return packed ? kProjection : kFusedInputs[index];
}

std::string describe(char letter) {
  if (letter == 'C') return "2 or 4";
  if (letter == 'T') return "L*P";
  if (letter == 'R') return "3*M*L*P";
  if (letter == 'X') return "3*M*K";
  return std::string(1, letter);
}

std::string describe(const char* pattern) {
  std::string text = "[";
  for (const char* letter = pattern; *letter; ++letter) {
    if (letter != pattern) text += ", ";
    text += describe(*letter);
  }
  return text + "]";
}

// Value of each letter, and the argument that determined it.
class Letters {
 public:
  Letters() {
    for (int64_t& value : values_) value = -1;
  }

  int64_t operator[](char letter) const { return values_[index(letter)]; }

  void set(char letter, int64_t value, const char* source) {
    values_[index(letter)] = value;
    sources_[index(letter)] = source;
  }

  void read(const char* argument, const char* pattern, Dims const& dims) {
    const auto rank = static_cast<int32_t>(std::strlen(pattern));
    if (dims.nbDims != rank) fail(argument, pattern, dims, "");
    for (int32_t i = 0; i < rank; ++i) read_one(argument, pattern, pattern[i], dims, dims.d[i]);
  }

  // Determines P from R.
  void read_points(const char* argument, const char* pattern, Dims const& dims) {
    const int64_t row = (*this)['R'], heads = (*this)['M'], levels = (*this)['L'];
    if (row < 0 || heads < 0 || levels < 0) return;
    const int64_t of_a_point = 3 * heads * levels;
    if (row == 0 || of_a_point == 0 || row % of_a_point != 0) {
      fail(argument, pattern, dims,
           " with M=" + std::to_string(heads) + " (from " + sources_[index('M')] + "), L=" +
               std::to_string(levels) + " (from " + sources_[index('L')] + ") and P of 1 or more");
    }
    set('P', row / of_a_point, argument);
  }

 private:
  static int32_t index(char letter) { return letter - 'A'; }

  void read_one(const char* argument, const char* pattern, char letter, Dims const& dims,
                int64_t size) {
    if (size < 0) return;
    if (letter >= '0' && letter <= '9') {
      if (size != letter - '0') fail(argument, pattern, dims, "");
      return;
    }
    if (letter == 'C' && size != 2 && size != 4) fail(argument, pattern, dims, "");
    const int64_t known = (*this)[letter];
    if (known < 0) {
      set(letter, size, argument);
    } else if (known != size) {
      fail(argument, pattern, dims,
           " with " + describe(letter) + "=" + std::to_string(known) + " (from " +
               sources_[index(letter)] + ")");
    }
  }

  [[noreturn]] static void fail(const char* argument, const char* pattern, Dims const& dims,
                                std::string const& because) {
    fail_shape(argument, describe(pattern), because, dims);
  }

  int64_t values_[26];
  const char* sources_[26] = {};
};

}  // namespace

const char* operator_name(Operator op) {
  return op == Operator::kAttention ? "MultiScaleDeformableAttention"
                                    : "FusedMultiScaleDeformableAttention";
}

std::vector<Input> inputs(Operator op) {
  std::vector<Input> result;
  for (int32_t i = 0; i < num_inputs(op); ++i) result.push_back({pattern_of(op, i).name});
  return result;
}

int32_t locations_index(Operator op) { return op == Operator::kAttention ? 3 : 4; }

Sizes check_sizes(Operator op, std::vector<int32_t> const& points_per_level, Dims const* dims) {
  const bool ragged = !points_per_level.empty();
  Letters letters;
  if (ragged) {
    letters.set('L', static_cast<int64_t>(points_per_level.size()), "points_per_level");
    letters.set('K', std::accumulate(points_per_level.begin(), points_per_level.end(), int64_t{0}),
                "points_per_level");
  }
  for (int32_t i = 0; i < num_inputs(op); ++i) {
    Pattern const& expected = pattern_of(op, i);
    if (ragged && i == locations_index(op) && letters['M'] >= 0) {
      letters.set('X', 3 * letters['M'] * letters['K'], "points_per_level and value");
    }
    letters.read(expected.name, ragged ? expected.ragged : expected.equal, dims[i]);
    if (op == Operator::kPackedAttention && !ragged && i == locations_index(op)) {
      letters.read_points(expected.name, expected.equal, dims[i]);
    }
    if (!ragged && i == locations_index(op) && letters['L'] >= 0 && letters['P'] >= 0) {
      letters.set('T', letters['L'] * letters['P'], expected.name);
    }
  }
  const int64_t total = !ragged && letters['L'] >= 0 && letters['P'] >= 0
                            ? letters['L'] * letters['P']
                            : letters['K'];
  return Sizes{letters['N'], letters['S'], letters['M'], letters['D'], letters['L'],
               letters['Q'], letters['P'], total,        letters['C']};
}

}  // namespace msda::trt
