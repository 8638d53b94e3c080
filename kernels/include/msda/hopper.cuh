// Primitives of compute capability 9.0: products of a warp group (WGMMA), copies of tiles by TMA,
// and barriers in shared memory that count threads and bytes. The emulator has a C++ form of each
// (tests/matrix/cuda_emulator/hopper.h).
//
// Matrices in shared memory lie in panels: rows of kBytes, 128 or 64, one after the other, with
// TMA's swizzle of that width. A panel begins at a multiple of 1024 bytes.
#pragma once

#include "msda/tensor_core.cuh"

#if defined(__CUDACC__)
#include <cuda.h>

#include <cute/arch/mma_sm90.hpp>
#endif

#include <utility>

namespace msda {

#if defined(__CUDACC__)
using TensorMap = CUtensorMap;
#else
using TensorMap = emulator::TensorMap;
#endif

// The place of a byte of a panel, from the panel's begin.
template <int kBytes>
__device__ __forceinline__ int swizzled(int row, int byte) {
  static_assert(kBytes == 128 || kBytes == 64);
  const int place = row * kBytes + byte;
  return place ^ ((place >> 7 & (kBytes == 128 ? 7 : 3)) << 4);
}

// WGMMA's descriptor of a matrix whose rows are those of a panel from a byte on. Rows go by eights.
template <int kBytes>
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address) {
  static_assert(kBytes == 128 || kBytes == 64);
  constexpr uint64_t kEightRows = 8 * kBytes / 16, kSwizzle = kBytes == 128 ? 1 : 2;
  return (address & 0x3ffff) >> 4 | uint64_t{1} << 16 | kEightRows << 32 | kSwizzle << 62;
}

#if MSDA_PTX
namespace hopper {

template <int kColumns>
struct Int8Products;
template <>
struct Int8Products<64> {
  using Type = cute::SM90::GMMA::MMA_64x64x32_S32S8S8_RS_TN;
};
template <>
struct Int8Products<128> {
  using Type = cute::SM90::GMMA::MMA_64x128x32_S32S8S8_RS_TN;
  using Shared = cute::SM90::GMMA::MMA_64x128x32_S32S8S8_SS_TN;
};
template <>
struct Int8Products<256> {
  using Type = cute::SM90::GMMA::MMA_64x256x32_S32S8S8_RS_TN;
};

// Products of 16 bits with a in registers or in shared memory.
template <typename T, int kColumns>
struct Products;
constexpr auto kRowMajor = cute::SM90::GMMA::Major::K;
template <>
struct Products<__half, 64> {
  using Registers = cute::SM90::GMMA::MMA_64x64x16_F32F16F16_RS<kRowMajor, kRowMajor>;
  using Shared = cute::SM90::GMMA::MMA_64x64x16_F32F16F16_SS<kRowMajor, kRowMajor>;
};
template <>
struct Products<__half, 256> {
  using Registers = cute::SM90::GMMA::MMA_64x256x16_F32F16F16_RS<kRowMajor, kRowMajor>;
};
template <>
struct Products<__nv_bfloat16, 64> {
  using Registers = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<kRowMajor, kRowMajor>;
  using Shared = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<kRowMajor, kRowMajor>;
};
template <>
struct Products<__nv_bfloat16, 256> {
  using Registers = cute::SM90::GMMA::MMA_64x256x16_F32BF16BF16_RS<kRowMajor, kRowMajor>;
};

template <class Product, typename Sum, int kSums, size_t... kIndices>
__device__ __forceinline__ void run(Sum (&sums)[kSums], const uint32_t (&a)[4], uint64_t b,
                                    cute::SM90::GMMA::ScaleOut scale,
                                    std::index_sequence<kIndices...>) {
  Product::fma(a[0], a[1], a[2], a[3], b, sums[kIndices]..., scale);
}
template <class Product, typename Sum, int kSums, size_t... kIndices>
__device__ __forceinline__ void run(Sum (&sums)[kSums], uint64_t a, uint64_t b,
                                    cute::SM90::GMMA::ScaleOut scale,
                                    std::index_sequence<kIndices...>) {
  Product::fma(a, b, sums[kIndices]..., scale);
}

__device__ __forceinline__ cute::SM90::GMMA::ScaleOut scale_out(bool add) {
  return add ? cute::SM90::GMMA::ScaleOut::One : cute::SM90::GMMA::ScaleOut::Zero;
}

}  // namespace hopper
#endif

