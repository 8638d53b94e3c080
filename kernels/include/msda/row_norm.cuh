// Layer normalisation in the epilogue of a matrix product, for tiles that have whole rows.
//
// Problem   out = (y - mean) / sqrt(variance + eps) * weight + bias, where y is the row of sums
//           plus its bias and residual, with mean and variance of the row, as in
//           linear_plain.cuh.
// Layout    WGMMA leaves two rows of 64 x N sums in the four lanes of a quad. Lane l of a warp has
//           the columns 2 (l % 4) and 2 (l % 4) + 1 of every eight, of both rows.
// Threads   Each lane keeps its N / 2 numbers in registers. A quad adds up its sums by shuffles,
//           so no row needs shared memory, and no row depends on another.
#pragma once

#include "msda/device.cuh"
#include "msda/sm90_gemm.cuh"

namespace msda::sm90 {

// A node of an epilogue whose tile is 64 x kColumns. A child gives the residual; without one there
// is none. T is the type of the parameters and of the result.
template <class T, int kColumns>
struct RowNorm : cutlass::epilogue::fusion::Sm90VisitorImpl<> {
  static constexpr int kNumbers = kColumns / 2;  // of a lane

  struct Arguments {
    const T* bias;         // of the sums; null: zeros
    const T* norm_weight;  // of the normalisation, as norm_bias
    const T* norm_bias;
    float eps;
  };
  using Params = Arguments;
  struct SharedStorage {};

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(const ProblemShape& /*shape*/,
                                                  const Arguments& arguments, void* /*work*/) {
    return arguments;
  }
  template <class ProblemShape>
  static bool can_implement(const ProblemShape& /*shape*/, const Arguments& /*arguments*/) {
    return true;
  }
  template <class ProblemShape>
  static size_t get_workspace_size(const ProblemShape& /*shape*/, const Arguments& /*arguments*/) {
    return 0;
  }
  template <class ProblemShape>
  static cutlass::Status initialize_workspace(const ProblemShape& /*shape*/,
                                              const Arguments& /*arguments*/, void* /*work*/,
                                              cudaStream_t /*stream*/,
                                              cutlass::CudaHostAdapter* /*adapter*/ = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE RowNorm() {}
  CUTLASS_HOST_DEVICE RowNorm(const Params& parameters, const SharedStorage& /*storage*/)
      : params(&parameters) {}

  const Params* params = nullptr;

  struct ConsumerStoreCallbacks : cutlass::epilogue::fusion::EmptyConsumerStoreCallbacks {
    const Params* params;
    int first_column;  // of the lane

    CUTLASS_DEVICE ConsumerStoreCallbacks(const Params* params, int lane)
        : params(params), first_column(lane % 4 * 2) {}

    // Number i of a lane: its row is i / 2 % 2, and its column that of i / 4 eights.
    template <class... Residuals>
    CUTLASS_DEVICE cutlass::Array<T, kNumbers> visit(
        const cutlass::Array<float, kNumbers>& sums, int /*epi_v*/, int /*epi_m*/, int /*epi_n*/,
        const cutlass::Array<Residuals, kNumbers>&... residual) const {
      cutlass::Array<float, kNumbers> y = sums;
      ((for_each([&](int i) { y[i] += static_cast<float>(residual[i]); })), ...);
      if (params->bias != nullptr) {
        for_each_eight([&](int i, int column) {
          const float2 bias = pair(params->bias, column);
          y[i] += bias.x, y[i + 1] += bias.y, y[i + 2] += bias.x, y[i + 3] += bias.y;
        });
      }
      float mean[2], factor[2];
      sum_rows([&](int i) { return y[i]; }, mean);
      for (float& number : mean) number /= kColumns;
      const auto square = [&](int i) {
        const float difference = y[i] - mean[i / 2 % 2];
        return difference * difference;
      };
      sum_rows(square, factor);
      for (float& number : factor) number = 1 / sqrtf(number / kColumns + params->eps);
      for_each_eight([&](int i, int column) {
        const float2 weight = pair(params->norm_weight, column);
        const float2 bias = pair(params->norm_bias, column);
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < 4; ++j) {
          y[i + j] = fmaf((y[i + j] - mean[j / 2]) * factor[j / 2], j % 2 ? weight.y : weight.x,
                          j % 2 ? bias.y : bias.x);
        }
      });
      return cutlass::NumericArrayConverter<T, float, kNumbers>{}(y);
    }

   private:
    template <class Take>
    CUTLASS_DEVICE static void for_each(const Take& take) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kNumbers; ++i) take(i);
    }

    // Calls take() with the first of four numbers, which lie in two rows and in two columns.
    template <class Take>
    CUTLASS_DEVICE void for_each_eight(const Take& take) const {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kNumbers; i += 4) take(i, first_column + 2 * i);
    }

    CUTLASS_DEVICE static float2 pair(const T* numbers, int column) {
      const auto two = *reinterpret_cast<const cutlass::AlignedArray<T, 2>*>(numbers + column);
      return {static_cast<float>(two[0]), static_cast<float>(two[1])};
    }

    // Adds up number(i) over each row. Eight sums at once wait less for each other than two.
    template <class Number>
    CUTLASS_DEVICE static void sum_rows(const Number& number, float (&sums)[2]) {
      float parts[8] = {};
      for_each([&](int i) { parts[i % 8] += number(i); });
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        const float* const first = parts + 2 * row;
        sums[row] = sum_over_group((first[0] + first[1]) + (first[4] + first[5]), 4);
      }
    }
  };

  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      const cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Args...>& args) {
    using Copy = decltype(args.tiled_copy);
    using EpilogueTile = decltype(args.epi_tile);
    static_assert(kReferenceSource && has_rows_in_quads<Copy, EpilogueTile>());
    return ConsumerStoreCallbacks(params, args.thread_idx);
  }

 private:
  // Whether a warp group has the numbers of a tile as the file's comment says. `Copy` copies them
  // from registers.
  template <class Copy, class EpilogueTile>
  static constexpr bool has_rows_in_quads() {
    const auto places =
        cute::group<1, 3>(Copy::tidfrg_S(cute::make_identity_layout(cute::shape(EpilogueTile{}))));
    if (cute::size<0>(places) != 128 || cute::size<1>(places) != kNumbers) return false;
    // The place of (thread, i) is the sum of those of (thread, 0) and (0, i).
    bool same = true;
    for (int thread = 0; thread < 128; ++thread) {
      const auto place = places(thread, 0);
      same = same && cute::get<0>(place) == thread / 32 * 16 + thread % 32 / 4 &&
             cute::get<1>(place) == thread % 4 * 2;
    }
    for (int i = 0; i < kNumbers; ++i) {
      const auto place = places(0, i);
      same =
          same && cute::get<0>(place) == i / 2 % 2 * 8 && cute::get<1>(place) == i / 4 * 8 + i % 2;
    }
    return same;
  }
};

}  // namespace msda::sm90
