// Which kernel of linear layers runs a problem: this file decides for every wrapper. Plain C++.
//
//   plain        linear_plain.cuh  any size, type and alignment
//   the others   linear_sm90.cuh   half and bfloat16; K and N multiples of 8; compute
//   capability 9.0
//
// The others are CUTLASS's kernels, named by their schedule and the rows and columns of a tile. A
// build has them if it has CUDA architecture 90. The names are the values of MSDA_LINEAR, which
// forces a kernel.
#pragma once

#include "msda/forward_choice.h"
#include "msda/linear_params.h"

namespace msda {

#ifdef MSDA_WITH_SM90
inline constexpr bool kHasSm90 = true;
#else
inline constexpr bool kHasSm90 = false;
#endif

// Whether the build has the kernels for compute capability 9.0 that are not CUTLASS's. The emulator
// runs them too.
#if defined(MSDA_WITH_SM90) || defined(MSDA_EMULATED)
#define MSDA_WITH_HOPPER
inline constexpr bool kHasHopper = true;
#else
inline constexpr bool kHasHopper = false;
#endif

enum class LinearKernel : int32_t {
  kPlain,
  kPingpong64x192,
  kPingpong64x256,
  kPingpong128x64,
  kPingpong128x128,
  kCooperative128x192,
  kCooperative128x256,
};

inline constexpr LinearKernel kLinearKernels[] = {LinearKernel::kPlain,
                                                  LinearKernel::kPingpong64x192,
                                                  LinearKernel::kPingpong64x256,
                                                  LinearKernel::kPingpong128x64,
                                                  LinearKernel::kPingpong128x128,
                                                  LinearKernel::kCooperative128x192,
                                                  LinearKernel::kCooperative128x256};

inline const char* name(LinearKernel kernel) {
  switch (kernel) {
    case LinearKernel::kPlain:
      return "plain";
    case LinearKernel::kPingpong64x192:
      return "pingpong_64x192";
    case LinearKernel::kPingpong64x256:
      return "pingpong_64x256";
    case LinearKernel::kPingpong128x64:
      return "pingpong_128x64";
    case LinearKernel::kPingpong128x128:
      return "pingpong_128x128";
    case LinearKernel::kCooperative128x192:
      return "cooperative_128x192";
    case LinearKernel::kCooperative128x256:
      return "cooperative_128x256";
  }
  return "";
}

// A CUTLASS kernel for one activation, with or without a residual, a mask or a normalisation. One
// with a normalisation has whole rows in a tile, so it computes `columns` outputs only.
struct LinearForm {
  LinearKernel kernel;
  int rows, columns;                  // of a tile
  int cluster_rows, cluster_columns;  // in tiles; a cluster loads what its tiles share once
  Activation activation;
  bool residual;
  bool masked;
  bool normed;
  double factor;  // of its estimated time
};

// The forms that won a measurement on an H200, in fp16 at the sizes of Swin-L and of Co-DETR, and
// those with a normalisation, each the only one of its size.
inline constexpr LinearForm kLinearForms[] = {
    {LinearKernel::kPingpong128x128, 128, 128, 2, 1, Activation::kNone, false, false, false, 1},
    {LinearKernel::kPingpong64x256, 64, 256, 1, 1, Activation::kNone, false, false, false, 0.9},
    {LinearKernel::kPingpong64x256, 64, 256, 1, 1, Activation::kNone, false, true, false, 0.9},
    {LinearKernel::kPingpong128x128, 128, 128, 1, 2, Activation::kGelu, false, false, false, 1},
    {LinearKernel::kPingpong64x256, 64, 256, 1, 1, Activation::kGelu, false, false, false, 0.9},
    {LinearKernel::kCooperative128x256, 128, 256, 2, 1, Activation::kGelu, false, false, false, 1},
    {LinearKernel::kPingpong128x128, 128, 128, 1, 1, Activation::kRelu, false, false, false, 1},
    {LinearKernel::kPingpong64x192, 64, 192, 1, 1, Activation::kNone, true, false, false, 1},
    {LinearKernel::kPingpong128x64, 128, 64, 1, 1, Activation::kNone, true, false, false, 1},
    {LinearKernel::kPingpong128x128, 128, 128, 1, 1, Activation::kNone, true, false, false, 1},
    {LinearKernel::kCooperative128x192, 128, 192, 1, 1, Activation::kNone, true, false, false, 1.1},
    {LinearKernel::kPingpong64x192, 64, 192, 1, 1, Activation::kNone, false, false, true, 1},
    {LinearKernel::kPingpong64x192, 64, 192, 1, 1, Activation::kNone, true, false, true, 1},
    {LinearKernel::kPingpong64x256, 64, 256, 1, 1, Activation::kNone, false, false, true, 1},
    {LinearKernel::kPingpong64x256, 64, 256, 1, 1, Activation::kNone, true, false, true, 1},
};

// Rows of a kernel's tiles.
constexpr int tile_rows(LinearKernel kernel) {
  for (const LinearForm& form : kLinearForms) {
    if (form.kernel == kernel) return form.rows;
  }
  return 0;
}

inline bool fits(const LinearForm& form, const LinearProblem& problem) {
  return form.activation == problem.activation && form.residual == problem.residual &&
         form.masked == problem.masked && form.normed == problem.normed &&
         (!form.normed || form.columns == problem.outputs);
}

// Estimates the time of a form's tiles in arbitrary units. The 132 multiprocessors of an H100 or
// H200 compute one tile each at a time. A tile takes time for its products, its loads and its
// epilogue. `inputs` counts numbers of 16 bits; those of 8 bits take half the time.
template <class Form>
double estimate(const Form& form, int64_t rows, int64_t outputs, double inputs,
                double mainloop_factor = 1, double epilogue_factor = 1) {
  const auto tiles = [](int64_t size, int64_t tile, int64_t cluster) {
    const int64_t clusters = (size + tile * cluster - 1) / (tile * cluster);
    return clusters * cluster;
  };
  const int64_t count = tiles(rows, form.rows, form.cluster_rows) *
                        tiles(outputs, form.columns, form.cluster_columns);
  const double waves = static_cast<double>((count + 131) / 132);
  const double products = form.rows * form.columns * inputs;
  const double loads = 80 * (form.rows + form.columns) * inputs;
  const double epilogue = 384 * form.rows * form.columns;
  return waves * (mainloop_factor * (products + loads) + epilogue_factor * epilogue);
}

inline double estimate(const LinearForm& form, const LinearProblem& problem) {
  return form.factor * estimate(form, problem.rows, problem.outputs, problem.inputs);
}

// Returns the fastest form of a problem by measurement, or null where no form fits.
inline const LinearForm* fastest_form(const LinearProblem& problem) {
  const LinearForm* best = nullptr;
  for (const LinearForm& form : kLinearForms) {
    if (!fits(form, problem)) continue;
    // With few rows, most of the time goes to the weights.
    if (problem.rows <= 1024 && form.kernel == LinearKernel::kPingpong64x256) return &form;
    if (best == nullptr || estimate(form, problem) < estimate(*best, problem)) best = &form;
  }
  return best;
}

// Whether a kernel can run the problem on some GPU.
inline bool can_run(LinearKernel kernel, const LinearProblem& problem,
                    const LinearArguments& arguments) {
  if (kernel == LinearKernel::kPlain) return true;
  bool has_form = false;
  for (const LinearForm& form : kLinearForms) {
    has_form = has_form || (form.kernel == kernel && fits(form, problem));
  }
  return kHasSm90 && has_form && size_of(problem.type) == 2 && problem.inputs > 0 &&
         problem.inputs % 8 == 0 && problem.outputs % 8 == 0 && aligned(arguments.x, 16) &&
         aligned(arguments.weight, 16) && aligned(arguments.bias, 16) &&
         aligned(arguments.residual, 16) && aligned(arguments.norm_weight, 16) &&
         aligned(arguments.norm_bias, 16) && aligned(arguments.output, 16);
}

// The fastest kernel.
inline LinearKernel choose_linear(const LinearProblem& problem, const LinearArguments& arguments) {
  const LinearForm* const form = fastest_form(problem);
  return form != nullptr && can_run(form->kernel, problem, arguments) ? form->kernel
                                                                      : LinearKernel::kPlain;
}

}  // namespace msda
