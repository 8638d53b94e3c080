// Which kernel of linear layers with 8-bit inputs runs a problem: this file decides for every
// wrapper. Plain C++.
//
//   plain        quantized_linear_plain.cuh  any size, type and alignment
//   rows         quantized_linear_rows.cuh   int8 without a residual; K a multiple of 16 up to 768;
//                                            N a multiple of 32, of 64 for an 8-bit result, up to
//                                            3072; compute capability 9.0
//   the others   quantized_linear_sm90.cuh   K a multiple of 16; N a multiple of 8, of 16 for an
//                                            8-bit result; compute capability 9.0
//
// The others are CUTLASS's kernels, named as those of linear_choice.h. The names are the values of
// MSDA_QUANTIZED_LINEAR, which forces a kernel.
#pragma once

#include "msda/linear_choice.h"
#include "msda/quantized_linear_params.h"

namespace msda {

enum class QuantizedLinearKernel : int32_t {
  kPlain,
  kRows,
  kPingpong64x128,
  kPingpong64x192,
  kPingpong64x256,
  kPingpong128x128,
  kCooperative128x128,
  kCooperative128x192,
};

inline constexpr QuantizedLinearKernel kQuantizedLinearKernels[] = {
    QuantizedLinearKernel::kPlain,
    QuantizedLinearKernel::kRows,
    QuantizedLinearKernel::kPingpong64x128,
    QuantizedLinearKernel::kPingpong64x192,
    QuantizedLinearKernel::kPingpong64x256,
    QuantizedLinearKernel::kPingpong128x128,
    QuantizedLinearKernel::kCooperative128x128,
    QuantizedLinearKernel::kCooperative128x192,
};

inline const char* name(QuantizedLinearKernel kernel) {
  switch (kernel) {
    case QuantizedLinearKernel::kPlain:
      return "plain";
    case QuantizedLinearKernel::kRows:
      return "rows";
    case QuantizedLinearKernel::kPingpong64x128:
      return "pingpong_64x128";
    case QuantizedLinearKernel::kPingpong64x192:
      return "pingpong_64x192";
    case QuantizedLinearKernel::kPingpong64x256:
      return "pingpong_64x256";
    case QuantizedLinearKernel::kPingpong128x128:
      return "pingpong_128x128";
    case QuantizedLinearKernel::kCooperative128x128:
      return "cooperative_128x128";
    case QuantizedLinearKernel::kCooperative128x192:
      return "cooperative_128x192";
  }
  return "";
}

// What follows the product in a CUTLASS kernel. The activation is an argument of the kernel.
enum class Ending : int32_t {
  kMasked,     // activation and mask, with a 16-bit result; without a mask, ones
  kResidual,   // activation and residual, with a 16-bit result
  kQuantized,  // activation, with an 8-bit result
};

struct QuantizedLinearForm {
  QuantizedLinearKernel kernel;
  int rows, columns;                  // of a tile
  int cluster_rows, cluster_columns;  // in tiles; a cluster loads what its tiles share once
  EightBits input_type;
  Ending ending;
};

// The forms of int8 won a measurement on an H100 among 28, at the sizes of Swin-L and of Co-DETR
// (kernels/lab/time_quantized_linear.py); those that lost to "rows" later are gone. A thread has
// twice as many registers of sums for E4M3, see quantized_linear_sm90.cuh, so its tiles are
// smaller; they follow those of int8, by analogy.
inline constexpr QuantizedLinearForm kQuantizedLinearForms[] = {
    {QuantizedLinearKernel::kPingpong128x128, 128, 128, 2, 1, EightBits::kInt8, Ending::kMasked},
    {QuantizedLinearKernel::kPingpong64x256, 64, 256, 1, 1, EightBits::kInt8, Ending::kMasked},
    {QuantizedLinearKernel::kPingpong128x128, 128, 128, 1, 1, EightBits::kInt8, Ending::kResidual},
    {QuantizedLinearKernel::kCooperative128x192, 128, 192, 1, 1, EightBits::kInt8,
     Ending::kResidual},
    {QuantizedLinearKernel::kPingpong128x128, 128, 128, 1, 2, EightBits::kInt8, Ending::kQuantized},
    {QuantizedLinearKernel::kPingpong64x128, 64, 128, 2, 1, EightBits::kFloat8, Ending::kMasked},
    {QuantizedLinearKernel::kCooperative128x128, 128, 128, 2, 1, EightBits::kFloat8,
     Ending::kMasked},
    {QuantizedLinearKernel::kPingpong64x192, 64, 192, 1, 1, EightBits::kFloat8, Ending::kResidual},
    {QuantizedLinearKernel::kCooperative128x128, 128, 128, 1, 1, EightBits::kFloat8,
     Ending::kResidual},
    {QuantizedLinearKernel::kPingpong64x128, 64, 128, 1, 1, EightBits::kFloat8, Ending::kQuantized},
    {QuantizedLinearKernel::kCooperative128x128, 128, 128, 1, 2, EightBits::kFloat8,
     Ending::kQuantized},
};

inline constexpr bool is_cooperative(QuantizedLinearKernel kernel) {
  return kernel == QuantizedLinearKernel::kCooperative128x128 ||
         kernel == QuantizedLinearKernel::kCooperative128x192;
}

inline bool fits(const QuantizedLinearForm& form, const QuantizedLinearProblem& problem) {
  if (form.input_type != problem.input_type) return false;
  if (problem.quantized_output) {
    return form.ending == Ending::kQuantized && !problem.residual && !problem.masked;
  }
  return form.ending == (problem.residual ? Ending::kResidual : Ending::kMasked) &&
         !(problem.residual && problem.masked);
}

// Both warp groups of a cooperative kernel run the epilogue of a tile, and multiply nothing
// meanwhile. In a pingpong kernel one warp group at a time runs an epilogue. The factors fit the
// measurement above.
inline double estimate(const QuantizedLinearForm& form, const QuantizedLinearProblem& problem) {
  const double inputs = problem.inputs / 2.0;
  if (form.input_type == EightBits::kFloat8 || !is_cooperative(form.kernel)) {
    return estimate(form, problem.rows, problem.outputs, inputs);
  }
  return estimate(form, problem.rows, problem.outputs, inputs, 1.3, 0.75);
}

// The kernel "rows": panels of 128 numbers of K, and the most columns, whose scales are in shared
// memory.
inline constexpr int kRowsMostOutputs = 3072;
inline int rows_panels(const QuantizedLinearProblem& problem) {
  return static_cast<int>((problem.inputs + 127) / 128);
}
inline bool fits_rows(const QuantizedLinearProblem& problem) {
  const int panels = rows_panels(problem);
  return problem.input_type == EightBits::kInt8 && !problem.residual && panels >= 1 &&
         (panels <= 4 || panels == 6) && problem.inputs % 16 == 0 &&
         problem.outputs % (problem.quantized_output ? 64 : 32) == 0 &&
         problem.outputs <= kRowsMostOutputs;
}

// Returns the form of a problem with the least estimated time, or null where no form fits.
inline const QuantizedLinearForm* fastest_form(const QuantizedLinearProblem& problem) {
  const QuantizedLinearForm* best = nullptr;
  for (const QuantizedLinearForm& form : kQuantizedLinearForms) {
    if (!fits(form, problem)) continue;
    if (best == nullptr || estimate(form, problem) < estimate(*best, problem)) best = &form;
  }
  return best;
}

// Whether a kernel can run the problem on some GPU.
inline bool can_run(QuantizedLinearKernel kernel, const QuantizedLinearProblem& problem,
                    const QuantizedLinearArguments& arguments) {
  if (kernel == QuantizedLinearKernel::kPlain) return true;
  if (kernel == QuantizedLinearKernel::kRows) {
    return kHasHopper && fits_rows(problem) && aligned(arguments.x, 16) &&
           aligned(arguments.weight, 16) && aligned(arguments.output, 16);
  }
  bool has_form = false;
  for (const QuantizedLinearForm& form : kQuantizedLinearForms) {
    has_form = has_form || (form.kernel == kernel && fits(form, problem));
  }
  const int64_t columns = problem.quantized_output ? 16 : 8;  // of 16 bytes
  return kHasSm90 && has_form && problem.inputs > 0 && problem.inputs % 16 == 0 &&
         problem.outputs % columns == 0 && aligned(arguments.x, 16) &&
         aligned(arguments.weight, 16) && aligned(arguments.scale, 16) &&
         aligned(arguments.bias, 16) && aligned(arguments.residual, 16) &&
         aligned(arguments.output, 16);
}

// The fastest kernel. "rows" is the fastest one of those that can run a problem, or within 7% of it
// (benchmarks/results/quantized_linear_rows_h200.txt).
inline QuantizedLinearKernel choose_quantized_linear(const QuantizedLinearProblem& problem,
                                                     const QuantizedLinearArguments& arguments) {
  if (can_run(QuantizedLinearKernel::kRows, problem, arguments)) {
    return QuantizedLinearKernel::kRows;
  }
  const QuantizedLinearForm* const form = fastest_form(problem);
  return form != nullptr && can_run(form->kernel, problem, arguments)
             ? form->kernel
             : QuantizedLinearKernel::kPlain;
}

}  // namespace msda
