// Forms of linear layers with int8 inputs for compute capability 9.0, as a library of one ending.
// time_quantized_linear.py says how to build it.
#include <string>
#include <vector>

#include "msda/quantized_linear_sm90.cuh"

namespace {

using msda::Ending;
using msda::QuantizedLinearKernel;

constexpr Ending kEnding = Ending::MSDA_LAB_ENDING;

struct Form {
  std::string name;
  cudaError_t (*launch)(const msda::QuantizedLinearProblem&, const msda::QuantizedLinearArguments&,
                        cudaStream_t);
};
std::vector<Form> forms;

// The library's first form of the ending, of which a layer takes the epilogue.
constexpr size_t library_form() {
  size_t index = 0;
  while (msda::kQuantizedLinearForms[index].ending != kEnding) ++index;
  return index;
}

template <bool kCooperative_, int kRows, int kColumns, int kClusterRows, int kClusterColumns>
struct Layer : msda::sm90::QuantizedLinearLayer<int8_t, cutlass::half_t, library_form()> {
  static constexpr bool kCooperative = kCooperative_;
  static constexpr msda::QuantizedLinearForm kForm{
      QuantizedLinearKernel::kPlain, kRows,  kColumns, kClusterRows, kClusterColumns,
      msda::EightBits::kInt8,        kEnding};
};

template <bool kCooperative, int... kSizes>
void add() {
  constexpr int kSize[] = {kSizes...};
  forms.push_back({std::string(kCooperative ? "cooperative" : "pingpong") + " " +
                       std::to_string(kSize[0]) + "x" + std::to_string(kSize[1]) + ", cluster " +
                       std::to_string(kSize[2]) + "x" + std::to_string(kSize[3]),
                   msda::sm90::Gemm<Layer<kCooperative, kSizes...>>::launch});
}

const bool added = [] {
  add<false, 128, 128, 1, 1>();
  add<false, 128, 128, 2, 1>();
  add<false, 64, 256, 1, 1>();
  add<true, 128, 256, 1, 1>();
  add<true, 128, 256, 2, 1>();
  add<true, 256, 128, 1, 1>();
  if constexpr (kEnding == Ending::kResidual) {
    add<false, 64, 192, 1, 1>();
    add<true, 128, 192, 1, 1>();
  } else {
    add<false, 128, 128, 1, 2>();
    add<false, 64, 256, 2, 1>();
    add<true, 128, 256, 1, 2>();
    add<true, 256, 128, 1, 2>();
  }
  return true;
}();

}  // namespace

#define LAB_EXPORT extern "C" __attribute__((visibility("default")))

// Returns the name of form `index`, and an empty name after the last form.
LAB_EXPORT const char* lab_form(int index) {
  return index < static_cast<int>(forms.size()) ? forms[index].name.c_str() : "";
}

// Launches form `index` and returns its cudaError_t.
//   sizes    M, K, N, activation
//   tensors  x, weight, scale, bias, residual, mask, output
LAB_EXPORT int lab_quantized_linear(int index, const int64_t sizes[4], float output_scale,
                                    void* const tensors[7], cudaStream_t stream) {
  msda::QuantizedLinearProblem problem;
  problem.rows = sizes[0], problem.inputs = sizes[1], problem.outputs = sizes[2];
  problem.activation = static_cast<msda::Activation>(sizes[3]);
  problem.residual = tensors[4] != nullptr, problem.masked = tensors[5] != nullptr;
  problem.quantized_output = kEnding == Ending::kQuantized;
  problem.output_scale = output_scale;
  const msda::QuantizedLinearArguments arguments{tensors[0], tensors[1], tensors[2], tensors[3],
                                                 tensors[4], tensors[5], tensors[6]};
  return forms[index].launch(problem, arguments, stream);
}
