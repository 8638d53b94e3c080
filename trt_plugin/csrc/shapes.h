// Names and sizes of the MSDA operators' inputs, and the check of the sizes.
//
// Shape letters as in kernels/include/msda/params.h: N batch, S cells, M heads, D channels of a
// head, Q queries, L levels, P points of a level, K points of all levels.
#pragma once

#include <cstdint>
#include <vector>

#include "plugin.h"

namespace msda::trt {

// kPackedAttention is the fused operator with one input `projection` [N, Q, 3 * M * K] in place of
// the last two. A row of it holds a query's sampling_offsets [M, K, 2], then its attention_logits
// [M, K]. The field `packed` of the fused plugin selects it.
enum class Operator : int32_t { kAttention, kFusedAttention, kPackedAttention };

const char* operator_name(Operator op);
std::vector<Input> inputs(Operator op);

// Returns the index of the locations, offsets or projection. The second size of this input is Q.
int32_t locations_index(Operator op);

// Sizes on which the inputs agree. A size that no input tells, such as a dynamic one, is -1.
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

// Checks the sizes of all inputs. Throws std::invalid_argument with a message that names the
// argument. A negative size in `dims` is unknown and agrees with every other. An empty
// points_per_level means that every level has the same number of points, P.
Sizes check_sizes(Operator op, std::vector<int32_t> const& points_per_level, Dims const* dims);

}  // namespace msda::trt
