// Which kernel of layer normalisation with a result in 8 bits runs a problem: this file decides for
// every wrapper. Plain C++.
//
//   plain    quantized_layer_norm_plain.cuh    any size, type and alignment
//   vectors  quantized_layer_norm_vectors.cuh  half and bfloat16; C a multiple of 8, up to 4096
//
// The names are the values of MSDA_QUANTIZED_LAYER_NORM, which forces a kernel.
#pragma once

#include "msda/forward_choice.h"
#include "msda/quantized_layer_norm_params.h"

namespace msda {

inline constexpr int64_t kLayerNormMostChannels = 4096;  // of kernel `vectors`

enum class QuantizedLayerNormKernel : int32_t { kPlain, kVectors };

inline constexpr QuantizedLayerNormKernel kQuantizedLayerNormKernels[] = {
    QuantizedLayerNormKernel::kPlain, QuantizedLayerNormKernel::kVectors};

inline const char* name(QuantizedLayerNormKernel kernel) {
  return kernel == QuantizedLayerNormKernel::kPlain ? "plain" : "vectors";
}

inline bool can_run(QuantizedLayerNormKernel kernel, const QuantizedLayerNormProblem& problem,
                    const QuantizedLayerNormArguments& arguments) {
  return kernel == QuantizedLayerNormKernel::kPlain ||
         (size_of(problem.type) == 2 && problem.channels % 8 == 0 &&
          problem.channels <= kLayerNormMostChannels && aligned(arguments.x, 16) &&
          aligned(arguments.weight, 16) && aligned(arguments.bias, 16) &&
          aligned(arguments.output, 8));
}

// The fastest kernel.
inline QuantizedLayerNormKernel choose_quantized_layer_norm(
    const QuantizedLayerNormProblem& problem, const QuantizedLayerNormArguments& arguments) {
  return can_run(QuantizedLayerNormKernel::kVectors, problem, arguments)
             ? QuantizedLayerNormKernel::kVectors
             : QuantizedLayerNormKernel::kPlain;
}

}  // namespace msda
