// The TensorRT plugin that searches for the largest numbers of rows.
#include <string>

#include "creator.h"
#include "msda/launchers.h"

namespace msda::trt {
namespace {

constexpr char kTopKIndices[] = "TopKIndices";
constexpr char kCount[] = "count";

class TopKPlugin final : public KernelPlugin<TopKProblem> {
 public:
  explicit TopKPlugin(int32_t count)
      : KernelPlugin(kTopKIndices, "count=" + std::to_string(count), {{"x", "[N, S]"}}),
        count_(count) {}

 private:
  Plugin* copy() const override { return new TopKPlugin(*this); }

  bool accepts_type(int32_t index, DataType const* types) const override {
    return types[index] == DataType::kFLOAT;
  }

  std::string expected_type(int32_t /*index*/, DataType const* /*types*/) const override {
    return "float32";
  }

  DataType output_type(int32_t /*index*/, DataType const* /*types*/) const override {
    return DataType::kINT32;
  }

  void check_sizes(Dims const* dims, int32_t /*count*/) const override {
    if (dims[0].nbDims != 2) fail(0, "", dims[0]);
    if (dims[0].d[1] >= 0 && dims[0].d[1] < count_) {
      fail(0, " with S of at least count=" + std::to_string(count_), dims[0]);
    }
  }

  void set_output_shape(DimsExprs const* inputs, DimsExprs& output,
                        IExprBuilder& expressions) const override {
    output.nbDims = 2;
    output.d[0] = inputs[0].d[0];
    output.d[1] = expressions.constant(count_);
  }

  TopKProblem make_problem(PluginTensorDesc const* inputs) const override {
    return {inputs[0].dims.d[0], inputs[0].dims.d[1], count_};
  }

  size_t work_bytes(PluginTensorDesc const* largest, int32_t count) const override {
    return top_k_work(read_problem(largest, count));
  }

  cudaError_t launch(TopKProblem const& problem, void const* const* inputs, void* const* outputs,
                     void* work, cudaStream_t stream) const override {
    const TopKArguments arguments{static_cast<float const*>(inputs[0]),
                                  static_cast<int32_t*>(outputs[0]), work};
    return top_k(problem, arguments, stream);
  }

  std::string describe(TopKProblem const& problem) const override {
    return "N=" + std::to_string(problem.rows) + " S=" + std::to_string(problem.size) +
           " count=" + std::to_string(count_);
  }

  std::vector<PluginField> fields() const override { return {{kCount, &count_, kInt32, 1}}; }

  int32_t count_;
};

}  // namespace

Creator& top_k_creator() {
  static Creator creator(
      kTopKIndices, {number_field(kCount, "0 or more")}, kCount,
      [](FieldValues const& fields) -> Plugin* { return new TopKPlugin(fields.number(kCount)); });
  return creator;
}

}  // namespace msda::trt