// Begins sums = a b^T, or += if `add`, for int8 matrices a [64, 32] in registers and b [N, 32] in
// shared memory. A warp group calls. Lane 4 g + t of its warp w holds
//   of a     numbers 4 t to 4 t + 3 of rows 16 w + g (a[0]) and 8 more (a[1]), and numbers 16
//            further (a[2], a[3]), as in a fragment of mma.m16n8k32;
//   of sums  columns 8 j + 2 t (0, 1) and rows 16 w + g (0, 1) and 8 more (2, 3) in 4 j + 0 to 3.
template <int kSums>
__device__ __forceinline__ void begin_products(uint32_t (&sums)[kSums], const uint32_t (&a)[4],
                                               uint64_t b, bool add) {
#if MSDA_PTX
  using Product = typename hopper::Int8Products<2 * kSums>::Type;
  hopper::run<Product>(sums, a, b, hopper::scale_out(add), std::make_index_sequence<kSums>());
#elif !defined(__CUDACC__)
  emulator::multiply_groups(sums, a, b, add);
#endif
}

// The same with a in shared memory.
template <int kSums>
__device__ __forceinline__ void begin_products(uint32_t (&sums)[kSums], uint64_t a, uint64_t b,
                                               bool add) {
#if MSDA_PTX
  using Product = typename hopper::Int8Products<2 * kSums>::Shared;
  hopper::run<Product>(sums, a, b, hopper::scale_out(add), std::make_index_sequence<kSums>());
#elif !defined(__CUDACC__)
  emulator::multiply_groups(sums, a, b, add);
#endif
}

// The same for matrices of T, __half or __nv_bfloat16: a [64, 16] in registers, b [N, 16] in shared
// memory. A lane holds
//   of a     columns 2 t and 2 t + 1 of rows 16 w + g (a[0]) and 8 more (a[1]), and columns 8
//            further (a[2], a[3]), as in a fragment of mma.m16n8k16;
//   of sums  what it holds for int8.
template <typename T, int kSums>
__device__ __forceinline__ void begin_products(float (&sums)[kSums], const uint32_t (&a)[4],
                                               uint64_t b, bool add) {
#if MSDA_PTX
  using Product = typename hopper::Products<T, 2 * kSums>::Registers;
  hopper::run<Product>(sums, a, b, hopper::scale_out(add), std::make_index_sequence<kSums>());
#elif !defined(__CUDACC__)
  emulator::multiply_groups<T>(sums, a, b, add);
#endif
}

// The same with a in shared memory.
template <typename T, int kSums>
__device__ __forceinline__ void begin_products(float (&sums)[kSums], uint64_t a, uint64_t b,
                                               bool add) {
#if MSDA_PTX
  using Product = typename hopper::Products<T, 2 * kSums>::Shared;
  hopper::run<Product>(sums, a, b, hopper::scale_out(add), std::make_index_sequence<kSums>());
#elif !defined(__CUDACC__)
  emulator::multiply_groups<T>(sums, a, b, add);
#endif
}

// Goes before the products that read or write registers that the thread has used itself.
__device__ __forceinline__ void fence_registers() {
#if MSDA_PTX
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Makes a group of the products begun since the last group.
__device__ __forceinline__ void commit_products() {
#if MSDA_PTX
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most this number of the latest groups is not finished.
template <int kGroups>
__device__ __forceinline__ void wait_for_products() {
#if MSDA_PTX
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
#endif
}

// Keeps the compiler from moving uses of registers across this place.
template <int kCount>
__device__ __forceinline__ void keep_registers(uint32_t (&registers)[kCount]) {
#if MSDA_PTX
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
#endif
}
template <int kCount>
__device__ __forceinline__ void keep_registers(float (&registers)[kCount]) {
#if MSDA_PTX
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
#endif
}

// Barriers, see tensor_core.cuh. Phases also wait for all bytes that were expected.

// Shows barriers that this thread made to TMA and to other blocks of the cluster.
__device__ __forceinline__ void publish_barriers() {
#if MSDA_PTX
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void expect_bytes(uint64_t* barrier, int bytes) {  // and arrives
#if MSDA_PTX
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
#elif !defined(__CUDACC__)
  emulator::arrive(barrier, bytes);
#endif
}

// Tiles by TMA. One thread calls. Coordinates count elements, the fastest dimension first; beyond
// the tensor, zeros are read and nothing is written.

__device__ __forceinline__ void load_tile(void* shared, const TensorMap& map, uint64_t* barrier,
                                          int x, int y) {
#if MSDA_PTX
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
#elif !defined(__CUDACC__)
  const int at[5] = {x, y, 0, 0, 0};
  emulator::read_tile(shared, map, barrier, at);
#endif
}

__device__ __forceinline__ void load_tile(void* shared, const TensorMap& map, uint64_t* barrier,
                                          const int (&at)[5]) {
#if MSDA_PTX
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6, %7}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
      "r"(at[4])
      : "memory");
#elif !defined(__CUDACC__)
  emulator::read_tile(shared, map, barrier, at);
#endif
}

__device__ __forceinline__ void store_tile(const void* shared, const TensorMap& map, int x, int y) {
#if MSDA_PTX
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
      "r"(shared_address(shared)), "r"(x), "r"(y)
      : "memory");
#elif !defined(__CUDACC__)
  emulator::write_tile(shared, map, x, y);
#endif
}

