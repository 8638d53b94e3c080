// One way to launch a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace msda {

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), int64_t blocks, int threads, cudaStream_t stream,
                   const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace msda
