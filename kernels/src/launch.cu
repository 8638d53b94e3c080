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

// The kernel that an environment variable names, for tests and benchmarks of every kernel in turn;
// the chosen one where it is unset. Read at every call.
template <typename Kernel, size_t kCount>
Kernel wanted(const char* variable, const Kernel (&kernels)[kCount], Kernel chosen) {
  const char* const said = std::getenv(variable);
  if (said == nullptr) return chosen;
  for (const Kernel kernel : kernels) {
    if (std::strcmp(said, name(kernel)) == 0) return kernel;
  }
  return chosen;
}

}  // namespace

cudaError_t forward(const Problem& problem, const ForwardArguments& arguments,
                    cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  const ForwardKernel kernel =
      wanted("MSDA_FORWARD", kForwardKernels, choose_forward(problem, arguments));
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
  if (!problem.dense()) return cudaErrorInvalidValue;
  if (problem.locations == Locations::kGiven && arguments.grad_reference_points != nullptr) {
    return cudaErrorInvalidValue;
  }
  if (arguments.work == nullptr && backward_work(problem, arguments).bytes > 0) {
    return cudaErrorInvalidValue;
  }
  const BackwardKernel kernel =
      wanted("MSDA_BACKWARD", kBackwardKernels, choose_backward(problem, arguments));
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
