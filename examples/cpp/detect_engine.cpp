// codetr_detect: detects objects in pictures with a TensorRT engine; no Torch, no Python.
#include <NvInferRuntime.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "cuda.h"
#include "program.h"
#include "tensorrt_library.h"

namespace codetr {
namespace {

Shape to_shape(nvinfer1::Dims const& dims) { return {dims.d, dims.d + std::max(dims.nbDims, 0)}; }

size_t count_of(Shape const& shape) {
  size_t count = 1;
  for (int64_t side : shape) count *= static_cast<size_t>(side);
  return count;
}

// A TensorRT engine with one stream, memory for its largest input, and a CUDA graph of the current
// input shape.
class Engine final : public Network {
 public:
  // Throws std::runtime_error in one line if there is no GPU, if TensorRT refuses the engine, or if
  // the metadata describes another engine.
  Engine(Options const& options, Metadata const& metadata)
      : path_(options.model.string()), wants_graph_(options.cuda_graph) {
    const std::string content = read_file(options.model);
    use_device(options.device);
    LaunchInput launch_input = nullptr;
    const std::string missing_plugins = load_plugins(options.plugins, &launch_input);
    if (launch_input != nullptr) gpu_input_.emplace(launch_input);
    runtime_.reset(nvinfer1::createInferRuntime(tensorrt_log()));
    if (!runtime_) fail("TensorRT does not start");
    engine_.reset(runtime_->deserializeCudaEngine(content.data(), content.size()));
    if (!engine_) {
      fail(concat("TensorRT ", tensorrt_version(),
                  " cannot load it; its metadata says: ", metadata.description, missing_plugins));
    }
    check_tensors(metadata);
    context_.reset(engine_->createExecutionContext());
    if (!context_) fail("no execution context could be made");
    stream_ = make<Stream>(cudaStreamCreateWithFlags, cudaStreamNonBlocking);
    allocate(metadata.sizes);
  }

  Output run(Batch const& input) override {
    const bool repeated = shape_ == std::array{input.count, input.height, input.width};
    if (!repeated) set_shape(input.count, input.height, input.width);
    if (gpu_input_) {
      gpu_input_->write(input, static_cast<float*>(memory_.at("images").get()), stream_.get());
    } else {
      upload("images", input.images());
    }
    upload("image_shapes", input.image_shapes);
    // The first run of a shape has done the lazy initialisation, which a graph cannot capture.
    if (wants_graph_ && repeated && !graph_) capture();
    enqueue();
    Output output{static_cast<size_t>(context_->getTensorShape("scores").d[1]),
                  download<float>("boxes"), download<float>("scores"), download<int64_t>("labels")};
    check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    return output;
  }

  std::vector<Samples> time(Batch const& input, int runs) override {
    for (int i = 0; i < 2; ++i) run(input);
    std::vector<Samples> result;
    const auto measure = [&](char const* how) {
      result.push_back({how, time_on_gpu(stream_.get(), runs, [&] { enqueue(); })});
    };
    if (graph_) measure("CUDA graph");
    graph_.reset();
    measure("no CUDA graph");
    return result;
  }

 private:
  [[noreturn]] void fail(std::string const& what) const {
    throw std::runtime_error(concat(path_, ": ", what, ": ", tensorrt_log().take_errors()));
  }

  // Checks that the engine is the one that the metadata describes. A size of -1 fits any size.
  void check_tensors(Metadata const& metadata) const {
    for (auto const& [name, shape] : metadata.tensors) {
      const Shape found = to_shape(engine_->getTensorShape(name.c_str()));
      const bool same =
          std::equal(shape.begin(), shape.end(), found.begin(), found.end(),
                     [](int64_t a, int64_t b) { return a == b || a == -1 || b == -1; });
      if (same) continue;
      throw std::runtime_error(concat(path_, ": its metadata is that of another engine: ", name,
                                      " is ", format_shape(shape), " in it and ",
                                      format_shape(found), " in the engine"));
    }
  }

  void allocate(InputSizes const& sizes) {
    set_shape(sizes.batch.max, sizes.height.max, sizes.width.max);
    for (int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
      char const* name = engine_->getIOTensorName(i);
      const bool is_wide = engine_->getTensorDataType(name) == nvinfer1::DataType::kINT64;
      const size_t size = count_of(to_shape(context_->getTensorShape(name))) * (is_wide ? 8 : 4);
      // TensorRT needs a valid address for an empty tensor, too.
      memory_[name] = make<DeviceMemory>(cudaMalloc, std::max<size_t>(size, 256));
      context_->setTensorAddress(name, memory_[name].get());
    }
    shape_ = {};  // the first run captures no graph
  }

  void set_shape(int count, int height, int width) {
    graph_.reset();
    if (!context_->setInputShape("images", nvinfer1::Dims4{count, 3, height, width}) ||
        !context_->setInputShape("image_shapes", nvinfer1::Dims2{count, 2})) {
      fail(concat("the engine refuses images ", format_shape({count, 3, height, width})));
    }
    shape_ = {count, height, width};
  }

  template <class Number>
  void upload(char const* name, std::vector<Number> const& values) {
    check(cudaMemcpyAsync(memory_.at(name).get(), values.data(), values.size() * sizeof(Number),
                          cudaMemcpyHostToDevice, stream_.get()),
          "cudaMemcpyAsync");
  }

  template <class Number>
  std::vector<Number> download(char const* name) {
    std::vector<Number> values(count_of(to_shape(context_->getTensorShape(name))));
    check(cudaMemcpyAsync(values.data(), memory_.at(name).get(), values.size() * sizeof(Number),
                          cudaMemcpyDeviceToHost, stream_.get()),
          "cudaMemcpyAsync");
    return values;
  }

  void enqueue() {
    if (graph_) {
      check(cudaGraphLaunch(graph_.get(), stream_.get()), "cudaGraphLaunch");
    } else if (!context_->enqueueV3(stream_.get())) {
      fail("the engine does not run");
    }
  }

  void capture() {
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    const bool enqueued = context_->enqueueV3(stream_.get());
    cudaGraph_t captured = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream_.get(), &captured);
    const Graph graph(captured);
    if (!enqueued) fail("no CUDA graph can capture the engine, give --no-cuda-graph");
    check(status, "cudaStreamEndCapture");
    graph_ = make<GraphExec>(cudaGraphInstantiateWithFlags, captured, 0);
  }

  std::string path_;
  bool wants_graph_;
  std::array<int, 3> shape_{};  // N, H, W
  // Members are destroyed in the opposite order: the context before its engine, the engine before
  // its runtime.
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::map<std::string, DeviceMemory> memory_;
  std::unique_ptr<nvinfer1::IExecutionContext> context_;
  Stream stream_;
  GraphExec graph_;
  std::optional<GpuInput> gpu_input_;  // none: the CPU makes the input
};

}  // namespace
}  // namespace codetr

int main(int count, char** arguments) {
  const codetr::Program program{"codetr_detect", "--engine",
                                "TensorRT " + codetr::tensorrt_version(), /*torch=*/false};
  const auto open = [](codetr::Options const& options, codetr::Metadata const& metadata) {
    return std::make_unique<codetr::Engine>(options, metadata);
  };
  return codetr::run_program(program, count, arguments, open);
}
