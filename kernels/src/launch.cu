// The kernels for every type, compiled once and linked into each wrapper.
#include "msda/backward.cuh"
#include "msda/forward.cuh"
#include "msda/launch.h"

namespace msda {

cudaError_t forward(const Problem& problem, const ForwardArguments& arguments,
                    cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  switch (problem.value_type) {
    case DataType::kFloat32:
      return launch_forward<float>(problem, arguments, stream);
    case DataType::kFloat16:
      return launch_forward<__half>(problem, arguments, stream);
    case DataType::kBFloat16:
      return launch_forward<__nv_bfloat16>(problem, arguments, stream);
    case DataType::kFloat64:
      return launch_forward<double>(problem, arguments, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t backward(const Problem& problem, const BackwardArguments& arguments,
                     cudaStream_t stream) {
  if (problem.empty()) return cudaSuccess;
  if (problem.locations != Locations::kGiven) return cudaErrorInvalidValue;
  switch (problem.value_type) {
    case DataType::kFloat32:
      return launch_backward<float>(problem, arguments, stream);
    case DataType::kFloat16:
      return launch_backward<__half>(problem, arguments, stream);
    case DataType::kBFloat16:
      return launch_backward<__nv_bfloat16>(problem, arguments, stream);
    case DataType::kFloat64:
      return launch_backward<double>(problem, arguments, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace msda
