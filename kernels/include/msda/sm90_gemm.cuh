// What linear layers of all types share for compute capability 9.0: matrix products of CUTLASS 4
// with an epilogue.
//
// Threads   Persistent blocks, one for each multiprocessor, take tile after tile. One warp group
//           loads by TMA, two multiply by WGMMA. "pingpong": each of the two computes a tile of its
//           own, so one multiplies while the other runs its epilogue. "cooperative": both share
//           one.
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

#include "msda/cuda_launch.cuh"
#include "msda/gelu.cuh"

namespace msda::sm90 {

template <class T>
struct Gelu;

template <>
struct Gelu<float> {
  CUTLASS_DEVICE float operator()(float x) const { return fast_gelu(x); }
};

template <int kSize>
struct Gelu<cutlass::Array<float, kSize>> {
  CUTLASS_DEVICE cutlass::Array<float, kSize> operator()(
      const cutlass::Array<float, kSize>& x) const {
    cutlass::Array<float, kSize> y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSize; ++i) y[i] = fast_gelu(x[i]);
    return y;
  }
};

// Nodes of an epilogue, which compute in float.
template <template <class> class Operator, class Output>
using Compute = cutlass::epilogue::fusion::Sm90Compute<Operator, Output, float,
                                                       cutlass::FloatRoundStyle::round_to_nearest>;
template <class... Nodes>
using Tree = cutlass::epilogue::fusion::Sm90EVT<Nodes...>;

// A number for each column or row. The alignment of one element keeps the loads of a column within
// M, which is any number.
template <class Tile, class T>
using OfColumns = cutlass::epilogue::fusion::Sm90RowBroadcast<0, Tile, T, float>;
template <class Tile, class T>
using OfRows =
    cutlass::epilogue::fusion::Sm90ColBroadcast<0, Tile, T, float,
                                                cute::Stride<cute::_1, cute::_0, cute::_0>, 1>;

// A kernel for x [M,K], weight [N,K], residual [M,N] and out [M,N]. A Layer has
//   kForm, kCooperative     sizes of tile and cluster, and the schedule
//   In, Sum, Residual, Out  CUTLASS's types of the matrices and of the sums; Residual void: none
//   EpilogueTile            the part of a tile that the epilogue computes at once
//   Epilogue<Tile>          its Callbacks, and their arguments()
template <class Layer>
struct Gemm {
  static constexpr auto kForm = Layer::kForm;
  static constexpr bool kCooperative = Layer::kCooperative;
  using In = typename Layer::In;
  using Sum = typename Layer::Sum;
  using Residual = typename Layer::Residual;
  using Out = typename Layer::Out;
  // 128 bytes of a row, which one swizzled tile of shared memory holds.
  using Tile = cute::Shape<cute::Int<kForm.rows>, cute::Int<kForm.columns>,
                           cute::Int<128 / static_cast<int>(sizeof(In))>>;
  using Cluster =
      cute::Shape<cute::Int<kForm.cluster_rows>, cute::Int<kForm.cluster_columns>, cute::_1>;
  using MainloopSchedule =
      std::conditional_t<kCooperative, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                         cutlass::gemm::KernelTmaWarpSpecializedPingpong>;
  using EpilogueSchedule =
      std::conditional_t<kCooperative, cutlass::epilogue::TmaWarpSpecializedCooperative,
                         cutlass::epilogue::TmaWarpSpecialized>;
  using RowMajor = cutlass::layout::RowMajor;
  using ColumnMajor = cutlass::layout::ColumnMajor;
  using Epilogue = typename Layer::template Epilogue<Tile>;

  // Elements in the 16 bytes that TMA needs.
  template <class T>
  static constexpr int kAlignment = 16 / static_cast<int>(sizeof(T));
  static constexpr int kOutAlignment = kAlignment<Out>;

  // Without a residual, the pipeline of x and weight gets the shared memory of its tiles.
  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      typename Layer::EpilogueTile, Sum, float, Residual, RowMajor, kOutAlignment, Out, RowMajor,
      kOutAlignment, EpilogueSchedule, typename Epilogue::Callbacks>::CollectiveOp;
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, In, RowMajor, kAlignment<In>, In,
      ColumnMajor, kAlignment<In>, Sum, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      MainloopSchedule>::CollectiveOp;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                           CollectiveEpilogue, cutlass::gemm::PersistentScheduler>;
  using Adapter = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  // Problem and Arguments are those of linear_params.h or quantized_linear_params.h.
  template <class Problem, class Arguments>
  static cudaError_t launch(const Problem& problem, const Arguments& arguments,
                            cudaStream_t stream) {
    const int m = static_cast<int>(problem.rows), n = static_cast<int>(problem.outputs),
              k = static_cast<int>(problem.inputs);
    cutlass::KernelHardwareInfo hardware;
    const cudaError_t status = get_attribute(cudaDevAttrMultiProcessorCount, hardware.sm_count);
    if (status != cudaSuccess) return status;
    // Matrices are packed; the last stride is that of a batch of one.
    const typename Kernel::StrideA by_inputs{k, cute::_1{}, 0};
    const typename Kernel::StrideD by_outputs{n, cute::_1{}, 0};
    const typename Adapter::Arguments all{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {m, n, k, 1},
        {static_cast<const In*>(arguments.x), by_inputs, static_cast<const In*>(arguments.weight),
         by_inputs},
        {Epilogue::arguments(problem, arguments), static_cast<const Residual*>(arguments.residual),
         by_outputs, static_cast<Out*>(arguments.output), by_outputs},
        hardware};
    if (Adapter::can_implement(all) != cutlass::Status::kSuccess) return cudaErrorNotSupported;
    // The kernel begins where blocks of the stream's last one have ended, and waits for the others.
    constexpr bool kEarly = true;
    if (Adapter{}.run(all, nullptr, stream, nullptr, kEarly) == cutlass::Status::kSuccess) {
      return cudaSuccess;
    }
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? cudaErrorUnknown : error;
  }
};

}  // namespace msda::sm90
