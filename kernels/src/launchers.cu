// The launchers: they choose a kernel, and its compiled code for the value's type.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

#include "msda/backward_choice.h"
#include "msda/cuda_launch.cuh"
#include "msda/feed_forward_choice.h"
#include "msda/forward_choice.h"
#include "msda/group_norm_choice.h"
#include "msda/launchers.h"
#include "msda/linear_choice.h"
#include "msda/linear_max_choice.h"
#include "msda/linear_of_sum_choice.h"
#include "msda/quantized_feed_forward_choice.h"
#include "msda/quantized_layer_norm_choice.h"
#include "msda/quantized_linear_choice.h"
#include "msda/top_k_choice.h"
#include "msda/window_choice.h"

namespace msda {

template <typename T>
cudaError_t run_forward(ForwardKernel kernel, const Problem& problem,
                        const ForwardArguments& arguments, cudaStream_t stream);
template <typename T>
cudaError_t run_backward(BackwardKernel kernel, const Problem& problem,
                         const BackwardArguments& arguments, cudaStream_t stream);
template <typename T>
cudaError_t run_window(WindowKernel kernel, const WindowProblem& problem,
                       const WindowArguments& arguments, cudaStream_t stream);
template <typename T>
cudaError_t run_group_norm(GroupNormKernel kernel, const GroupNormProblem& problem,
                           const GroupNormArguments& arguments, cudaStream_t stream);
template <typename T>
cudaError_t run_linear(LinearKernel kernel, const LinearProblem& problem,
                       const LinearArguments& arguments, cudaStream_t stream);
template <typename T>
cudaError_t run_linear_max(LinearMaxKernel kernel, const LinearMaxProblem& problem,
                           const LinearMaxArguments& arguments, cudaStream_t stream);
template <typename T>
cudaError_t run_linear_of_sum(LinearOfSumKernel kernel, const LinearOfSumProblem& problem,
                              const LinearOfSumArguments& arguments, cudaStream_t stream);
cudaError_t run_top_k(TopKKernel kernel, const TopKProblem& problem, const TopKArguments& arguments,
                      cudaStream_t stream);
template <typename Q, typename T>
cudaError_t run_quantized_linear(QuantizedLinearKernel kernel,
                                 const QuantizedLinearProblem& problem,
                                 const QuantizedLinearArguments& arguments, cudaStream_t stream);
cudaError_t run_quantized_layer_norm(QuantizedLayerNormKernel kernel,
                                     const QuantizedLayerNormProblem& problem,
                                     const QuantizedLayerNormArguments& arguments,
                                     cudaStream_t stream);
template <typename T>
cudaError_t run_feed_forward(FeedForwardKernel kernel, const FeedForwardProblem& problem,
                             const FeedForwardArguments& arguments, cudaStream_t stream);
cudaError_t run_quantized_feed_forward(FeedForwardKernel kernel,
                                       const QuantizedFeedForwardProblem& problem,
                                       const QuantizedFeedForwardArguments& arguments,
                                       cudaStream_t stream);
template <typename T>
cudaError_t run_image_input(const ImageInputProblem& problem, const ImageInputArguments& arguments,
                            cudaStream_t stream);

namespace {

constexpr char kForwardVariable[] = "MSDA_FORWARD";
constexpr char kBackwardVariable[] = "MSDA_BACKWARD";
constexpr char kWindowVariable[] = "MSDA_WINDOW";
constexpr char kGroupNormVariable[] = "MSDA_GROUP_NORM";
constexpr char kLinearVariable[] = "MSDA_LINEAR";
constexpr char kLinearMaxVariable[] = "MSDA_LINEAR_MAX";
constexpr char kLinearOfSumVariable[] = "MSDA_LINEAR_OF_SUM";
constexpr char kTopKVariable[] = "MSDA_TOP_K";
constexpr char kQuantizedLinearVariable[] = "MSDA_QUANTIZED_LINEAR";
constexpr char kQuantizedLayerNormVariable[] = "MSDA_QUANTIZED_LAYER_NORM";
constexpr char kFeedForwardVariable[] = "MSDA_FEED_FORWARD";
constexpr char kQuantizedFeedForwardVariable[] = "MSDA_QUANTIZED_FEED_FORWARD";

// Returns whether an environment variable has a value. Reads it at every call.
bool is_forced(const char* variable) {
  const char* const wanted = std::getenv(variable);
  return wanted != nullptr && *wanted != '\0';
}

// Sets `kernel` to the one that an environment variable names, so that tests and benchmarks can run
// every kernel. Returns false where the variable has a value that names none.
template <typename Kernel, size_t kCount>
bool force(const char* variable, const Kernel (&kernels)[kCount], Kernel& kernel) {
  if (!is_forced(variable)) return true;
  const char* const wanted = std::getenv(variable);
  for (const Kernel known : kernels) {
    if (std::strcmp(wanted, name(known)) != 0) continue;
    kernel = known;
    return true;
  }
  return false;
}

template <typename Kernel, size_t kCount>
std::string check_variable(const char* variable, const Kernel (&kernels)[kCount]) {
  Kernel kernel;
  if (force(variable, kernels, kernel)) return "";
  std::string text = std::string(variable) + ": expected one of ";
  for (const Kernel known : kernels) text += std::string(name(known)) + ", ";
  return text + "or no value, got '" + std::getenv(variable) + "'";
}

// Calls run(T{}) for the C++ type T of a data type.
template <typename Run>
cudaError_t with_type(DataType type, const Run& run) {
  switch (type) {
    case DataType::kFloat32:
      return run(float{});
    case DataType::kFloat16:
      return run(__half{});
    case DataType::kBFloat16:
      return run(__nv_bfloat16{});
    case DataType::kFloat64:
      return run(double{});
  }
  return cudaErrorInvalidValue;
}

// The same for operators without double.
template <typename Run>
cudaError_t with_single_type(DataType type, const Run& run) {
  return with_type(type, [&](auto zero) {
    if constexpr (std::is_same_v<decltype(zero), double>)
      return cudaErrorInvalidValue;
    else
      return run(zero);
  });
}

// Whether the current device has the compute capability of a kernel of linear layers, of those of a
// sum, or of feed-forward blocks.
template <typename Kernel>
bool runs_here(Kernel kernel) {
  int major = 0, minor = 0;
  return kernel == Kernel::kPlain ||
         (get_attribute(cudaDevAttrComputeCapabilityMajor, major) == cudaSuccess &&
          get_attribute(cudaDevAttrComputeCapabilityMinor, minor) == cudaSuccess && major == 9 &&
          minor == 0);
}

// The kernel on the current device, where `chosen` is the fastest one.
template <typename Kernel>
Kernel or_plain(Kernel chosen) {
  return runs_here(chosen) ? chosen : Kernel::kPlain;
}

// Calls run(kernel) with the kernel that a variable forces, or with the fastest one that runs on
// the current device.
template <typename Kernel, size_t kCount, typename Problem, typename Arguments, typename Run>
cudaError_t run_chosen(const char* variable, const Kernel (&kernels)[kCount], Kernel fastest,
                       const Problem& problem, const Arguments& arguments, const Run& run) {
  if (problem.empty()) return cudaSuccess;
  Kernel kernel = or_plain(fastest);
  if (!force(variable, kernels, kernel)) return cudaErrorInvalidValue;
  if (!can_run(kernel, problem, arguments) || !runs_here(kernel)) return cudaErrorNotSupported;
  return run(kernel);
}

cudaError_t run_linear_max(LinearMaxKernel kernel, const LinearMaxProblem& problem,
                           const LinearMaxArguments& arguments, cudaStream_t stream) {
  return with_type(problem.type, [&](auto zero) {
    return run_linear_max<decltype(zero)>(kernel, problem, arguments, stream);
  });
}

}  // namespace

std::string check_environment() {
  std::string wrong = check_variable(kForwardVariable, kForwardKernels);
  if (wrong.empty()) wrong = check_variable(kBackwardVariable, kBackwardKernels);
  if (wrong.empty()) wrong = check_variable(kWindowVariable, kWindowKernels);
  if (wrong.empty()) wrong = check_variable(kGroupNormVariable, kGroupNormKernels);
  if (wrong.empty()) wrong = check_variable(kLinearVariable, kLinearKernels);
  if (wrong.empty()) wrong = check_variable(kQuantizedLinearVariable, kQuantizedLinearKernels);
  if (wrong.empty()) {
    wrong = check_variable(kQuantizedLayerNormVariable, kQuantizedLayerNormKernels);
  }
  if (wrong.empty()) wrong = check_variable(kFeedForwardVariable, kFeedForwardKernels);
  if (wrong.empty())
    wrong = check_variable(kQuantizedFeedForwardVariable, kQuantizedFeedForwardKernels);
  if (wrong.empty()) wrong = check_variable(kLinearMaxVariable, kLinearMaxKernels);
  if (wrong.empty()) wrong = check_variable(kLinearOfSumVariable, kLinearOfSumKernels);
  return wrong.empty() ? check_variable(kTopKVariable, kTopKKernels) : wrong;
}

cudaError_t forward(const Problem& problem, const ForwardArguments& arguments,
                    cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  ForwardKernel kernel = choose_forward(problem, arguments);
  if (!force(kForwardVariable, kForwardKernels, kernel)) return cudaErrorInvalidValue;
  if (!can_run(kernel, problem, arguments)) return cudaErrorNotSupported;
  return with_type(problem.value_type, [&](auto zero) {
    return run_forward<decltype(zero)>(kernel, problem, arguments, stream);
  });
}

cudaError_t backward(const Problem& problem, const BackwardArguments& arguments,
                     cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  if (!problem.dense()) return cudaErrorInvalidValue;
  if (problem.locations == Locations::kGiven && arguments.grad_reference_points != nullptr) {
    return cudaErrorInvalidValue;
  }
  if (arguments.work == nullptr && backward_work(problem, arguments).bytes > 0) {
    return cudaErrorInvalidValue;
  }
  BackwardKernel kernel = choose_backward(problem, arguments);
  if (!force(kBackwardVariable, kBackwardKernels, kernel)) return cudaErrorInvalidValue;
  if (!can_run(kernel, problem, arguments)) return cudaErrorNotSupported;
  return with_type(problem.value_type, [&](auto zero) {
    return run_backward<decltype(zero)>(kernel, problem, arguments, stream);
  });
}

cudaError_t window_attention(const WindowProblem& problem, const WindowArguments& arguments,
                             cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  const auto run = [&](WindowKernel kernel) {
    return with_type(problem.type, [&](auto zero) {
      return run_window<decltype(zero)>(kernel, problem, arguments, stream);
    });
  };
  WindowKernel kernel = choose_window(problem, arguments);
  if (!force(kWindowVariable, kWindowKernels, kernel)) return cudaErrorInvalidValue;
  if (!can_run(kernel, problem, arguments)) return cudaErrorNotSupported;
  const cudaError_t status = run(kernel);
  if (status != cudaErrorNotSupported || is_forced(kWindowVariable)) return status;
  // The problem fits the kernel, but this GPU does not.
  const bool rows = can_run(WindowKernel::kRows, problem, arguments);
  return run(rows ? WindowKernel::kRows : WindowKernel::kPlain);
}

cudaError_t group_norm(const GroupNormProblem& problem, const GroupNormArguments& arguments,
                       cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  if (arguments.work == nullptr) return cudaErrorInvalidValue;
  GroupNormKernel kernel = choose_group_norm(problem, arguments);
  if (!force(kGroupNormVariable, kGroupNormKernels, kernel)) return cudaErrorInvalidValue;
  if (!can_run(kernel, problem, arguments)) return cudaErrorNotSupported;
  return with_type(problem.type, [&](auto zero) {
    return run_group_norm<decltype(zero)>(kernel, problem, arguments, stream);
  });
}

cudaError_t linear(const LinearProblem& problem, const LinearArguments& arguments,
                   cudaStream_t stream) {
  const auto run = [&](LinearKernel kernel) {
    return with_type(problem.type, [&](auto zero) {
      return run_linear<decltype(zero)>(kernel, problem, arguments, stream);
    });
  };
  return run_chosen(kLinearVariable, kLinearKernels, choose_linear(problem, arguments), problem,
                    arguments, run);
}

cudaError_t linear_max(const LinearMaxProblem& problem, const LinearMaxArguments& arguments,
                       cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  const auto run = [&](LinearMaxKernel kernel) {
    return run_linear_max(kernel, problem, arguments, stream);
  };
  LinearMaxKernel kernel = choose_linear_max(problem, arguments);
  if (!force(kLinearMaxVariable, kLinearMaxKernels, kernel)) return cudaErrorInvalidValue;
  if (!can_run(kernel, problem, arguments)) return cudaErrorNotSupported;
  const cudaError_t status = run(kernel);
  // The problem may fit the kernel where this GPU does not.
  const bool chosen = status == cudaErrorNotSupported && !is_forced(kLinearMaxVariable);
  return chosen ? run(LinearMaxKernel::kPlain) : status;
}

bool has_fast_linear_max(LinearMaxProblem problem) {
  if (is_forced(kLinearMaxVariable)) return true;
  problem.rows = 0;  // the kernel's launcher then asks for the GPU's limits, and launches nothing
  const LinearMaxKernel kernel = choose_linear_max(problem, {});
  return kernel != LinearMaxKernel::kPlain &&
         run_linear_max(kernel, problem, {}, nullptr) == cudaSuccess;
}

cudaError_t top_k(const TopKProblem& problem, const TopKArguments& arguments, cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  TopKKernel kernel = choose_top_k(problem);
  if (!force(kTopKVariable, kTopKKernels, kernel)) return cudaErrorInvalidValue;
  if (!can_run(kernel, problem)) return cudaErrorNotSupported;
  if (kernel == TopKKernel::kParts && arguments.work == nullptr && top_k_work(problem) > 0) {
    return cudaErrorInvalidValue;
  }
  return run_top_k(kernel, problem, arguments, stream);
}

cudaError_t image_input(const ImageInputProblem& problem, const ImageInputArguments& arguments,
                        cudaStream_t stream) {
  return with_single_type(problem.type, [&](auto zero) {
    return run_image_input<decltype(zero)>(problem, arguments, stream);
  });
}

bool has_fast_linear(const LinearProblem& problem, const LinearArguments& arguments) {
  return is_forced(kLinearVariable) ||
         or_plain(choose_linear(problem, arguments)) != LinearKernel::kPlain;
}

cudaError_t quantized_linear(const QuantizedLinearProblem& problem,
                             const QuantizedLinearArguments& arguments, cudaStream_t stream) {
  const auto run = [&](QuantizedLinearKernel kernel) {
    const auto run_type = [&](auto eight_bits) {
      using Q = decltype(eight_bits);
      return problem.type == DataType::kFloat16
                 ? run_quantized_linear<Q, __half>(kernel, problem, arguments, stream)
                 : run_quantized_linear<Q, __nv_bfloat16>(kernel, problem, arguments, stream);
    };
    return problem.input_type == EightBits::kInt8 ? run_type(int8_t{}) : run_type(__nv_fp8_e4m3{});
  };
  return run_chosen(kQuantizedLinearVariable, kQuantizedLinearKernels,
                    choose_quantized_linear(problem, arguments), problem, arguments, run);
}

bool has_fast_quantized_linear(const QuantizedLinearProblem& problem,
                               const QuantizedLinearArguments& arguments) {
  return is_forced(kQuantizedLinearVariable) ||
         or_plain(choose_quantized_linear(problem, arguments)) != QuantizedLinearKernel::kPlain;
}

cudaError_t quantized_layer_norm(const QuantizedLayerNormProblem& problem,
                                 const QuantizedLayerNormArguments& arguments,
                                 cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  QuantizedLayerNormKernel kernel = choose_quantized_layer_norm(problem, arguments);
  if (!force(kQuantizedLayerNormVariable, kQuantizedLayerNormKernels, kernel)) {
    return cudaErrorInvalidValue;
  }
  if (!can_run(kernel, problem, arguments)) return cudaErrorNotSupported;
  return run_quantized_layer_norm(kernel, problem, arguments, stream);
}

cudaError_t feed_forward(const FeedForwardProblem& problem, const FeedForwardArguments& arguments,
                         cudaStream_t stream) {
  const auto run = [&](FeedForwardKernel kernel) {
    return with_single_type(problem.type, [&](auto zero) {
      return run_feed_forward<decltype(zero)>(kernel, problem, arguments, stream);
    });
  };
  return run_chosen(kFeedForwardVariable, kFeedForwardKernels,
                    choose_feed_forward(problem, arguments), problem, arguments, run);
}

bool has_fast_feed_forward(const FeedForwardProblem& problem) {
  return is_forced(kFeedForwardVariable) ||
         (is_fast(problem) && runs_here(FeedForwardKernel::kHopper));
}

cudaError_t linear_of_sum(const LinearOfSumProblem& problem, const LinearOfSumArguments& arguments,
                          cudaStream_t stream) {
  const auto run = [&](LinearOfSumKernel kernel) {
    return with_single_type(problem.type, [&](auto zero) {
      return run_linear_of_sum<decltype(zero)>(kernel, problem, arguments, stream);
    });
  };
  return run_chosen(kLinearOfSumVariable, kLinearOfSumKernels,
                    choose_linear_of_sum(problem, arguments), problem, arguments, run);
}

bool has_fast_linear_of_sum(const LinearOfSumProblem& problem) {
  return is_forced(kLinearOfSumVariable) ||
         (is_fast(problem) && runs_here(LinearOfSumKernel::kHopper));
}

cudaError_t quantized_feed_forward(const QuantizedFeedForwardProblem& problem,
                                   const QuantizedFeedForwardArguments& arguments,
                                   cudaStream_t stream) {
  const auto run = [&](FeedForwardKernel kernel) {
    return run_quantized_feed_forward(kernel, problem, arguments, stream);
  };
  return run_chosen(kQuantizedFeedForwardVariable, kQuantizedFeedForwardKernels,
                    choose_feed_forward(problem, arguments), problem, arguments, run);
}

bool has_fast_quantized_feed_forward(const QuantizedFeedForwardProblem& problem) {
  return is_forced(kQuantizedFeedForwardVariable) ||
         (is_fast(problem) && runs_here(FeedForwardKernel::kHopper));
}

}  // namespace msda
