#include "engine.h"

#include <NvInferRuntime.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <optional>
#include <regex>

#include "cuda.h"
#include "errors.h"
#include "files.h"
#include "plugins.h"
#include "tensorrt_log.h"

namespace codetr {
namespace {

using nvinfer1::DataType;

// The beginning of an engine file: a tag, the version of the layout, and for layout 0 the numbers
// of TensorRT's version from byte 24 on.
constexpr uint32_t kTag = 0x74727466;
constexpr size_t kHeaderBytes = 28, kVersionAt = 24;

std::vector<uint8_t> read_engine(std::filesystem::path const& path) {
  std::vector<uint8_t> content = read_file(path);
  if (content.empty()) {
    throw std::runtime_error(
        concat("the engine ", path.string(), " is empty: its export did not finish"));
  }
  uint32_t tag = 0;
  if (content.size() >= kHeaderBytes) std::memcpy(&tag, content.data(), sizeof(tag));
  if (tag != kTag) {
    throw std::runtime_error(
        concat(path.string(), " is not a TensorRT engine: it does not begin like one"));
  }
  return content;
}

// TensorRT's version that wrote an engine; nothing if its layout does not say.
std::optional<std::string> built_with(std::vector<uint8_t> const& content) {
  uint32_t layout = 0;
  std::memcpy(&layout, content.data() + 4, sizeof(layout));
  if (layout != 0) return std::nullopt;
  const auto number = [&](size_t i) { return static_cast<int>(content[kVersionAt + i]); };
  return concat(number(0), ".", number(1), ".", number(2));
}

bool mentions(std::string const& messages, char const* words) {
  return std::regex_search(messages, std::regex(words, std::regex::icase));
}

// Why TensorRT refuses an engine, to follow its path.
std::string refusal(std::vector<uint8_t> const& content, std::string const& messages,
                    std::string const& plugin_problem) {
  const auto builder = built_with(content);
  if (mentions(messages, "expecting library version|version tag does not match|engine version") ||
      (builder && *builder != tensorrt_version())) {
    return concat("was built by ", builder ? "TensorRT " + *builder : "another version of TensorRT",
                  ", and this is TensorRT ", tensorrt_version(),
                  ": export it again with this version, or install the one that built it");
  }
  if (mentions(messages, "incompatible device|expecting compute|platform specific tag")) {
    return concat("was built for another kind of GPU: export it again on this machine (TensorRT: ",
                  messages, ")");
  }
  if (mentions(messages, "cannot find plugin|plugin ?creator|plugin registry")) {
    return concat("needs a plugin that is not registered: ",
                  plugin_problem.empty() ? messages : plugin_problem);
  }
  return concat("is truncated or damaged: export it again (TensorRT: ", messages, ")");
}

size_t item_size(DataType type, std::string const& name) {
  switch (type) {
    case DataType::kFLOAT:
    case DataType::kINT32:
      return 4;
    case DataType::kINT64:
      return 8;
    default:
      throw std::runtime_error(concat("the engine's tensor ", name,
                                      ": expected float32, int32 or int64, got type ",
                                      static_cast<int>(type), " of nvinfer1::DataType"));
  }
}

std::vector<int64_t> to_shape(nvinfer1::Dims const& dims) {
  return {dims.d, dims.d + std::max(dims.nbDims, 0)};
}

nvinfer1::Dims to_dims(std::vector<int64_t> const& shape) {
  nvinfer1::Dims dims{};
  dims.nbDims = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), dims.d);
  return dims;
}

struct Tensor {
  DataType type{};
  std::vector<int64_t> shape;  // in this process's runs, all known
  Buffer buffer;

  size_t count() const { return buffer.size() / (type == DataType::kINT64 ? 8 : 4); }

  void write(int64_t const* values) const {
    if (type == DataType::kINT64) std::copy_n(values, count(), buffer.host<int64_t>());
    if (type == DataType::kINT32) std::copy_n(values, count(), buffer.host<int32_t>());
  }

