#include "shapes.h"

#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "tensors.h"

namespace msda::trt {
namespace {

using nvinfer1::Dims;

// A pattern has a letter or digit for each size. A digit means itself, C means 2 or 4, T means L *
// P, R means 3 * M * L * P, and X means 3 * M * K. The header explains the other letters.
struct Input {
  const char* name;
  const char* equal;   // every level has P points
  const char* ragged;  // points_per_level is given
};

constexpr Input kAttentionInputs[] = {
    {"value", "NSMD", "NSMD"},
    {"spatial_shapes", "L2", "L2"},
    {"level_start_index", "L", "L"},
    {"sampling_locations", "NQMLP2", "NQMK2"},
    {"attention_weights", "NQMLP", "NQMK"},
};

constexpr Input kFusedInputs[] = {
    {"value", "NSMD", "NSMD"},
    {"spatial_shapes", "L2", "L2"},
    {"level_start_index", "L", "L"},
    {"reference_points", "NQLC", "NQLC"},
    {"sampling_offsets", "NQMLP2", "NQMK2"},
    {"attention_logits", "NQMT", "NQMK"},
};

constexpr Input kProjection = {"projection", "NQR", "NQX"};

constexpr int32_t kReferencePointsIndex = 3;

Input const& input(Operator op, int32_t index) {
  if (op == Operator::kAttention) return kAttentionInputs[index];
  const bool packed = op == Operator::kPackedAttention && index == locations_index(op);
  return packed ? kProjection : kFusedInputs[index];
}

bool is_reference_points(Operator op, int32_t index) {
  return op != Operator::kAttention && index == kReferencePointsIndex;
}

std::string expected_type(Operator op, int32_t index, nvinfer1::DataType const* types) {
  if (index == 0) return "float32, float16 or bfloat16";
  if (index == 1) return "int32 or int64";
  if (index == 2) return type_name(types[1]) + " (as spatial_shapes)";
  if (is_reference_points(op, index) || types[0] == nvinfer1::DataType::kFLOAT) return "float32";
  return type_name(types[0]) + " (the value's) or float32";
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
    if (dims.nbDims != rank) {
      throw std::invalid_argument(std::string(argument) + ": expected " + describe(pattern) +
                                  ", got " + shape_text(dims));
    }
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
    throw std::invalid_argument(std::string(argument) + ": expected " + describe(pattern) +
                                because + ", got " + shape_text(dims));
  }

  int64_t values_[26];
  const char* sources_[26] = {};
};

void check_count(Operator op, int32_t count) {
  if (count == num_inputs(op)) return;
  std::string names;
  for (int32_t i = 0; i < num_inputs(op); ++i) {
    names += (i ? ", " : "") + std::string(input(op, i).name);
  }
  throw std::invalid_argument("expected " + std::to_string(num_inputs(op)) + " inputs (" + names +
                              "), got " + std::to_string(count));
}

}  // namespace

const char* operator_name(Operator op) {
  return op == Operator::kAttention ? "MultiScaleDeformableAttention"
                                    : "FusedMultiScaleDeformableAttention";
}

int32_t num_inputs(Operator op) { return op == Operator::kFusedAttention ? 6 : 5; }

int32_t locations_index(Operator op) { return op == Operator::kAttention ? 3 : 4; }

bool accepts_type(Operator op, int32_t index, nvinfer1::DataType const* types) {
  const nvinfer1::DataType type = types[index];
  const bool is_float = type == nvinfer1::DataType::kFLOAT;
  if (index == 0) return is_floating(type);
  if (index == 1) {
    return type == nvinfer1::DataType::kINT32 || type == nvinfer1::DataType::kINT64;
  }
  if (index == 2) return type == types[1];
  if (is_reference_points(op, index)) return is_float;
  return is_float || type == types[0];
}

void check_types(Operator op, nvinfer1::DataType const* types, int32_t count) {
  check_count(op, count);
  for (int32_t i = 0; i < count; ++i) {
    if (accepts_type(op, i, types)) continue;
    throw std::invalid_argument(std::string(input(op, i).name) + ": expected " +
                                expected_type(op, i, types) + ", got " + type_name(types[i]));
  }
}

Sizes check_sizes(Operator op, std::vector<int32_t> const& points_per_level, Dims const* dims,
                  int32_t count) {
  check_count(op, count);
  const bool ragged = !points_per_level.empty();
  Letters letters;
  if (ragged) {
    letters.set('L', static_cast<int64_t>(points_per_level.size()), "points_per_level");
    letters.set('K', std::accumulate(points_per_level.begin(), points_per_level.end(), int64_t{0}),
                "points_per_level");
  }
  for (int32_t i = 0; i < count; ++i) {
    Input const& expected = input(op, i);
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

Problem read_problem(Operator op, std::vector<int32_t> const& points_per_level,
                     nvinfer1::PluginTensorDesc const* inputs, int32_t count) {
  check_count(op, count);
  constexpr int32_t kMaxInputs = 6;
  nvinfer1::DataType types[kMaxInputs];
  Dims dims[kMaxInputs];
  for (int32_t i = 0; i < count; ++i) {
    types[i] = inputs[i].type;
    dims[i] = inputs[i].dims;
  }
  check_types(op, types, count);
  const Sizes sizes = check_sizes(op, points_per_level, dims, count);

  if (sizes.num_levels > kMaxLevels) {
    throw std::invalid_argument("spatial_shapes: expected at most " + std::to_string(kMaxLevels) +
                                " levels, got " + std::to_string(sizes.num_levels));
  }
  Problem problem;
  problem.batch_size = sizes.batch_size;
  problem.num_cells = sizes.num_cells;
  problem.num_heads = sizes.num_heads;
  problem.head_dim = sizes.head_dim;
  problem.num_levels = sizes.num_levels;
  problem.num_queries = sizes.num_queries;
  problem.total_points = sizes.total_points;
  for (int64_t level = 0; level < sizes.num_levels; ++level) {
    problem.points_per_level[level] = points_per_level.empty()
                                          ? static_cast<int32_t>(sizes.num_points)
                                          : points_per_level[static_cast<size_t>(level)];
  }
  problem.locations = op == Operator::kAttention ? Locations::kGiven
                      : sizes.reference_dim == 2 ? Locations::kReferencePoints
                                                 : Locations::kReferenceBoxes;
  problem.value_type = convert(types[0]);
  problem.location_type = convert(types[locations_index(op)]);
  problem.weight_type = convert(types[count - 1]);
  problem.int64_shapes = types[1] == nvinfer1::DataType::kINT64;
  problem.set_dense();
  if (op == Operator::kPackedAttention) {
    problem.location_stride = problem.weight_stride = 3 * problem.points_of_query();
  }
  check_message(check(problem));
  return problem;
}

}  // namespace msda::trt
