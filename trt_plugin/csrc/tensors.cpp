#include "tensors.h"

#include <sstream>
#include <stdexcept>
#include <utility>

namespace msda::trt {
namespace {

// Returns sizes such as "[2, 30, ?]". A negative size is unknown.
std::string shape_text(Dims const& dims) {
  std::string text = "[";
  for (int32_t i = 0; i < dims.nbDims; ++i) {
    if (i) text += ", ";
    text += dims.d[i] < 0 ? "?" : std::to_string(dims.d[i]);
  }
  return text + "]";
}

}  // namespace

std::string type_name(DataType type) {
  static constexpr std::pair<DataType, const char*> kNames[] = {
      {DataType::kFLOAT, "float32"}, {DataType::kHALF, "float16"}, {DataType::kBF16, "bfloat16"},
      {DataType::kINT32, "int32"},   {DataType::kINT64, "int64"},  {DataType::kINT8, "int8"},
      {DataType::kUINT8, "uint8"},   {DataType::kBOOL, "bool"},    {DataType::kFP8, "float8_e4m3"}};
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

Dims constant_part(DimsExprs const& expressions) {
  Dims dims{};
  dims.nbDims = expressions.nbDims;
  for (int32_t i = 0; i < expressions.nbDims; ++i) {
    nvinfer1::IDimensionExpr const* size = expressions.d[i];
    dims.d[i] = size != nullptr && size->isConstant() ? size->getConstantValue() : -1;
  }
  return dims;
}

int64_t count_rows(Dims const& dims) {
  int64_t rows = 1;
  for (int32_t axis = 0; axis + 1 < dims.nbDims; ++axis) rows *= dims.d[axis];
  return rows;
}

void fail_shape(char const* name, std::string const& expected, std::string const& because,
                Dims const& dims) {
  throw std::invalid_argument(std::string(name) + ": expected " + expected + because + ", got " +
                              shape_text(dims));
}

void check_message(std::string const& wrong) {
  if (!wrong.empty()) throw std::invalid_argument(wrong);
}

msda::DataType convert(DataType type) {
  return type == DataType::kHALF   ? msda::DataType::kFloat16
         : type == DataType::kBF16 ? msda::DataType::kBFloat16
                                   : msda::DataType::kFloat32;
}

}  // namespace msda::trt
