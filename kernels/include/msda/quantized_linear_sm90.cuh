// Linear layers with 8-bit inputs: the kernels of quantized_linear_choice.h for compute capability
// 9.0, made of CUTLASS 4, see sm90_gemm.cuh.
//
// Problem   y = (activation(x weight^T * scale + bias) + residual) * mask, see
//           quantized_linear_plain.cuh.
// Layout    x [M,K], weight [N,K] int8 or E4M3, scale [N], bias [N] float, residual [M,N], mask [M]
//           half or bfloat16, out [M,N] in that type or in that of x.
// Sums      int8: int32, exact. E4M3: the tensor cores add in fewer bits than float has. Every four
//           of their instructions (128 products) CUTLASS adds the sums to others in float, so that
//           the error does not grow with K. This takes twice the registers of sums.
// Limits    can_run() in quantized_linear_choice.h. Deterministic: a fixed order of sums.
#pragma once

#include <utility>

#include "msda/quantized_linear_choice.h"
#include "msda/sm90_gemm.cuh"

namespace msda::sm90 {

// activation(sum * scale + bias) * factor
template <class T>
struct Finish {
  struct Arguments {
    Activation activation;
    float factor;
  };
};

template <int kSize>
struct Finish<cutlass::Array<float, kSize>> {
  using Numbers = cutlass::Array<float, kSize>;

  CUTLASS_DEVICE Numbers operator()(const Numbers& sum, const Numbers& scale, const Numbers& bias,
                                    const Finish<float>::Arguments& arguments) const {
    Numbers y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSize; ++i) y[i] = fmaf(sum[i], scale[i], bias[i]);
    // All threads take the same branch.
    if (arguments.activation == Activation::kGelu) {
      y = Gelu<Numbers>{}(y);
    } else if (arguments.activation == Activation::kRelu) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kSize; ++i) y[i] = y[i] < 0 ? 0.f : y[i];  // NaN stays
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSize; ++i) y[i] *= arguments.factor;
    return y;
  }
};

// T is the 16-bit type, Q the 8-bit one.
template <class Q, class T, size_t kIndex>
struct QuantizedLinearLayer {
  static constexpr QuantizedLinearForm kForm = kQuantizedLinearForms[kIndex];
  static constexpr Ending kEnding = kForm.ending;
  static constexpr bool kCooperative = is_cooperative(kForm.kernel);
  using In = Q;
  using Sum = std::conditional_t<std::is_same_v<Q, int8_t>, int32_t, float>;
  using Residual = std::conditional_t<kEnding == Ending::kResidual, T, void>;
  using Out = std::conditional_t<kEnding == Ending::kQuantized, Q, T>;
  using EpilogueTile = cutlass::epilogue::collective::EpilogueTileAuto;

  template <class Tile>
  struct Epilogue {
    using Finished =
        Tree<Compute<Finish, std::conditional_t<kEnding == Ending::kQuantized, Q, float>>,
             cutlass::epilogue::fusion::Sm90AccFetch, OfColumns<Tile, float>,
             OfColumns<Tile, float>>;
    using Summed =
        Tree<Compute<cutlass::plus, T>, cutlass::epilogue::fusion::Sm90SrcFetch<T>, Finished>;
    using Masked = Tree<Compute<cutlass::multiplies, T>, Finished, OfRows<Tile, T>>;
    using Callbacks =
        std::conditional_t<kEnding == Ending::kQuantized, Finished,
                           std::conditional_t<kEnding == Ending::kResidual, Summed, Masked>>;

    static typename Callbacks::Arguments arguments(const QuantizedLinearProblem& problem,
                                                   const QuantizedLinearArguments& tensors) {
      const float factor = problem.quantized_output ? 1 / problem.output_scale : 1.f;
      // CUTLASS takes a null pointer for the number behind it.
      const typename Finished::Arguments finished{
          {},
          {static_cast<const float*>(tensors.scale), 1.f, {}},
          {static_cast<const float*>(tensors.bias), 0.f, {}},
          {problem.activation, factor}};
      if constexpr (kEnding == Ending::kQuantized) {
        return finished;
      } else if constexpr (kEnding == Ending::kResidual) {
        return {{}, finished, {}};
      } else {
        return {finished, {static_cast<const T*>(tensors.mask), T(1), {}}, {}};
      }
    }
  };
};

template <class Q, size_t kIndex>
cudaError_t launch(const QuantizedLinearProblem& problem, const QuantizedLinearArguments& arguments,
                   cudaStream_t stream) {
  constexpr QuantizedLinearForm kForm = kQuantizedLinearForms[kIndex];
  if constexpr ((kForm.input_type == EightBits::kInt8) == std::is_same_v<Q, int8_t>) {
    if constexpr (kForm.ending != Ending::kQuantized) {
      if (problem.type == DataType::kBFloat16) {
        return Gemm<QuantizedLinearLayer<Q, cutlass::bfloat16_t, kIndex>>::launch(
            problem, arguments, stream);
      }
    }
    // This type is that of no tensor where the result has 8 bits.
    return Gemm<QuantizedLinearLayer<Q, cutlass::half_t, kIndex>>::launch(problem, arguments,
                                                                          stream);
  }
  return cudaErrorNotSupported;
}

template <class Q, size_t... kIndices>
cudaError_t run(QuantizedLinearKernel kernel, const QuantizedLinearProblem& problem,
                const QuantizedLinearArguments& arguments, cudaStream_t stream,
                std::index_sequence<kIndices...>) {
  cudaError_t status = cudaErrorNotSupported;
  const auto matches = [&](const QuantizedLinearForm& form) {
    return form.kernel == kernel && fits(form, problem);
  };
  static_cast<void>(((matches(kQuantizedLinearForms[kIndices]) &&
                      (status = launch<Q, kIndices>(problem, arguments, stream), true)) ||
                     ...));
  return status;
}

}  // namespace msda::sm90

namespace msda {

// Runs a kernel that can_run() the problem, for int8_t or __nv_fp8_e4m3. Returns
// cudaErrorNotSupported where this GPU cannot.
template <typename Q>
cudaError_t run_quantized_linear_sm90(QuantizedLinearKernel kernel,
                                      const QuantizedLinearProblem& problem,
                                      const QuantizedLinearArguments& arguments,
                                      cudaStream_t stream) {
  using Element = std::conditional_t<std::is_same_v<Q, int8_t>, int8_t, cutlass::float_e4m3_t>;
  return sm90::run<Element>(kernel, problem, arguments, stream,
                            std::make_index_sequence<std::size(kQuantizedLinearForms)>());
}

}  // namespace msda
