// Window attention in float arithmetic: "rows" of window_choice.h, for float values and for windows
// that window_tensor_core.cuh does not take.
//
// Problem   that of window_plain.cuh, with 16, 32 or 64 channels a head.
// Threads   A thread has one query cell of one head: q and the sums are its registers. A block has
//           up to 128 queries of one window and head.
// Shared    k and v of 32 cells at a time, as float. The threads of a warp read the same key, so
//           that a read of 16 bytes serves four products of 32 queries.
// Softmax   online, 8 keys in a step: a new maximum scales the earlier sums.
// Limits    those of check() in window_params.h, and vectors of 16 bytes. Deterministic.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/quantize.cuh"
#include "msda/vector.cuh"
#include "msda/window_cells.cuh"

namespace msda {

inline constexpr int kRowsThreads = 128;

template <int kHeadDim>
struct alignas(16) SharedCell {
  float k[kHeadDim], v[kHeadDim];
  int region;
};

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kRowsThreads)
    window_rows_kernel(const __grid_constant__ WindowMap map,
                       const __grid_constant__ WindowArguments arguments, int num_heads,
                       float output_factor) {
  constexpr int kKeys = 32;                // in shared memory
  constexpr int kStep = 8;                 // keys
  constexpr int kVector = 16 / sizeof(T);  // elements of a load
  constexpr int kVectors = kHeadDim / kVector;
  __shared__ SharedCell<kHeadDim> shared[kKeys];

  const int cells = map.size * map.size;
  const int channels = num_heads * kHeadDim;
  const int thread = static_cast<int>(threadIdx.x);

  // The block's queries, head and window.
  const int parts = (cells + kRowsThreads - 1) / kRowsThreads;
  int rest = static_cast<int>(blockIdx.x);
  const int query = rest % parts * kRowsThreads + thread;
  rest /= parts;
  const int head = rest % num_heads;
  const Window window = map.window(rest / num_heads);

  const auto find = [&](int cell) { return map.cell(window, cell / map.size, cell % map.size); };
  const auto region = [&](int cell) {
    return region_of(cell / map.size, cell % map.size, map.row_split(window),
                     map.column_split(window));
  };
  const T* const qkv = static_cast<const T*>(arguments.qkv) + head * kHeadDim;
  const T* const padding = static_cast<const T*>(arguments.padding) + head * kHeadDim;
  const T* const bias =
      static_cast<const T*>(arguments.bias) + (static_cast<int64_t>(head) * cells + query) * cells;

  // The result has no padding, but all threads copy keys.
  const int64_t query_cell = query < cells ? find(query) : -1;
  const bool works = query_cell >= 0;
  const int query_region = region(query);
  float q[kHeadDim], sums[kHeadDim];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Vector<T, kVector> vector{};
    if (works) vector = load<T, kVector>(qkv + query_cell * 3 * channels + i * kVector);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      q[i * kVector + j] = vector[j];
      sums[i * kVector + j] = 0;
    }
  }

  const float scale = 1 / sqrtf(static_cast<float>(kHeadDim));
  float largest = -INFINITY, total = 0;
  for (int first = 0; first < cells; first += kKeys) {
    __syncthreads();
    for (int i = thread; i < kKeys * kVectors; i += kRowsThreads) {
      const int key = i / kVectors, channel = i % kVectors * kVector;
      const int64_t cell = first + key < cells ? find(first + key) : -1;
      const T* const source = cell >= 0 ? qkv + cell * 3 * channels : padding;
      Vector<T, kVector> k{}, v{};
      if (cell >= 0 || (arguments.padding != nullptr && first + key < cells)) {
        k = load<T, kVector>(source + channels + channel);
        v = load<T, kVector>(source + 2 * channels + channel);
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        shared[key].k[channel + j] = k[j];
        shared[key].v[channel + j] = v[j];
      }
    }
    if (thread < kKeys) shared[thread].region = region(first + thread);
    __syncthreads();
    if (!works) continue;
    for (int start = 0; start < kKeys && first + start < cells; start += kStep) {
      float weights[kStep], most = largest;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const int key = start + i;
        float product = 0;
#pragma unroll
        for (int j = 0; j < kHeadDim; ++j) product += q[j] * shared[key].k[j];
        weights[i] = -INFINITY;
        if (first + key < cells) {
          weights[i] = product * scale + widen(bias[first + key]);
          if (shared[key].region != query_region) weights[i] += kWindowMask;
        }
        most = fmaxf(most, weights[i]);
      }
      // Where every logit is -infinity, any finite maximum keeps the exponentials zero, not NaN.
      const float origin = most == -INFINITY ? 0.0f : most;
      const float fade = expf(largest - origin);
      largest = most;
      total *= fade;
#pragma unroll
      for (int j = 0; j < kHeadDim; ++j) sums[j] *= fade;
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const float weight = expf(weights[i] - origin);
        total += weight;
#pragma unroll
        for (int j = 0; j < kHeadDim; ++j) sums[j] += weight * shared[start + i].v[j];
      }
    }
  }
  if (!works) return;
  const float inverse = 1 / total;
  const int64_t place = query_cell * channels + head * kHeadDim;
  if (output_factor == 0) {
    T* const output = static_cast<T*>(arguments.output) + place;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      Vector<T, kVector> vector;
#pragma unroll
      for (int j = 0; j < kVector; ++j) vector.set(j, sums[i * kVector + j] * inverse);
      *reinterpret_cast<Vector<T, kVector>*>(output + i * kVector) = vector;
    }
  } else {
    int8_t* const output = static_cast<int8_t*>(arguments.output) + place;
#pragma unroll
    for (int i = 0; i < kHeadDim; i += 16) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto scaled = [&](int k) { return sums[i + 4 * j + k] * inverse * output_factor; };
        words[j] = quantize_four(scaled(0), scaled(1), scaled(2), scaled(3));
      }
      *reinterpret_cast<uint4*>(output + i) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// Runs a problem that can_run().
template <typename T>
cudaError_t run_window_rows(const WindowProblem& problem, const WindowArguments& arguments,
                            cudaStream_t stream) {
  const int64_t cells = problem.window_size * problem.window_size;
  const int64_t parts = (cells + kRowsThreads - 1) / kRowsThreads;
  const int64_t blocks = problem.num_windows() * problem.num_heads * parts;
  return with_constant<16, 32, 64>(problem.head_dim, [&](auto channels) {
    return launch_linear(window_rows_kernel<T, decltype(channels)::value>, blocks * kRowsThreads,
                         kRowsThreads, stream, WindowMap(problem), arguments,
                         static_cast<int>(problem.num_heads), problem.output_factor());
  });
}

}  // namespace msda