// Shows the thread's writes to shared memory to TMA.
__device__ __forceinline__ void publish_to_tma() {
#if MSDA_PTX
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Waits until TMA has read the shared memory of all tiles that this thread stores.
__device__ __forceinline__ void wait_for_reads_of_stores() {
#if MSDA_PTX
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_stores() {
#if MSDA_PTX
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#if MSDA_PTX
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
#if MSDA_PTX
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// Makes the map of a tensor for TMA.
//
// sizes    of all dimensions, the fastest first
// strides  in bytes, of all dimensions but the fastest
// box      what a copy has of each dimension
// swizzle  bytes of a row of a panel, 128 or 64
template <size_t kRank>
cudaError_t make_map(TensorMap& map, int element_bytes, const void* data,
                     const int64_t (&sizes)[kRank], const int64_t (&strides)[kRank - 1],
                     const int (&box)[kRank], int swizzle) {
#if defined(__CUDACC__)
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                     &found);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  cuuint64_t all_sizes[kRank], all_strides[kRank - 1];
  cuuint32_t all_boxes[kRank], steps[kRank];
  for (size_t i = 0; i < kRank; ++i) {
    all_sizes[i] = static_cast<cuuint64_t>(sizes[i]);
    all_boxes[i] = static_cast<cuuint32_t>(box[i]);
    steps[i] = 1;
    if (i > 0) all_strides[i - 1] = static_cast<cuuint64_t>(strides[i - 1]);
  }
  const auto type =
      element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  const CUresult status =
      encode(&map, type, kRank, const_cast<void*>(data), all_sizes, all_strides, all_boxes, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE,
             swizzle == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return status == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
#else
  map = TensorMap{const_cast<char*>(static_cast<const char*>(data)),
                  {1, 1, 1, 1, 1},
                  {},
                  {1, 1, 1, 1, 1},
                  element_bytes,
                  swizzle};
  map.strides[0] = element_bytes;
  for (size_t i = 0; i < kRank; ++i) {
    map.sizes[i] = sizes[i];
    map.box[i] = box[i];
    if (i > 0) map.strides[i] = strides[i - 1];
  }
  return cudaSuccess;
#endif
}

// Makes the map of weights [N, K] whose rows come in the order that gives a lane of a product
// `lane_columns` consecutive columns of the result. Lane 4 g + t has columns 8 v + 2 t and + 1 of
// the sums, so of each 4 * lane_columns columns, row 8 v + 2 t + b of a tile is row
// lane_columns * t + 2 v + b.
//
// columns  of a tile
// panel    bytes of a row of a panel, 128
inline cudaError_t make_lane_map(TensorMap& map, int element_bytes, const void* weight, int64_t n,
                                 int64_t k, int lane_columns, int columns, int panel) {
  const int group = 4 * lane_columns;
  const int64_t row = element_bytes * k;
  return make_map<5>(map, element_bytes, weight, {k, 2, 4, lane_columns / 2, n / group},
                     {row, lane_columns * row, 2 * row, group * row},
                     {panel / element_bytes, 2, 4, lane_columns / 2, columns / group}, panel);
}

}  // namespace msda
