// Sizes and types of tensors in TensorRT's terms: as text for messages, and in the kernels' terms.
#pragma once

#include <NvInferRuntime.h>

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

std::string type_name(nvinfer1::DataType type);

// Returns a number in six digits, such as "1e-05".
std::string number_text(float number);

// Returns sizes such as "[2, 30, ?]". A negative size is unknown.
std::string shape_text(nvinfer1::Dims const& dims);

// Returns the constant sizes. The others are -1, unknown.
nvinfer1::Dims constant_part(nvinfer1::DimsExprs const& expressions);

// Returns whether the kernels compute in a type.
inline bool is_floating(nvinfer1::DataType type) {
  return type == nvinfer1::DataType::kFLOAT || type == nvinfer1::DataType::kHALF ||
         type == nvinfer1::DataType::kBF16;
}

// For inputs of one floating type: whether input `index` has it, and a check that throws
// std::invalid_argument with the name of the first input of another type.
inline bool is_like_first(int32_t index, nvinfer1::DataType const* types) {
  return index == 0 ? is_floating(types[0]) : types[index] == types[0];
}
void check_one_type(char const* const* names, nvinfer1::DataType const* types, int32_t count);

// Throws std::invalid_argument: input `name` should have a shape such as "[N, K]", `because` of
// another number, and has these sizes.
[[noreturn]] void fail_shape(char const* name, char const* expected, std::string const& because,
                             nvinfer1::Dims const& dims);

// Returns whether two sizes are known and not equal.
inline bool differ(int64_t one, int64_t other) { return one >= 0 && other >= 0 && one != other; }

// Throws as fail_shape unless a tensor has the sizes of x before the last, and `size` as its last.
void check_rows(char const* name, char const* expected, nvinfer1::Dims const& tensor,
                nvinfer1::Dims const& x, int64_t size, std::string const& because);

// Throws std::invalid_argument with a message unless it is empty.
void check_message(std::string const& wrong);

// Returns the kernels' name of a floating type.
msda::DataType convert(nvinfer1::DataType type);

}  // namespace msda::trt
