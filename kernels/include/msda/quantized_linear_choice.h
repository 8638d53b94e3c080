// Which kernel of linear layers with 8-bit inputs runs a problem: this file decides for every
// wrapper. Plain C++.
//
//   plain        quantized_linear_plain.cuh  any size, type and alignment
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
  kPingpong64x128,
  kPingpong64x192,
  kPingpong64x256,
  kPingpong128x128,
  kCooperative128x128,
  kCooperative128x192,
  kCooperative256x128,
};

inline constexpr QuantizedLinearKernel kQuantizedLinearKernels[] = {
    QuantizedLinearKernel::kPlain,
    QuantizedLinearKernel::kPingpong64x128,
    QuantizedLinearKernel::kPingpong64x192,
    QuantizedLinearKernel::kPingpong64x256,
    QuantizedLinearKernel::kPingpong128x128,
    QuantizedLinearKernel::kCooperative128x128,
    QuantizedLinearKernel::kCooperative128x192,
    QuantizedLinearKernel::kCooperative256x128,
};

inline const char* name(QuantizedLinearKernel kernel) {
  switch (kernel) {
    case QuantizedLinearKernel::kPlain:
      return "plain";
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
    case QuantizedLinearKernel::kCooperative256x128:
      return "cooperative_256x128";
  }
  return "";
}

// What follows the product in a CUTLASS kernel. The activation is an argument of the kernel.
enum class Ending : int32_t {
  kMasked,           // activation and mask, with a 16-bit result; without a mask, ones
  kResidual,         // activation and residual, with a 16-bit result
  kQuantized,        // activation, with an 8-bit result
  kMaskedQuantized,  // activation and mask, with an 8-bit result
};

struct QuantizedLinearForm {
  QuantizedLinearKernel kernel;
  int rows, columns;                  // of a tile
  int cluster_rows, cluster_columns;  // in tiles; a cluster loads what its tiles share once
  EightBits input_type;
  Ending ending;
};

// The forms of int8 won a measurement on an H100 among 28, at the sizes of Swin-L and of Co-DETR
// (kernels/lab/time_quantized_linear.py), but the one of kMaskedQuantized, which follows
// kQuantized. A thread has twice as many registers of sums for E4M3,
// see quantized_linear_sm90.cuh, so its tiles are smaller; they follow those of int8, by analogy.
inline constexpr QuantizedLinearForm kQuantizedLinearForms[] = {
    {QuantizedLinearKernel::kPingpong128x128, 128, 128, 2, 1, EightBits::kInt8, Ending::kMasked},
    {QuantizedLinearKernel::kPingpong64x256, 64, 256, 1, 1, EightBits::kInt8, Ending::kMasked},
    {QuantizedLinearKernel::kCooperative256x128, 256, 128, 1, 1, EightBits::kInt8, Ending::kMasked},
    {QuantizedLinearKernel::kPingpong128x128, 128, 128, 1, 1, EightBits::kInt8, Ending::kResidual},
    {QuantizedLinearKernel::kCooperative128x192, 128, 192, 1, 1, EightBits::kInt8,
     Ending::kResidual},
    {QuantizedLinearKernel::kPingpong128x128, 128, 128, 1, 2, EightBits::kInt8, Ending::kQuantized},
    {QuantizedLinearKernel::kCooperative256x128, 256, 128, 1, 2, EightBits::kInt8,
     Ending::kQuantized},
    {QuantizedLinearKernel::kPingpong128x128, 128, 128, 1, 2, EightBits::kInt8,
     Ending::kMaskedQuantized},
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
         kernel == QuantizedLinearKernel::kCooperative128x192 ||
         kernel == QuantizedLinearKernel::kCooperative256x128;
}

inline bool fits(const QuantizedLinearForm& form, const QuantizedLinearProblem& problem) {
  if (form.input_type != problem.input_type) return false;
  if (problem.quantized_output) {
    const Ending ending = problem.masked ? Ending::kMaskedQuantized : Ending::kQuantized;
    return form.ending == ending && !problem.residual;
  }
  return form.ending == (problem.residual ? Ending::kResidual : Ending::kMasked) &&
         !(problem.residual && problem.masked);
}

// Both warp groups of a cooperative kernel run the epilogue of a tile, and multiply nothing
// meanwhile. In a pingpong kernel one warp group at a time runs an epilogue. Both warp groups gain
// most where the epilogue has a GELU or stores 16 bits. The factors fit the measurement above.
inline double estimate(const QuantizedLinearForm& form, const QuantizedLinearProblem& problem) {
  const double inputs = problem.inputs / 2.0;
  if (form.input_type == EightBits::kFloat8 || !is_cooperative(form.kernel)) {
    return estimate(form, problem.rows, problem.outputs, inputs);
  }
  const bool is_short = problem.quantized_output && problem.activation != Activation::kGelu;
  return estimate(form, problem.rows, problem.outputs, inputs, 1.3, is_short ? 1 : 0.75);
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

// The fastest kernel.
inline QuantizedLinearKernel choose_quantized_linear(const QuantizedLinearProblem& problem,
                                                     const QuantizedLinearArguments& arguments) {
  const QuantizedLinearForm* const form = fastest_form(problem);
  return form != nullptr && can_run(form->kernel, problem, arguments)
             ? form->kernel
             : QuantizedLinearKernel::kPlain;
}

}  // namespace msda
