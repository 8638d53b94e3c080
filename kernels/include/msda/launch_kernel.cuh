// One way to launch a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace msda {

// An attribute of the current device.
inline cudaError_t get_attribute(cudaDeviceAttr attribute, int& value) {
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  return status == cudaSuccess ? cudaDeviceGetAttribute(&value, attribute, device) : status;
}

inline cudaLaunchConfig_t launch_config(const dim3& blocks, int threads, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return config;
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), const dim3& blocks, int threads,
                   cudaStream_t stream, const Arguments&... arguments) {
  const cudaLaunchConfig_t config = launch_config(blocks, threads, stream);
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// With neighbouring blocks close to each other: in clusters of two, where the GPU has clusters. An
// odd number of blocks becomes one more.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_pairs(void (*kernel)(Parameters...), int64_t blocks, int threads,
                         cudaStream_t stream, const Arguments&... arguments) {
  int major = 0;
  const cudaError_t status = get_attribute(cudaDevAttrComputeCapabilityMajor, major);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 2;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  const dim3 even(static_cast<unsigned>(blocks + blocks % 2));
  cudaLaunchConfig_t config = launch_config(even, threads, stream);
  config.attrs = &cluster;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace msda