  std::vector<int64_t> integers() const {
    if (type == DataType::kINT64) return {buffer.host<int64_t>(), buffer.host<int64_t>() + count()};
    return {buffer.host<int32_t>(), buffer.host<int32_t>() + count()};
  }

  std::vector<float> numbers() const {
    return {buffer.host<float>(), buffer.host<float>() + count()};
  }
};

class Engine final : public Network {
 public:
  Engine(EngineOptions const& options, Metadata const& metadata)
      : path_(options.path), batch_(metadata.batch) {
    const std::vector<uint8_t> content = read_engine(options.path);
    const std::string plugin_problem = load_plugins(options.plugins);
    use_device(options.device);
    runtime_.reset(nvinfer1::createInferRuntime(tensorrt_log()));
    if (!runtime_) throw std::runtime_error(tensorrt_log().take_errors());
    engine_.reset(runtime_->deserializeCudaEngine(content.data(), content.size()));
    if (!engine_) {
      const std::string messages = tensorrt_log().take_errors();
      throw std::runtime_error(
          concat(path_.string(), " ", refusal(content, messages, plugin_problem)));
    }
    check_metadata(options, metadata);
    context_.reset(engine_->createExecutionContext());
    if (!context_) fail("no execution context could be made");
    stream_ = make_stream();
    set_input("images", DataType::kFLOAT, {metadata.batch, 3, metadata.height, metadata.width});
    set_input("image_shapes", DataType::kINT64, {metadata.batch, 2});
    reserve();
    wants_graph_ = options.cuda_graph;
  }

  int batch() const override { return batch_; }

  Output run(Batch const& input) override {
    write(input);
    enqueue();
    for (auto const& [name, tensor] : tensors_) {
      if (!is_input(name)) tensor.buffer.copy_to_host(stream_.get());
    }
    synchronize();
    if (wants_graph_ && !graph_) capture();  // the first run has set up what is set up lazily
    Tensor const& boxes = tensors_.at("boxes");
    Tensor const& scores = tensors_.at("scores");
    return {static_cast<size_t>(scores.shape.at(1)), boxes.numbers(), scores.numbers(),
            tensors_.at("labels").integers()};
  }

  std::vector<Samples> time(Batch const& input, int runs) override {
    run(input);
    std::vector<Samples> result;
    const auto measure = [&](char const* how) {
      result.push_back({how, time_on_gpu(stream_.get(), kWarmupRuns, runs, [&] { enqueue(); })});
    };
    if (graph_) measure("CUDA graph");
    GraphExec graph;
    std::swap(graph, graph_);
    measure("no CUDA graph");
    std::swap(graph, graph_);
    return result;
  }

 private:
  [[noreturn]] void fail(std::string const& what) const {
    throw std::runtime_error(
        concat(path_.string(), ": ", what, ": ", tensorrt_log().take_errors()));
  }

  bool is_input(std::string const& name) const {
    return engine_->getTensorIOMode(name.c_str()) == nvinfer1::TensorIOMode::kINPUT;
  }

  std::vector<TensorDescription> described(bool inputs) const {
    std::vector<TensorDescription> result;
    for (int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
      char const* name = engine_->getIOTensorName(i);
      if (is_input(name) == inputs) {
        result.push_back({name, to_shape(engine_->getTensorShape(name))});
      }
    }
    return result;
  }

  // Afterwards the engine has the tensors that a detector has.
  void check_metadata(EngineOptions const& options, Metadata const& metadata) const {
    const auto inputs = described(true), outputs = described(false);
    metadata.check_tensors(options.metadata, inputs, outputs);
    const auto require = [&](std::vector<TensorDescription> const& tensors, char const* name,
                             size_t rank) {
      for (auto const& tensor : tensors) {
        if (tensor.name == name && tensor.shape.size() == rank) return;
      }
      throw std::runtime_error(concat(path_.string(),
                                      ": expected a detector's engine with a tensor ", name,
                                      " of rank ", rank, ", got none"));
    };
    require(inputs, "images", 4);
    require(inputs, "image_shapes", 2);
    require(outputs, "boxes", 3);
    require(outputs, "scores", 2);
    require(outputs, "labels", 2);
    if (inputs.size() != 2) {
      throw std::runtime_error(concat(path_.string(), ": expected the inputs images and ",
                                      "image_shapes, got ", inputs.size(), " inputs"));
    }
  }

