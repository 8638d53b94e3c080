// The memory that a backward works with beside its results: how much, and what lies where. Plain
// C++; the launchers allocate nothing, so their callers ask here.
//
//   sums       where grad_value is wanted deterministic: its sums in fixed point (see
//              backward_fixed.cuh), 8 bytes for each of the N*S*M*D elements, 16 with double values
//   exponents  with it: how large a head's contributions can be, [N, M]
//   moved      where the gradient of the reference points is wanted: that of every sample's pixel,
//              [N, Q, M, K, 2] of the type of the sums
#pragma once

#include <cstddef>
#include <cstdint>

#include "msda/params.h"

namespace msda {

struct BackwardWork {
  int64_t* sums = nullptr;
  int32_t* exponents = nullptr;
  void* moved = nullptr;
  size_t bytes = 0;        // of all of them
  int32_t query_bits = 0;  // the least i with 2^i >= Q
  int32_t point_bits = 0;  // the same of K
};

// The least i with 2^i >= x.
inline int32_t ceil_log2(int64_t x) {
  int32_t exponent = 0;
  while (exponent < 62 && (int64_t{1} << exponent) < x) ++exponent;
  return exponent;
}

// What arguments.work holds; with a null pointer there, only `bytes` means something.
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
  work.moved = take(arguments.grad_reference_points != nullptr,
                    heads * problem.num_queries * problem.total_points, is_double ? 16 : 8);
  return work;
}

}  // namespace msda
