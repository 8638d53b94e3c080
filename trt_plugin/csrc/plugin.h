// The base classes of the plugins: TensorRT's interfaces, the checks of types and sizes, and the
// report of errors. A plugin has no arithmetic.
#pragma once

#include <NvInferRuntime.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensors.h"

namespace msda::trt {

inline constexpr char kNamespace[] = "msda";
inline constexpr char kVersion[] = "1";

// An input of a plugin.
struct Input {
  std::string name;
  char const* shape = nullptr;  // such as "[N, K]", for the messages of Plugin::fail
};

class Plugin : public nvinfer1::IPluginV3,
               public nvinfer1::IPluginV3OneCore,
               public nvinfer1::IPluginV3OneBuild,
               public nvinfer1::IPluginV3OneRuntime {
 public:
  // IPluginV3
  nvinfer1::IPluginCapability* getCapabilityInterface(
      nvinfer1::PluginCapabilityType type) noexcept final;
  nvinfer1::IPluginV3* clone() noexcept final;

  // IPluginV3OneCore
  char const* getPluginName() const noexcept final { return name_; }
  char const* getPluginVersion() const noexcept final { return kVersion; }
  char const* getPluginNamespace() const noexcept final { return kNamespace; }

  // IPluginV3OneBuild
  int32_t getNbOutputs() const noexcept override { return 1; }
  int32_t getOutputDataTypes(DataType* output_types, int32_t num_outputs,
                             DataType const* input_types, int32_t num_inputs) const noexcept final;
  int32_t getOutputShapes(DimsExprs const* inputs, int32_t num_inputs,
                          DimsExprs const* shape_inputs, int32_t num_shape_inputs,
                          DimsExprs* outputs, int32_t num_outputs,
                          IExprBuilder& expressions) noexcept final;
  bool supportsFormatCombination(int32_t position, nvinfer1::DynamicPluginTensorDesc const* in_out,
                                 int32_t num_inputs, int32_t num_outputs) noexcept final;
  int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t num_inputs,
                          nvinfer1::DynamicPluginTensorDesc const* outputs,
                          int32_t num_outputs) noexcept final;
  size_t getWorkspaceSize(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t num_inputs,
                          nvinfer1::DynamicPluginTensorDesc const* outputs,
                          int32_t num_outputs) const noexcept final;
  char const* getTimingCacheID() noexcept final { return timing_cache_id_.c_str(); }
  char const* getMetadataString() noexcept final { return description_.c_str(); }

  // IPluginV3OneRuntime
  int32_t onShapeChange(PluginTensorDesc const* inputs, int32_t num_inputs,
                        PluginTensorDesc const* outputs, int32_t num_outputs) noexcept final;
  int32_t enqueue(PluginTensorDesc const* input_descriptions,
                  PluginTensorDesc const* output_descriptions, void const* const* inputs,
                  void* const* outputs, void* workspace, cudaStream_t stream) noexcept final;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept final;
  nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept final;

 protected:
  // `name` is a literal; `description` tells the fields.
  Plugin(char const* name, std::string description, std::vector<Input> inputs,
         bool last_is_optional = false);
  Plugin(Plugin const&) = default;

  virtual Plugin* copy() const = 0;

  // Returns whether input `index` may have the type types[index]. Reads types[0] to types[index].
  // By default, all inputs have one floating type.
  virtual bool accepts_type(int32_t index, DataType const* types) const;

  // Returns the types that accepts_type() takes, for a message.
  virtual std::string expected_type(int32_t index, DataType const* types) const;

  // Returns the type of output `index`, for inputs of these types, which are accepted. By default,
  // it is that of the first input.
  virtual DataType output_type(int32_t /*index*/, DataType const* types) const { return types[0]; }

  // Returns the format in which the plugin reads or writes a tensor of these sizes and type. By
  // default, it is that of rows.
  virtual nvinfer1::TensorFormat format(Dims const& /*dims*/, DataType /*type*/) const {
    return nvinfer1::TensorFormat::kLINEAR;
  }

