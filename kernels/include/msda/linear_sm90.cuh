// Linear layers: the kernels of linear_choice.h for compute capability 9.0, made of CUTLASS 4.
//
// Problem   out = (activation(x weight^T + bias) + residual) * mask, see linear_plain.cuh.
// Layout    x [M,K], weight [N,K], bias [N], residual [M,N], mask [M], out [M,N] in half or
//           bfloat16. Sums and what follows them are float.
// Threads   Persistent blocks, one for each multiprocessor, take tile after tile. One warp group
//           loads by TMA, two multiply by WGMMA. "pingpong": each of the two computes a tile of its
//           own, so one multiplies while the other runs its epilogue. "cooperative": both share
//           one.
// Limits    can_run() in linear_choice.h. Deterministic: a fixed order of sums.
// Memory    The kernels need no work memory.
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <type_traits>
#include <utility>

#include "msda/cuda_launch.cuh"
#include "msda/linear_choice.h"

namespace msda::sm90 {

// GELU(x) = x * Phi(x). Phi(x) = 1/2 + x R(x^2), where R has degree 8 and least maximal error of
// GELU up to |x| = 4.25. Beyond, the sum leaves [0, 1], so saturation makes Phi exact. The absolute
// error of GELU is at most 4.3e-5. That is 11 operations, and erff takes more than 20.
template <class T>
struct Gelu;

template <>
struct Gelu<float> {
  CUTLASS_DEVICE float operator()(float x) const {
    constexpr float kR[] = {3.98819208e-01f,  -6.61902726e-02f, 9.71877482e-03f,
                            -1.07907678e-03f, 8.84889159e-05f,  -5.14748990e-06f,
                            1.98614430e-07f,  -4.51525572e-09f, 4.54700826e-11f};
    const float square = x * x;
    float sum = kR[8];
    CUTLASS_PRAGMA_UNROLL
    for (int power = 7; power >= 0; --power) sum = fmaf(sum, square, kR[power]);
    return x * __saturatef(fmaf(x, sum, 0.5f));
  }
};

template <int kSize>
struct Gelu<cutlass::Array<float, kSize>> {
  CUTLASS_DEVICE cutlass::Array<float, kSize> operator()(
      const cutlass::Array<float, kSize>& x) const {
    cutlass::Array<float, kSize> y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSize; ++i) y[i] = Gelu<float>{}(x[i]);
    return y;
  }
};

// What follows the product. Without a residual, Source is void: the pipeline of x and weight gets
// the shared memory that tiles of the residual would take.
template <class T, size_t kIndex, class Tile>
struct Epilogue {
  static constexpr LinearForm kForm = kLinearForms[kIndex];
  static constexpr auto kRound = cutlass::FloatRoundStyle::round_to_nearest;
  using Source = std::conditional_t<kForm.residual, T, void>;
  template <template <class> class Operator, class Output>
  using Compute = cutlass::epilogue::fusion::Sm90Compute<Operator, Output, float, kRound>;
  template <class... Nodes>
  using Tree = cutlass::epilogue::fusion::Sm90EVT<Nodes...>;

  using Biased = Tree<Compute<cutlass::plus, float>, cutlass::epilogue::fusion::Sm90AccFetch,
                      cutlass::epilogue::fusion::Sm90RowBroadcast<0, Tile, T, float>>;
  using Output = std::conditional_t<kForm.residual, float, T>;
  using Activate =
      std::conditional_t<kForm.activation == Activation::kGelu, Compute<Gelu, Output>,
                         std::conditional_t<kForm.activation == Activation::kRelu,
                                            Compute<cutlass::epilogue::thread::ReLu, Output>,
                                            Compute<cutlass::epilogue::thread::Identity, Output>>>;
  using Activated = Tree<Activate, Biased>;
  using Summed =
      Tree<Compute<cutlass::plus, T>, cutlass::epilogue::fusion::Sm90SrcFetch<T>, Activated>;
  // M is any number. The alignment of one element keeps loads within the mask.
  using Mask =
      cutlass::epilogue::fusion::Sm90ColBroadcast<0, Tile, T, float,
                                                  cute::Stride<cute::_1, cute::_0, cute::_0>, 1>;
  using Masked = Tree<Compute<cutlass::multiplies, T>, Biased, Mask>;
  static_assert(!kForm.masked || (kForm.activation == Activation::kNone && !kForm.residual));
  using Callbacks = std::conditional_t<kForm.masked, Masked,
                                       std::conditional_t<kForm.residual, Summed, Activated>>;

