// One way to launch a kernel.
#pragma once

#include <cuda_runtime_api.h>

namespace msda {

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), const dim3& blocks, int threads,
                   cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace msda
