// The launchers: they choose a kernel, and the compiled code for the value's type.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdlib>
#include <cstring>

#include "msda/choose.h"
#include "msda/choose_backward.h"
#include "msda/launch.h"

namespace msda {

template <typename T>
cudaError_t run_forward(ForwardKernel kernel, const Problem& problem,
                        const ForwardArguments& arguments, cudaStream_t stream);
template <typename T>
cudaError_t run_backward(BackwardKernel kernel, const Problem& problem,
                         const BackwardArguments& arguments, cudaStream_t stream);

namespace {

// Tests and benchmarks run every kernel in turn: MSDA_FORWARD names the one to take, or says
// "expected" (choose.h). Read at every call.
ForwardKernel wanted_forward(const Problem& problem, const ForwardArguments& arguments) {
  const char* const wanted = std::getenv("MSDA_FORWARD");
  if (wanted == nullptr) return choose_forward(problem, arguments);
  if (std::strcmp(wanted, "expected") == 0) return expected_forward(problem, arguments);
  for (const ForwardKernel kernel : kForwardKernels) {
    if (std::strcmp(wanted, name(kernel)) == 0) return kernel;
  }
  return choose_forward(problem, arguments);
}

// And MSDA_BACKWARD.
BackwardKernel wanted_backward(const Problem& problem, const BackwardArguments& arguments) {
  const char* const wanted = std::getenv("MSDA_BACKWARD");
  if (wanted == nullptr) return choose_backward(problem, arguments);
  if (std::strcmp(wanted, "expected") == 0) return expected_backward(problem, arguments);
  for (const BackwardKernel kernel : kBackwardKernels) {
    if (std::strcmp(wanted, name(kernel)) == 0) return kernel;
  }
  return choose_backward(problem, arguments);
}

}  // namespace

cudaError_t forward(const Problem& problem, const ForwardArguments& arguments,
                    cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  const ForwardKernel kernel = wanted_forward(problem, arguments);
  if (!can_run(kernel, problem, arguments)) return cudaErrorNotSupported;
  switch (problem.value_type) {
    case DataType::kFloat32:
      return run_forward<float>(kernel, problem, arguments, stream);
    case DataType::kFloat16:
      return run_forward<__half>(kernel, problem, arguments, stream);
    case DataType::kBFloat16:
      return run_forward<__nv_bfloat16>(kernel, problem, arguments, stream);
    case DataType::kFloat64:
      return run_forward<double>(kernel, problem, arguments, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t backward(const Problem& problem, const BackwardArguments& arguments,
                     cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  if (problem.locations == Locations::kGiven && arguments.grad_reference_points != nullptr) {
    return cudaErrorInvalidValue;
  }
  if (arguments.work == nullptr && backward_work(problem, arguments).bytes > 0) {
    return cudaErrorInvalidValue;
  }
  const BackwardKernel kernel = wanted_backward(problem, arguments);
  if (!can_run(kernel, problem, arguments)) return cudaErrorNotSupported;
  switch (problem.value_type) {
    case DataType::kFloat32:
      return run_backward<float>(kernel, problem, arguments, stream);
    case DataType::kFloat16:
      return run_backward<__half>(kernel, problem, arguments, stream);
    case DataType::kBFloat16:
      return run_backward<__nv_bfloat16>(kernel, problem, arguments, stream);
    case DataType::kFloat64:
      return run_backward<double>(kernel, problem, arguments, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace msda
