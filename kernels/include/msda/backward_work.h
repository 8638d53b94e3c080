// The work memory of a backward: its size and what lies where. The caller allocates it, because
// the launchers allocate nothing. Plain C++.
//
//   sums         for a deterministic grad_value: its sums in fixed point (fixed_point.cuh), 8 bytes
//                for each of the N*S*M*D elements, 16 with double values
//   exponents    with sums: bounds of the contributions of each head, [N, M]
//   grad_pixels  for the gradient of the reference points: that of every sample's pixel
//                coordinates, [N, Q, M, K, 2] of the type of the sums
#pragma once

#include <cstddef>
#include <cstdint>

#include "msda/params.h"

namespace msda {

struct BackwardWork {
  int64_t* sums = nullptr;
  int32_t* exponents = nullptr;
  void* grad_pixels = nullptr;
  size_t bytes = 0;        // of all three
  int32_t query_bits = 0;  // ceil(log2(Q))
  int32_t point_bits = 0;  // ceil(log2(K))
};

inline int32_t ceil_log2(int64_t x) {
  int32_t exponent = 0;
  while (exponent < 62 && (int64_t{1} << exponent) < x) ++exponent;
  return exponent;
}

// The layout of arguments.work. Where that is null, only `bytes` is set.
inline BackwardWork backward_work(const Problem& problem, const BackwardArguments& arguments) {
  const bool is_double = problem.value_type == DataType::kFloat64;
  BackwardWork work;
  work.query_bits = ceil_log2(problem.num_queries);
  work.point_bits = ceil_log2(problem.total_points);
  const auto take = [&](bool wanted, int64_t count, size_t size) -> void* {
    if (!wanted) return nullptr;
    char* const start = arguments.work ? static_cast<char*>(arguments.work) + work.bytes : nullptr;
    work.bytes += (static_cast<size_t>(count) * size + 15) / 16 * 16;
    return start;
  };
  const int64_t heads = problem.batch_size * problem.num_heads;
  work.sums = static_cast<int64_t*>(take(
      arguments.deterministic, heads * problem.num_cells * problem.head_dim, is_double ? 16 : 8));
  work.exponents = static_cast<int32_t*>(take(arguments.deterministic, heads, 4));
  work.grad_pixels = take(arguments.grad_reference_points != nullptr,
                          heads * problem.num_queries * problem.total_points, is_double ? 16 : 8);
  return work;
}

}  // namespace msda
