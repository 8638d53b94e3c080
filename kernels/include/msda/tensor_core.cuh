// Primitives of the tensor cores (compute capability 8.0 and later): 16 x 8 products, matrices
// from shared memory, asynchronous copies into it, and barriers of some warps or of single threads.
// The emulator has a C++ form of each (tests/matrix/cuda_emulator/tensor_core.h).
//
// Fragments are those of mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Lane
// 4 g + t holds, of a 16 x 8 accumulator, columns 2t and 2t + 1 of rows g (0, 1) and g + 8 (2, 3).
#pragma once

#include "msda/packed.cuh"

namespace msda {

// Dynamic shared memory, aligned to 16 bytes.
__device__ __forceinline__ char* dynamic_shared() {
#if defined(__CUDACC__)
  extern __shared__ uint4 msda_dynamic_shared[];
  return reinterpret_cast<char*>(msda_dynamic_shared);
#else
  return emulator::dynamic_shared();
#endif
}

// sums += a * b for a 16 x 16 matrix and a 16 x 8 matrix of T, __half or __nv_bfloat16.
template <typename T>
__device__ __forceinline__ void multiply_accumulate(float (&sums)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1) {
#if MSDA_PTX
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#elif !defined(__CUDACC__)
  emulator::multiply_accumulate<T>(sums, a, b0, b1);
#endif
}

// The same for a 16 x 8 matrix a and an 8 x 8 matrix b: mma.sync.m16n8k8, whose fragments are the
// first words of the others.
template <typename T>
__device__ __forceinline__ void multiply_accumulate(float (&sums)[4], const uint32_t (&a)[2],
                                                    uint32_t b) {
#if MSDA_PTX
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  }
#elif !defined(__CUDACC__)
  emulator::multiply_accumulate<T>(sums, {a[0], a[1], 0, 0}, b, 0);
#endif
}

// Four 8 x 8 matrices of 16-bit numbers from shared memory. Lane i gives the address of row i % 8
// of matrix i / 8, 16 bytes. Lane 4 g + t gets columns 2t and 2t + 1 of row g of each.
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const char* shared) {
#if MSDA_PTX
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared)))
               : "memory");
#elif !defined(__CUDACC__)
  emulator::load_matrices(words, shared, false);
#endif
}

// The same, transposed: lane 4 g + t gets rows 2t and 2t + 1 of column g of each.
__device__ __forceinline__ void load_transposed(uint32_t (&words)[4], const char* shared) {
#if MSDA_PTX
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared)))
               : "memory");
#elif !defined(__CUDACC__)
  emulator::load_matrices(words, shared, true);
#endif
}

// Address in shared memory, as instructions take it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
#if defined(__CUDACC__)
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
#else
  return emulator::shared_address(pointer);
#endif
}

// Begins to copy 16 bytes into shared memory, past L1; zeros where the condition is false, and the
// address is not read then.
__device__ __forceinline__ void copy_async(char* shared, const void* global, bool condition) {
#if MSDA_PTX
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(__cvta_generic_to_global(global)), "r"(condition ? 16 : 0)
               : "memory");
#elif !defined(__CUDACC__)
  emulator::copy_async(shared, global, condition ? 16 : 0);
#endif
}

// Waits for all copies that the thread has begun. A barrier then shows them to other threads.
__device__ __forceinline__ void wait_for_copies() {
#if MSDA_PTX
  asm volatile("cp.async.wait_all;" ::: "memory");
#elif !defined(__CUDACC__)
  emulator::wait_for_copies();
#endif
}

// __syncthreads() of the `threads` threads, whole warps, that name the same barrier, 1 to 15.
__device__ __forceinline__ void sync_some(int barrier, int threads) {
#if MSDA_PTX
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
#elif !defined(__CUDACC__)
  emulator::meet_some(barrier, threads);
#endif
}

// Barriers in shared memory. A phase ends when `threads` have arrived.

__device__ __forceinline__ void init_barrier(uint64_t* barrier, int threads) {
#if MSDA_PTX
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(threads)
               : "memory");
#elif !defined(__CUDACC__)
  emulator::init_barrier(barrier, threads);
#endif
}

__device__ __forceinline__ void arrive(uint64_t* barrier) {
#if MSDA_PTX
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier))
      : "memory");
#elif !defined(__CUDACC__)
  emulator::arrive(barrier, 0);
#endif
}

// Arrives once the copies that the thread has begun are there.
__device__ __forceinline__ void arrive_after_copies(uint64_t* barrier) {
#if MSDA_PTX
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
#elif !defined(__CUDACC__)
  emulator::wait_for_copies();
  emulator::arrive(barrier, 0);
#endif
}

// Waits for the end of the phase of a parity: 0, 1, 0, ... of a new barrier. The phase before the
// first one, of parity 1, has ended.
__device__ __forceinline__ void wait_for_phase(uint64_t* barrier, int parity) {
#if MSDA_PTX
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
      "@done bra end;\n"
      "bra again;\n"
      "end:\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#elif !defined(__CUDACC__)
  emulator::wait_for_phase(barrier, parity);
#endif
}

}  // namespace msda
