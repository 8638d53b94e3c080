// Other launches of the kernel of window attention on tensor cores, as a library. time_window.py
// says how to build it. All are for half, windows of 12 x 12 cells and 32 channels a head.
#include <cuda_fp16.h>

#include <string>
#include <vector>

#include "msda/window_tensor_core.cuh"

namespace {

struct Form {
  std::string name;
  cudaError_t (*launch)(const msda::WindowProblem&, const msda::WindowArguments&, cudaStream_t);
};
std::vector<Form> forms;

using Library = msda::WindowConfig<__half, 12, 32>;

template <int kWarps_, int kLoaders_, int kKeys_, int kUnrolled_, int kStages_>
struct Config : Library {
  static constexpr int kWarps = kWarps_;
  static constexpr int kLoaders = kLoaders_;
  static constexpr int kThreads = (kWarps + kLoaders) * 32;
  static constexpr int kKeys = kKeys_;
  static constexpr int kUnrolled = kUnrolled_;
  static constexpr int kMaxStages = kStages_;
};

template <int kWarps, int kLoaders, int kKeys, int kUnrolled, int kStages>
void add() {
  const auto number = [](int number) { return std::to_string(number); };
  forms.push_back(
      {number(kWarps) + " + " + number(kLoaders) + " warps, " + number(kKeys) + " keys, " +
           number(kUnrolled) + " unrolled, " + number(kStages) + " stages",
       msda::launch_window_tensor_core<Config<kWarps, kLoaders, kKeys, kUnrolled, kStages>>});
}

const bool added = [] {
  add<12, 4, 48, 3, 2>();
  add<12, 4, 48, 3, 4>();
  add<12, 4, 48, 3, 6>();
  add<14, 2, 48, 3, 3>();
  add<10, 2, 48, 3, 3>();
  add<12, 4, 48, 1, 3>();
  add<12, 4, 16, 3, 3>();
  add<12, 4, 144, 1, 3>();
  return true;
}();

}  // namespace

#define LAB_EXPORT extern "C" __attribute__((visibility("default")))

// Returns the name of form `index`, and an empty name after the last form.
LAB_EXPORT const char* lab_window_form(int index) {
  return index < static_cast<int>(forms.size()) ? forms[index].name.c_str() : "";
}

// Launches form `index` and returns its cudaError_t.
//   sizes    N, H, W, heads, shift
//   tensors  qkv, bias, padding, output
LAB_EXPORT int lab_window_attention(int index, const int64_t sizes[5], void* const tensors[4],
                                    cudaStream_t stream) {
  const msda::WindowProblem problem{sizes[0], sizes[1], sizes[2], sizes[3],
                                    32,       12,       sizes[4], msda::DataType::kFloat16};
  const msda::WindowArguments arguments{tensors[0], tensors[1], tensors[2], tensors[3]};
  return forms[index].launch(problem, arguments, stream);
}
