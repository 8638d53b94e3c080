// Sizes and types of tensors in TensorRT's terms: as text for messages, and in the kernels' terms.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>

#include "msda/params.h"

namespace msda::trt {

// A bare DataType is TensorRT's. The kernels' is msda::DataType.
using nvinfer1::DataType;
using nvinfer1::Dims;
using nvinfer1::DimsExprs;
using nvinfer1::IExprBuilder;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;
using nvinfer1::PluginTensorDesc;

// Types by their numbers in ONNX, the values of the field output_type.
inline constexpr int32_t kOnnxInt8 = 3, kOnnxFloat16 = 10, kOnnxBFloat16 = 16, kOnnxFloat8 = 17;

std::string type_name(DataType type);

// Returns a number in six digits, such as "1e-05".
std::string number_text(float number);

// Returns the constant sizes. The others are -1, unknown.
Dims constant_part(DimsExprs const& expressions);

// Returns whether the kernels compute in a type.
inline bool is_floating(DataType type) {
  return type == DataType::kFLOAT || type == DataType::kHALF || type == DataType::kBF16;
}

// Returns the last size of a tensor, and the number of its rows: the product of the other sizes.
inline int64_t last_size(Dims const& dims) { return dims.d[dims.nbDims - 1]; }
int64_t count_rows(Dims const& dims);

// Returns whether two sizes are known and not equal.
inline bool differ(int64_t one, int64_t other) { return one >= 0 && other >= 0 && one != other; }

// Throws std::invalid_argument: input `name` should have a shape such as "[N, K]", `because` of
// another number, and has these sizes.
[[noreturn]] void fail_shape(char const* name, std::string const& expected,
                             std::string const& because, Dims const& dims);

// Throws std::invalid_argument with a message unless it is empty.
void check_message(std::string const& wrong);

// Returns the kernels' name of a floating type.
msda::DataType convert(DataType type);

}  // namespace msda::trt
