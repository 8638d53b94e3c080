// Linear layers: the kernels of linear_choice.h for compute capability 9.0, made of CUTLASS 4, see
// sm90_gemm.cuh.
//
// Problem   out = (activation(x weight^T + bias) + residual) * mask, or with a normalisation
//           out = LayerNorm(x weight^T + bias + residual), see linear_plain.cuh.
// Layout    x [M,K], weight [N,K], bias [N], residual [M,N], mask [M], norm_weight [N],
//           norm_bias [N], out [M,N] in half or bfloat16. Sums and what follows them are float.
// Limits    can_run() in linear_choice.h. Deterministic: a fixed order of sums.
#pragma once

#include <utility>

#include "msda/linear_choice.h"
#include "msda/row_norm.cuh"
#include "msda/sm90_gemm.cuh"

namespace msda::sm90 {

template <class T, size_t kIndex>
struct LinearLayer {
  static constexpr LinearForm kForm = kLinearForms[kIndex];
  static constexpr bool kCooperative = kForm.kernel == LinearKernel::kCooperative128x192 ||
                                       kForm.kernel == LinearKernel::kCooperative128x256;
  using In = T;
  using Sum = float;
  using Residual = std::conditional_t<kForm.residual, T, void>;
  using Out = T;
  // A normalisation needs whole rows.
  using EpilogueTile =
      std::conditional_t<kForm.normed, cute::Shape<cute::Int<kForm.rows>, cute::Int<kForm.columns>>,
                         cutlass::epilogue::collective::EpilogueTileAuto>;

  template <class Tile>
  struct Epilogue {
    using Biased = Tree<Compute<cutlass::plus, float>, cutlass::epilogue::fusion::Sm90AccFetch,
                        OfColumns<Tile, T>>;
    using Output = std::conditional_t<kForm.residual, float, T>;
    using Activate = std::conditional_t<
        kForm.activation == Activation::kGelu, Compute<Gelu, Output>,
        std::conditional_t<kForm.activation == Activation::kRelu,
                           Compute<cutlass::epilogue::thread::ReLu, Output>,
                           Compute<cutlass::epilogue::thread::Identity, Output>>>;
    using Activated = Tree<Activate, Biased>;
    using Summed =
        Tree<Compute<cutlass::plus, T>, cutlass::epilogue::fusion::Sm90SrcFetch<T>, Activated>;
    using Masked = Tree<Compute<cutlass::multiplies, T>, Biased, OfRows<Tile, T>>;
    static_assert(!kForm.masked || (kForm.activation == Activation::kNone && !kForm.residual));
    using Norm = RowNorm<T, kForm.columns>;
    using Normed =
        std::conditional_t<kForm.residual, Tree<Norm, cutlass::epilogue::fusion::Sm90SrcFetch<T>>,
                           Tree<Norm>>;
    static_assert(!kForm.normed || (kForm.activation == Activation::kNone && !kForm.masked));
    using Callbacks = std::conditional_t<
        kForm.normed, Normed,
        std::conditional_t<kForm.masked, Masked,
                           std::conditional_t<kForm.residual, Summed, Activated>>>;

    static typename Callbacks::Arguments arguments([[maybe_unused]] const LinearProblem& problem,
                                                   const LinearArguments& tensors) {
      // CUTLASS takes a null bias for the number behind it.
      const typename Biased::Arguments biased{
          {}, {static_cast<const T*>(tensors.bias), T(0), {}}, {}};
      if constexpr (kForm.normed) {
        const typename Norm::Arguments norm{
            static_cast<const T*>(tensors.bias), static_cast<const T*>(tensors.norm_weight),
            static_cast<const T*>(tensors.norm_bias), static_cast<float>(problem.eps)};
        if constexpr (kForm.residual) {
          return {{}, norm};
        } else {
          return {norm};
        }
      } else if constexpr (kForm.masked) {
        return {biased, {static_cast<const T*>(tensors.mask), T(0), {}}, {}};
      } else if constexpr (kForm.residual) {
        return {{}, {biased, {}}, {}};
      } else {
        return {biased, {}};
      }
    }
  };
};

template <class T, size_t kIndex>
using Linear = Gemm<LinearLayer<T, kIndex>>;

template <class T, int kRows, size_t kIndex>
cudaError_t launch(const LinearProblem& problem, const LinearArguments& arguments,
                   cudaStream_t stream) {
  if constexpr (kLinearForms[kIndex].rows == kRows) {
    return Linear<T, kIndex>::launch(problem, arguments, stream);
  }
  return cudaErrorNotSupported;
}

template <class T, int kRows, size_t... kIndices>
cudaError_t run(LinearKernel kernel, const LinearProblem& problem, const LinearArguments& arguments,
                cudaStream_t stream, std::index_sequence<kIndices...>) {
  cudaError_t status = cudaErrorNotSupported;
  const auto matches = [&](const LinearForm& form) {
    return form.kernel == kernel && fits(form, problem);
  };
  static_cast<void>(((matches(kLinearForms[kIndices]) &&
                      (status = launch<T, kRows, kIndices>(problem, arguments, stream), true)) ||
                     ...));
  return status;
}

}  // namespace msda::sm90

namespace msda {

// Runs a kernel that can_run() the problem and has tiles of kRows rows, for __half or
// __nv_bfloat16. Returns cudaErrorNotSupported where this GPU cannot.
template <typename T, int kRows>
cudaError_t run_linear_sm90(LinearKernel kernel, const LinearProblem& problem,
                            const LinearArguments& arguments, cudaStream_t stream) {
  using Element =
      std::conditional_t<std::is_same_v<T, __half>, cutlass::half_t, cutlass::bfloat16_t>;
  return sm90::run<Element, kRows>(kernel, problem, arguments, stream,
                                   std::make_index_sequence<std::size(kLinearForms)>());
}

}  // namespace msda
