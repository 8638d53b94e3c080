// Launches of kernels on a stream, and the choice of template arguments at run time.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace msda {

// Calls run(constant) with the std::integral_constant of `number` among kNumbers.
template <int... kNumbers, typename Run>
cudaError_t with_constant(int64_t number, const Run& run) {
  cudaError_t status = cudaErrorInvalidValue;
  static_cast<void>(
      ((number == kNumbers && (status = run(std::integral_constant<int, kNumbers>()), true)) ||
       ...));
  return status;
}

// Reads an attribute of the current device.
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

// Launches one thread for each of `count` outputs or more, in a linear grid.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_linear(void (*kernel)(Parameters...), int64_t count, int threads,
                          cudaStream_t stream, const Arguments&... arguments) {
  const int64_t blocks = (count + threads - 1) / threads;
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch(kernel, dim3(static_cast<unsigned>(blocks)), threads, stream, arguments...);
}

// Gives each block of a launch this many bytes of dynamic shared memory.
template <typename... Parameters>
cudaError_t use_shared_memory(cudaLaunchConfig_t& config, void (*kernel)(Parameters...),
                              int bytes) {
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

// Launches a kernel whose blocks may begin before the stream's last kernel has ended, where its
// code has wait_for_last_kernel(): compute capability 9.0 and later. Every thread calls that
// function.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_early(cudaLaunchConfig_t config, void (*kernel)(Parameters...),
                         const Arguments&... arguments) {
  // Code for an earlier architecture, which the driver compiles for a newer GPU, does not wait.
  cudaFuncAttributes code{};
  const cudaError_t status = cudaFuncGetAttributes(&code, reinterpret_cast<const void*>(kernel));
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = code.ptxVersion >= 90 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// The same with a block for each multiprocessor, which has most of its shared memory, or for each
// piece of work if there are fewer.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_persistent(void (*kernel)(Parameters...), int64_t work, int threads,
                              int shared_bytes, cudaStream_t stream,
                              const Arguments&... arguments) {
  int multiprocessors = 0;
  cudaError_t status = get_attribute(cudaDevAttrMultiProcessorCount, multiprocessors);
  if (status != cudaSuccess) return status;
  const int64_t blocks = std::min<int64_t>(multiprocessors, work);
  cudaLaunchConfig_t config = launch_config(dim3(static_cast<unsigned>(blocks)), threads, stream);
  status = use_shared_memory(config, kernel, shared_bytes);
  if (status != cudaSuccess) return status;
  return launch_early(config, kernel, arguments...);
}

// Launches clusters of two blocks, which run on one multiprocessor or on two neighbouring ones, on
// GPUs that have clusters (compute capability 9.0 and later). An odd number of blocks becomes even.
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
