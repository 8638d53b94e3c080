// Window attention: "plain" of window_choice.h, which runs any problem. The kernel to read first.
//
// Problem   out = softmax(q k^T / sqrt(d) + bias + mask) v in each window of the padded and shifted
//           map (Swin Transformer, arXiv:2103.14030, eq. 4; window_cells.cuh).
// Layout    qkv [N,H,W,3,heads,d], bias [heads,L,L], padding [3,heads,d], out [N,H,W,heads,d].
//           Logits, softmax and sums are float (double with doubles). With an output_scale, out is
//           the rounded result / output_scale in int8.
// Threads   A warp computes 32 channels of one query cell and head. It takes 32 keys at a time.
//           Each lane makes the logit of one key, and then adds up one channel of all 32 values.
//           The softmax is computed online: a new maximum scales the earlier sums.
// Limits    those of check() in window_params.h. Deterministic: a fixed order of sums.
#pragma once

#include "msda/cuda_launch.cuh"
#include "msda/quantize.cuh"
#include "msda/vector.cuh"
#include "msda/window_cells.cuh"

namespace msda {

inline constexpr int kPlainWindowThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kPlainWindowThreads)
    window_plain_kernel(const __grid_constant__ WindowMap map,
                        const __grid_constant__ WindowArguments arguments, int num_heads,
                        int head_dim, float output_factor) {
  using Real = Accumulate<T>;
  const int cells = map.size * map.size;
  const int channels = num_heads * head_dim;
  const int parts = (head_dim + warpSize - 1) / warpSize;
  const int lane = static_cast<int>(threadIdx.x) % warpSize;

  // The warp's part of the channels, its head, query cell and window.
  int64_t rest = (static_cast<int64_t>(blockIdx.x) * kPlainWindowThreads + threadIdx.x) / warpSize;
  const int part = static_cast<int>(rest % parts);
  rest /= parts;
  const int head = static_cast<int>(rest % num_heads);
  rest /= num_heads;
  const int query = static_cast<int>(rest % cells);
  rest /= cells;
  if (rest >= map.windows) return;
  const Window window = map.window(static_cast<int>(rest));
  const int query_row = query / map.size, query_column = query % map.size;
  const int64_t query_cell = map.cell(window, query_row, query_column);
  if (query_cell < 0) return;  // the result has no padding

  const T* const qkv = static_cast<const T*>(arguments.qkv);
  const T* const padding = static_cast<const T*>(arguments.padding);
  const T* const q = qkv + query_cell * 3 * channels + head * head_dim;
  const T* const bias =
      static_cast<const T*>(arguments.bias) + (static_cast<int64_t>(head) * cells + query) * cells;
  const auto region = [&](int row, int column) {
    return region_of(row, column, map.row_split(window), map.column_split(window));
  };
  const int query_region = region(query_row, query_column);
  const Real scale = 1 / sqrt(static_cast<Real>(head_dim));
  const int channel = part * warpSize + lane;

  // q, k or v (0, 1, 2) of a key's cell; null: zeros.
  const auto find = [&](int key, int which) -> const T* {
    const int64_t cell = map.cell(window, key / map.size, key % map.size);
    const T* const start = cell >= 0 ? qkv + cell * 3 * channels : padding;
    return start == nullptr ? nullptr : start + which * channels + head * head_dim;
  };

  Real largest = -INFINITY, total = 0, sum = 0;
  for (int first = 0; first < cells; first += warpSize) {
    const int key = first + lane;
    Real logit = -INFINITY;
    if (key < cells) {
      const T* const k = find(key, 1);
      Real product = 0;
      for (int i = 0; k != nullptr && i < head_dim; ++i) product += widen(q[i]) * widen(k[i]);
      logit = product * scale + widen(bias[key]);
      if (region(key / map.size, key % map.size) != query_region) logit += kWindowMask;
    }
    const Real before = largest;
    largest = max(largest, max_over_group(logit, warpSize));
    // Where every logit is -infinity, any finite maximum keeps the exponentials zero, not NaN.
    const Real origin = largest == -INFINITY ? Real(0) : largest;
    const Real weight = exp(logit - origin);
    const Real fade = exp(before - origin);
    total = total * fade + sum_over_group(weight, warpSize);
    sum *= fade;
    for (int i = 0; i < warpSize && first + i < cells; ++i) {
      const Real key_weight = __shfl_sync(kFullMask, weight, i);
      const T* const v = find(first + i, 2);
      if (v != nullptr && channel < head_dim) sum += key_weight * widen(v[channel]);
    }
  }
  if (channel >= head_dim) return;
  const int64_t place = query_cell * channels + head * head_dim + channel;
  const Real result = sum / total;
  if (output_factor == 0) {
    static_cast<T*>(arguments.output)[place] = narrow<T>(result);
  } else {
    static_cast<int8_t*>(arguments.output)[place] =
        quantize<int8_t>(static_cast<float>(result) * output_factor);
  }
}

template <typename T>
cudaError_t launch_window_plain(const WindowProblem& problem, const WindowArguments& arguments,
                                cudaStream_t stream) {
  const int64_t parts = (problem.head_dim + 31) / 32;
  const int64_t warps =
      problem.num_windows() * problem.window_size * problem.window_size * problem.num_heads * parts;
  return launch_linear(window_plain_kernel<T>, warps * 32, kPlainWindowThreads, stream,
                       WindowMap(problem), arguments, static_cast<int>(problem.num_heads),
                       static_cast<int>(problem.head_dim), problem.output_factor());
}

}  // namespace msda
