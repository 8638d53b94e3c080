#include "tensors.h"

#include <sstream>
#include <stdexcept>
#include <utility>

namespace msda::trt {

std::string type_name(nvinfer1::DataType type) {
  static constexpr std::pair<nvinfer1::DataType, const char*> kNames[] = {
      {nvinfer1::DataType::kFLOAT, "float32"},  {nvinfer1::DataType::kHALF, "float16"},
      {nvinfer1::DataType::kBF16, "bfloat16"},  {nvinfer1::DataType::kINT32, "int32"},
      {nvinfer1::DataType::kINT64, "int64"},    {nvinfer1::DataType::kINT8, "int8"},
      {nvinfer1::DataType::kUINT8, "uint8"},    {nvinfer1::DataType::kBOOL, "bool"},
      {nvinfer1::DataType::kFP8, "float8_e4m3"}};
  for (auto const& [known, name] : kNames) {
    if (known == type) return name;
  }
  return "type " + std::to_string(static_cast<int32_t>(type));
}

std::string number_text(float number) {
  std::ostringstream stream;
  stream << number;
  return stream.str();
}

std::string shape_text(nvinfer1::Dims const& dims) {
  std::string text = "[";
  for (int32_t i = 0; i < dims.nbDims; ++i) {
    if (i) text += ", ";
    text += dims.d[i] < 0 ? "?" : std::to_string(dims.d[i]);
  }
  return text + "]";
}

nvinfer1::Dims constant_part(nvinfer1::DimsExprs const& expressions) {
  nvinfer1::Dims dims{};
  dims.nbDims = expressions.nbDims;
  for (int32_t i = 0; i < expressions.nbDims; ++i) {
    nvinfer1::IDimensionExpr const* size = expressions.d[i];
    dims.d[i] = size != nullptr && size->isConstant() ? size->getConstantValue() : -1;
  }
  return dims;
}

void check_one_type(char const* const* names, nvinfer1::DataType const* types, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    if (is_like_first(i, types)) continue;
    const std::string expected =
        i == 0 ? "float32, float16 or bfloat16" : type_name(types[0]) + " (as " + names[0] + ")";
    throw std::invalid_argument(std::string(names[i]) + ": expected " + expected + ", got " +
                                type_name(types[i]));
  }
}

void fail_shape(char const* name, char const* expected, std::string const& because,
                nvinfer1::Dims const& dims) {
  throw std::invalid_argument(std::string(name) + ": expected " + expected + because + ", got " +
                              shape_text(dims));
}

void check_rows(char const* name, char const* expected, nvinfer1::Dims const& tensor,
                nvinfer1::Dims const& x, int64_t size, std::string const& because) {
  if (tensor.nbDims != x.nbDims || differ(tensor.d[x.nbDims - 1], size)) {
    fail_shape(name, expected, because, tensor);
  }
  for (int32_t axis = 0; axis + 1 < x.nbDims; ++axis) {
    if (differ(tensor.d[axis], x.d[axis])) {
      fail_shape(name, expected, " with the other sizes of x", tensor);
    }
  }
}

void check_message(std::string const& wrong) {
  if (!wrong.empty()) throw std::invalid_argument(wrong);
}

msda::DataType convert(nvinfer1::DataType type) {
  return type == nvinfer1::DataType::kHALF   ? msda::DataType::kFloat16
         : type == nvinfer1::DataType::kBF16 ? msda::DataType::kBFloat16
                                             : msda::DataType::kFloat32;
}

}  // namespace msda::trt
