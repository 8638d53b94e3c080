// What the two operators take: the names, types and sizes of their inputs, and the one place that
// checks them. Everything here throws std::invalid_argument with a sentence that names the
// argument.
//
// Shape letters as in kernels/include/msda/params.h: N batch, S cells, M heads, D channels of a
// head, Q queries, L levels, P points of a level, K points of all levels.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <vector>

#include "msda/params.h"

namespace msda::trt {

// kPackedAttention: the fused operator with one input `projection` [N, Q, 3 * M * K] for the last
// two, a row of which holds a query's sampling_offsets [M, K, 2] and then its attention_logits
// [M, K]; the plugin is the same, with the field `packed`.
enum class Operator : int32_t { kAttention, kFusedAttention, kPackedAttention };

const char* operator_name(Operator op);
int32_t num_inputs(Operator op);

// The position of the locations (or offsets, or projection), whose second size is Q.
int32_t locations_index(Operator op);

// Whether types[index] is a type of input `index`, given those of the value (input 0) and of
// spatial_shapes (input 1); types[0] to types[index] are read.
bool accepts_type(Operator op, int32_t index, nvinfer1::DataType const* types);

void check_types(Operator op, nvinfer1::DataType const* types, int32_t count);

// Sizes that the inputs agree on; -1 where no input tells (dynamic shapes before they are known).
struct Sizes {
  int64_t batch_size;     // N
  int64_t num_cells;      // S
  int64_t num_heads;      // M
  int64_t head_dim;       // D
  int64_t num_levels;     // L
  int64_t num_queries;    // Q
  int64_t num_points;     // P, -1 when points_per_level is given
  int64_t total_points;   // K
  int64_t reference_dim;  // 2 or 4; -1 without reference points
};

// A negative size in `dims` is unknown and agrees with anything. An empty points_per_level means
// that every level has the same number of points, P.
Sizes check_sizes(Operator op, std::vector<int32_t> const& points_per_level,
                  nvinfer1::Dims const* dims, int32_t count);

// The problem that the kernels take, when every size is known. Checks types and sizes.
Problem read_problem(Operator op, std::vector<int32_t> const& points_per_level,
                     nvinfer1::PluginTensorDesc const* inputs, int32_t count);

}  // namespace msda::trt