  void set_input(char const* name, DataType expected, std::vector<int64_t> const& shape) {
    const DataType type = engine_->getTensorDataType(name);
    const bool narrower = expected == DataType::kINT64 && type == DataType::kINT32;
    if (type != expected && !narrower) {
      throw std::runtime_error(concat(path_.string(), ": the input ", name, ": expected ",
                                      expected == DataType::kFLOAT ? "float32" : "int64",
                                      ", got type ", static_cast<int>(type),
                                      " of nvinfer1::DataType"));
    }
    if (!context_->setInputShape(name, to_dims(shape))) {
      fail(concat("the input ", name, " refuses ", format_shape(shape)));
    }
  }

  // Gives every tensor its memory.
  void reserve() {
    for (int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
      char const* name = engine_->getIOTensorName(i);
      Tensor& tensor = tensors_[name];
      tensor.type = engine_->getTensorDataType(name);
      tensor.shape = to_shape(context_->getTensorShape(name));
      size_t size = item_size(tensor.type, name);
      for (int64_t side : tensor.shape) {
        if (side < 0)
          fail(concat("the shape of ", name, " depends on data, which is not supported"));
        size *= static_cast<size_t>(side);
      }
      tensor.buffer = Buffer(size);
      if (!context_->setTensorAddress(name, tensor.buffer.device())) {
        fail(concat("the tensor ", name, " refuses its memory"));
      }
    }
    for (char const* name : {"boxes", "scores", "labels"}) {
      const bool is_number = name != std::string("labels");
      if ((tensors_.at(name).type == DataType::kFLOAT) == is_number) continue;
      throw std::runtime_error(concat(path_.string(), ": the output ", name, ": expected ",
                                      is_number ? "float32" : "int64 or int32",
                                      ", got another type"));
    }
  }

  void write(Batch const& input) {
    Tensor const& images = tensors_.at("images");
    Tensor const& image_shapes = tensors_.at("image_shapes");
    std::copy(input.images.begin(), input.images.end(), images.buffer.host<float>());
    image_shapes.write(input.image_shapes.data());
    images.buffer.copy_to_device(stream_.get());
    image_shapes.buffer.copy_to_device(stream_.get());
  }

  void enqueue() {
    if (graph_) {
      check(cudaGraphLaunch(graph_.get(), stream_.get()), "cudaGraphLaunch");
    } else if (!context_->enqueueV3(stream_.get())) {
      fail("the engine does not run");
    }
  }

  void synchronize() { check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize"); }

  // An engine that cannot be captured goes on without a graph.
  void capture() {
    wants_graph_ = false;
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    const bool enqueued = context_->enqueueV3(stream_.get());
    cudaGraph_t captured = nullptr;
    cudaError_t status = cudaStreamEndCapture(stream_.get(), &captured);
    const Graph graph(captured);
    cudaGraphExec_t executable = nullptr;
    if (enqueued && status == cudaSuccess) {
      status = cudaGraphInstantiateWithFlags(&executable, captured, 0);
    }
    graph_.reset(executable);
    if (graph_) return;
    cudaGetLastError();  // forgotten, so that the next check does not report it
    std::cerr << "warning: " << path_.string() << " runs without a CUDA graph: "
              << (enqueued ? cudaGetErrorString(status) : tensorrt_log().take_errors().c_str())
              << std::endl;
  }

  std::filesystem::path path_;
  int batch_;
  bool wants_graph_ = false;
  // Destroyed in the opposite order: the graph before what it runs, the engine before its runtime.
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::map<std::string, Tensor> tensors_;
  Stream stream_;
  std::unique_ptr<nvinfer1::IExecutionContext> context_;
  GraphExec graph_;
};

}  // namespace

std::unique_ptr<Network> open_engine(EngineOptions const& options, Metadata const& metadata) {
  return std::make_unique<Engine>(options, metadata);
}

}  // namespace codetr
