// Pictures to the network's input on the GPU, by the kernel of the plugin library: the same numbers
// as Batch::images(), without the CPU's time.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "cuda.h"
#include "files.h"
#include "msda/image_input_params.h"
#include "preprocess.h"

namespace codetr {

// msda_image_input of the plugin library: problem, image, target, stream. Returns null, or what is
// wrong.
using LaunchInput = char const* (*)(msda::ImageInputProblem const*, void const*, void*,
                                    cudaStream_t);

class GpuInput {
 public:
  explicit GpuInput(LaunchInput launch) : launch_(launch) {}

  // Enqueues the copies of a batch's pictures, and the kernels that write the input.
  //   images: float32 [N, 3, height, width] on the GPU
  // The last call's work has ended.
  void write(Batch const& batch, float* images, cudaStream_t stream) {
    size_t bytes = 0;
    for (cv::Mat const& picture : batch.pictures) bytes += picture.step[0] * picture.rows;
    if (bytes > bytes_) {
      pixels_ = make<DeviceMemory>(cudaMalloc, bytes);
      bytes_ = bytes;
    }
    auto* pixels = static_cast<uint8_t*>(pixels_.get());
    for (int n = 0; n < batch.count; ++n) {
      cv::Mat const& picture = batch.pictures[n];
      const size_t size = picture.step[0] * picture.rows;
      check(cudaMemcpyAsync(pixels, picture.data, size, cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync");
      msda::ImageInputProblem problem{picture.rows,
                                      picture.cols,
                                      static_cast<int64_t>(picture.step[0]),
                                      batch.image_shapes[2 * n],
                                      batch.image_shapes[2 * n + 1],
                                      batch.height,
                                      batch.width};
      std::ranges::copy(batch.normalisation.mean, problem.mean);
      std::ranges::copy(batch.normalisation.std, problem.std);
      problem.bgr = true;
      float* const target = images + size_t{3} * n * batch.height * batch.width;
      char const* const wrong = launch_(&problem, pixels, target, stream);
      if (wrong != nullptr) throw std::runtime_error(concat("image input: ", wrong));
      pixels += size;
    }
  }

 private:
  LaunchInput launch_;
  DeviceMemory pixels_;  // pictures on their way
  size_t bytes_ = 0;
};

}  // namespace codetr