  // Throws std::invalid_argument with a message that names the argument. A negative size is unknown
  // and agrees with every other.
  virtual void check_sizes(Dims const* dims, int32_t count) const = 0;

  // Checks types and sizes, all known, and the kernels' limits.
  virtual void check_problem(PluginTensorDesc const* inputs, int32_t count) const = 0;

  // Fills the shape of all outputs, by default that of the first input. The inputs have passed
  // check_sizes.
  virtual void set_output_shape(DimsExprs const* inputs, DimsExprs& output,
                                IExprBuilder& /*expressions*/) const {
    output = inputs[0];
  }

  // Returns the bytes of work memory that suffice for inputs up to these sizes. May throw.
  virtual size_t work_bytes(PluginTensorDesc const* /*largest*/, int32_t /*count*/) const {
    return 0;
  }

  // Calls the launcher. Throws an exception unless the launch succeeds.
  virtual void run(PluginTensorDesc const* descriptions, void const* const* inputs,
                   void* const* outputs, void* work, cudaStream_t stream) const = 0;

  // Returns the fields, whose data lives as long as the plugin.
  virtual std::vector<PluginField> fields() const = 0;

  // Checks the number of inputs, their types and their sizes.
  void check_inputs(PluginTensorDesc const* inputs, int32_t count) const;

  // Throws as fail_shape() for input `index`.
  [[noreturn]] void fail(int32_t index, std::string const& because, Dims const& dims) const;

  // Calls fail() unless input `index` has the sizes of x, input 0, before the last, and `size` as
  // its last.
  void check_rows(int32_t index, Dims const* dims, int64_t size, std::string const& because) const;

  // Throws std::runtime_error with a message about a launch that failed.
  [[noreturn]] static void fail_launch(cudaError_t status, std::string const& problem);

  // enqueue() does not tell the number of inputs. A network or a new shape sets it. The constructor
  // sets the largest.
  int32_t num_inputs_;

 private:
  bool accepts_count(int32_t count) const;
  void check_count(int32_t count) const;
  void check_outputs(int32_t count) const;
  void check_types(DataType const* types, int32_t count) const;

  char const* name_;
  std::string description_;
  std::string timing_cache_id_;
  std::vector<Input> inputs_;
  bool last_is_optional_;
  // Type of the first input in the network's definition, see supportsFormatCombination.
  mutable std::optional<DataType> declared_type_;
  // Storage of the result of getFieldsToSerialize.
  std::vector<PluginField> serialized_;
  nvinfer1::PluginFieldCollection collection_{};
};

// A plugin that describes its tensors as a Problem of the kernels and calls the launcher.
template <class Problem>
class KernelPlugin : public Plugin {
 protected:
  using Plugin::Plugin;

  // Returns the problem of inputs that have passed check_inputs(). All sizes are known.
  virtual Problem make_problem(PluginTensorDesc const* inputs) const = 0;

  virtual cudaError_t launch(Problem const& problem, void const* const* inputs,
                             void* const* outputs, void* work, cudaStream_t stream) const = 0;

  // Returns the problem as text, for a message.
  virtual std::string describe(Problem const& problem) const = 0;

  // Checks types and sizes, all known, and the kernels' limits. Returns the problem.
  Problem read_problem(PluginTensorDesc const* inputs, int32_t count) const {
    check_inputs(inputs, count);
    const Problem problem = make_problem(inputs);
    check_message(check(problem));
    return problem;
  }

 private:
  void check_problem(PluginTensorDesc const* inputs, int32_t count) const final {
    read_problem(inputs, count);
  }

  void run(PluginTensorDesc const* descriptions, void const* const* inputs, void* const* outputs,
           void* work, cudaStream_t stream) const final {
    const Problem problem = read_problem(descriptions, num_inputs_);
    const cudaError_t status = launch(problem, inputs, outputs, work, stream);
    if (status != cudaSuccess) fail_launch(status, describe(problem));
  }
};

}  // namespace msda::trt