  static typename Callbacks::Arguments arguments(const LinearArguments& tensors) {
    // CUTLASS takes a null bias for the number behind it.
    const typename Biased::Arguments biased{
        {}, {static_cast<const T*>(tensors.bias), T(0), {}}, {}};
    if constexpr (kForm.masked) {
      return {biased, {static_cast<const T*>(tensors.mask), T(0), {}}, {}};
    } else if constexpr (kForm.residual) {
      return {{}, {biased, {}}, {}};
    } else {
      return {biased, {}};
    }
  }
};

template <class T, size_t kIndex>
struct Linear {
  static constexpr LinearForm kForm = kLinearForms[kIndex];
  static constexpr bool kCooperative = kForm.kernel == LinearKernel::kCooperative128x192 ||
                                       kForm.kernel == LinearKernel::kCooperative128x256;
  using MainloopSchedule =
      std::conditional_t<kCooperative, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                         cutlass::gemm::KernelTmaWarpSpecializedPingpong>;
  using EpilogueSchedule =
      std::conditional_t<kCooperative, cutlass::epilogue::TmaWarpSpecializedCooperative,
                         cutlass::epilogue::TmaWarpSpecialized>;
  using Tile = cute::Shape<cute::Int<kForm.rows>, cute::Int<kForm.columns>, cute::_64>;
  using Cluster =
      cute::Shape<cute::Int<kForm.cluster_rows>, cute::Int<kForm.cluster_columns>, cute::_1>;
  using RowMajor = cutlass::layout::RowMajor;
  using ColumnMajor = cutlass::layout::ColumnMajor;
  using Epilogue = sm90::Epilogue<T, kIndex, Tile>;
  static constexpr int kAlignment = 8;  // elements; TMA needs 16 bytes

  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, typename Epilogue::Source,
      RowMajor, kAlignment, T, RowMajor, kAlignment, EpilogueSchedule,
      typename Epilogue::Callbacks>::CollectiveOp;
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, RowMajor, kAlignment, T, ColumnMajor,
      kAlignment, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      MainloopSchedule>::CollectiveOp;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                           CollectiveEpilogue, cutlass::gemm::PersistentScheduler>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  static cudaError_t launch(const LinearProblem& problem, const LinearArguments& arguments,
                            cudaStream_t stream) {
    const int m = static_cast<int>(problem.rows), n = static_cast<int>(problem.outputs),
              k = static_cast<int>(problem.inputs);
    cutlass::KernelHardwareInfo hardware;
    const cudaError_t status = get_attribute(cudaDevAttrMultiProcessorCount, hardware.sm_count);
    if (status != cudaSuccess) return status;
    // Matrices are packed; the last stride is that of a batch of one.
    const typename Kernel::StrideA by_inputs{k, cute::_1{}, 0};
    const typename Kernel::StrideD by_outputs{n, cute::_1{}, 0};
    const typename Gemm::Arguments all{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {m, n, k, 1},
        {static_cast<const T*>(arguments.x), by_inputs, static_cast<const T*>(arguments.weight),
         by_inputs},
        {Epilogue::arguments(arguments), static_cast<const T*>(arguments.residual), by_outputs,
         static_cast<T*>(arguments.output), by_outputs},
        hardware};
    if (Gemm::can_implement(all) != cutlass::Status::kSuccess) return cudaErrorNotSupported;
    // The kernel begins where blocks of the stream's last one have ended, and waits for the others.
    constexpr bool kEarly = true;
    if (Gemm{}.run(all, nullptr, stream, nullptr, kEarly) == cutlass::Status::kSuccess) {
      return cudaSuccess;
    }
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? cudaErrorUnknown : error;
  }
};

template <class T, size_t... kIndices>
cudaError_t run(LinearKernel kernel, const LinearProblem& problem, const LinearArguments& arguments,
                cudaStream_t stream, std::index_sequence<kIndices...>) {
  cudaError_t status = cudaErrorNotSupported;
  const auto matches = [&](const LinearForm& form) {
    return form.kernel == kernel && fits(form, problem);
  };
  static_cast<void>(((matches(kLinearForms[kIndices]) &&
                      (status = Linear<T, kIndices>::launch(problem, arguments, stream), true)) ||
                     ...));
  return status;
}

}  // namespace msda::sm90

namespace msda {

// Runs a kernel that can_run() the problem, for __half or __nv_bfloat16. Returns
// cudaErrorNotSupported where this GPU cannot.
template <typename T>
cudaError_t run_linear_sm90(LinearKernel kernel, const LinearProblem& problem,
                            const LinearArguments& arguments, cudaStream_t stream) {
  using Element =
      std::conditional_t<std::is_same_v<T, __half>, cutlass::half_t, cutlass::bfloat16_t>;
  return sm90::run<Element>(kernel, problem, arguments, stream,
                            std::make_index_sequence<std::size(kLinearForms)>());
}

}  // namespace msda
