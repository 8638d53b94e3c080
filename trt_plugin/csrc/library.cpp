// The library's entry points. Two ways of loading work, in either order:
//   IPluginRegistry::loadLibrary (trt_plugin.load(), trtexec --dynamicPlugins): TensorRT opens the
//     library and registers the creators that getCreators() returns. It refuses creators that are
//     already registered.
//   dlopen (polygraphy --plugins, trtexec --staticPlugins): the constructor of `registration`
//     registers the creators, see tensorrt_library.h.
// The constructor runs in both ways. getCreators() therefore removes its registration first.
// The linker keeps the library mapped for the life of the process (-z nodelete), so the registry
// never points into an unmapped library.
#include <NvInferRuntime.h>

#include <string>

#include "creator.h"
#include "msda/launchers.h"
#include "report.h"
#include "tensorrt_library.h"

namespace msda::trt {
namespace {

constexpr int32_t kNumCreators = 13;

nvinfer1::IPluginCreatorInterface* const* creators() {
  static nvinfer1::IPluginCreatorInterface* const all[kNumCreators] = {
      &attention_creator(),
      &fused_attention_creator(),
      &window_attention_creator(),
      &group_norm_creator(),
      &group_norm_levels_creator(),
      &linear_creator(),
      &quantized_linear_creator(),
      &quantized_layer_norm_creator(),
      &feed_forward_creator(),
      &quantized_feed_forward_creator(),
      &linear_max_creator(),
      &linear_of_sum_creator(),
      &top_k_creator()};
  return all;
}

struct Registration {
  Registration() noexcept {
    for (int32_t i = 0; i < kNumCreators; ++i) {
      registered[i] = register_creator(*creators()[i]);
    }
  }

  void take_back() noexcept {
    for (int32_t i = 0; i < kNumCreators; ++i) {
      if (registered[i]) deregister_creator(*creators()[i]);
      registered[i] = false;
    }
  }

  bool registered[kNumCreators] = {};
};

Registration registration;

}  // namespace
}  // namespace msda::trt

#define MSDA_EXPORT extern "C" __attribute__((visibility("default")))

MSDA_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
  msda::trt::registration.take_back();
  count = msda::trt::kNumCreators;
  return msda::trt::creators();
}

MSDA_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  msda::trt::set_logger_finder(finder);
}

// Whether a kernel as fast as TensorRT's runs a linear layer on the current device, for any number
// of rows. `activation` and `type` are numbers of msda::Activation and msda::DataType.
MSDA_EXPORT bool msda_has_fast_linear(int64_t inputs, int64_t outputs, int32_t activation,
                                      bool residual, bool masked, bool normed, int32_t type) {
  const msda::LinearProblem problem{
      1,        inputs, outputs, static_cast<msda::Activation>(activation),
      residual, masked, normed,  static_cast<msda::DataType>(type)};
  return msda::has_fast_linear(problem, {});
}

// The same of the largest output of a linear layer. `type` is x's.
MSDA_EXPORT bool msda_has_fast_linear_max(int64_t inputs, int64_t outputs, int32_t type) {
  return msda::has_fast_linear_max({1, inputs, outputs, static_cast<msda::DataType>(type)});
}

// The same of a linear layer with 8-bit inputs. `input_type` is a number of msda::EightBits.
MSDA_EXPORT bool msda_has_fast_quantized_linear(int64_t inputs, int64_t outputs, bool residual,
                                                bool masked, bool quantized_output,
                                                int32_t input_type) {
  msda::QuantizedLinearProblem problem{1, inputs, outputs};
  problem.residual = residual;
  problem.masked = masked;
  problem.quantized_output = quantized_output;
  problem.input_type = static_cast<msda::EightBits>(input_type);
  return msda::has_fast_quantized_linear(problem, {});
}

// Whether a feed-forward block in 16 bits is faster by the plugin's kernel than by two linear
// layers and a normalisation on the current device.
MSDA_EXPORT bool msda_has_fast_feed_forward(int64_t rows, int64_t channels, int64_t hidden) {
  return msda::has_fast_feed_forward({rows, channels, hidden});
}

// The same of a feed-forward block in int8.
MSDA_EXPORT bool msda_has_fast_quantized_feed_forward(int64_t rows, int64_t channels,
                                                      int64_t hidden) {
  return msda::has_fast_quantized_feed_forward({rows, channels, hidden});
}

// Whether a linear layer of a sum in 16 bits is faster by the plugin's kernel than by a sum and a
// linear layer on the current device.
MSDA_EXPORT bool msda_has_fast_linear_of_sum(int64_t rows, int64_t inputs, int64_t outputs) {
  return msda::has_fast_linear_of_sum({rows, inputs, outputs});
}

// Writes an image into its place in a network's input, see msda/image_input_params.h. Returns null,
// or what is wrong: text that stays valid until the thread's next call.
MSDA_EXPORT const char* msda_image_input(const msda::ImageInputProblem* problem, const void* image,
                                         void* target, cudaStream_t stream) {
  thread_local std::string wrong;
  wrong = msda::check(*problem);
  if (!wrong.empty()) return wrong.c_str();
  const cudaError_t status = msda::image_input(*problem, {image, target}, stream);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}
