#include "engine.h"

#include <NvInferRuntime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <iostream>
#include <list>
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

// TensorRT wants a valid address of an empty tensor too.
size_t at_least_some(size_t size) { return std::max(size, size_t{256}); }

std::vector<int64_t> to_shape(nvinfer1::Dims const& dims) {
  return {dims.d, dims.d + std::max(dims.nbDims, 0)};
}

nvinfer1::Dims to_dims(std::vector<int64_t> const& shape) {
  nvinfer1::Dims dims{};
  dims.nbDims = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), dims.d);
  return dims;
}

// Memory of a tensor, for the largest of its shapes.
struct Tensor {
  DataType type{};
  Buffer buffer;

  size_t bytes(size_t count) const { return count * (type == DataType::kINT64 ? 8 : 4); }

  void write(int64_t const* values, size_t count) const {
    if (type == DataType::kINT64) std::copy_n(values, count, buffer.host<int64_t>());
    if (type == DataType::kINT32) std::copy_n(values, count, buffer.host<int32_t>());
  }

  std::vector<int64_t> integers(size_t count) const {
    if (type == DataType::kINT64) return {buffer.host<int64_t>(), buffer.host<int64_t>() + count};
    return {buffer.host<int32_t>(), buffer.host<int32_t>() + count};
  }

  std::vector<float> numbers(size_t count) const {
    return {buffer.host<float>(), buffer.host<float>() + count};
  }
};

// N, H, W of the input.
using InputShape = std::array<int, 3>;

// All that belongs to one shape of the input. Each has its own execution context, because a graph
// may hold addresses of the context's own memory, which changes with the shape. They share the
// memory for intermediate results: one stream runs them in turn.
struct Session {
  InputShape shape{};
  std::unique_ptr<nvinfer1::IExecutionContext> context;
  std::map<std::string, std::vector<int64_t>> shapes;  // of every tensor, all sizes known
  GraphExec graph;                                     // destroyed before the context

  size_t count(std::string const& name) const {
    size_t result = 1;
    for (int64_t side : shapes.at(name)) result *= static_cast<size_t>(side);
    return result;
  }
};

// For how many shapes contexts and graphs are kept.
constexpr size_t kMaxSessions = 8;

class Engine final : public Network {
 public:
  Engine(EngineOptions const& options, Metadata const& metadata) : path_(options.path) {
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
    check_types();
    stream_ = make_stream();
    scratch_ = Buffer(at_least_some(static_cast<size_t>(engine_->getDeviceMemorySizeV2())), false);
    // The largest first: no later shape needs more memory.
    InputSizes const& sizes = metadata.sizes;
    session({sizes.batch.max, sizes.height.max, sizes.width.max});
    wants_graph_ = options.cuda_graph;
  }

  Output run(Batch const& input) override {
    Session& session = write(input);
    enqueue(session);
    for (auto const& [name, tensor] : tensors_) {
      if (!is_input(name)) {
        tensor.buffer.copy_to_host(tensor.bytes(session.count(name)), stream_.get());
      }
    }
    synchronize();
    // The first run has set up what is set up lazily.
    if (wants_graph_ && !session.graph) capture(session);
    return {static_cast<size_t>(session.shapes.at("scores").at(1)),
            tensors_.at("boxes").numbers(session.count("boxes")),
            tensors_.at("scores").numbers(session.count("scores")),
            tensors_.at("labels").integers(session.count("labels"))};
  }

  std::vector<Samples> time(Batch const& input, int runs) override {
    run(input);
    Session& session = sessions_.back();
    std::vector<Samples> result;
    const auto measure = [&](char const* how) {
      result.push_back(
          {how, time_on_gpu(stream_.get(), kWarmupRuns, runs, [&] { enqueue(session); })});
    };
    if (session.graph) measure("CUDA graph");
    GraphExec graph;
    std::swap(graph, session.graph);
    measure("no CUDA graph");
    std::swap(graph, session.graph);
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
    for (auto const& [name, shape] : inputs) {
      metadata.check_profile(options.metadata, name, profile_of(name, shape));
    }
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

  // The first profile's, which is the one that runs.
  Profile profile_of(std::string const& input, std::vector<int64_t> const& shape) const {
    if (std::find(shape.begin(), shape.end(), -1) == shape.end()) return {shape, shape, shape};
    const auto get = [&](nvinfer1::OptProfileSelector which) {
      return to_shape(engine_->getProfileShape(input.c_str(), 0, which));
    };
    return {get(nvinfer1::OptProfileSelector::kMIN), get(nvinfer1::OptProfileSelector::kOPT),
            get(nvinfer1::OptProfileSelector::kMAX)};
  }

  void check_types() const {
    const auto require = [&](char const* name, std::initializer_list<DataType> allowed,
                             char const* expected) {
      const DataType type = engine_->getTensorDataType(name);
      if (std::find(allowed.begin(), allowed.end(), type) != allowed.end()) return;
      throw std::runtime_error(concat(path_.string(), ": the tensor ", name, ": expected ",
                                      expected, ", got type ", static_cast<int>(type),
                                      " of nvinfer1::DataType"));
    };
    for (char const* name : {"images", "boxes", "scores"}) {
      require(name, {DataType::kFLOAT}, "float32");
    }
    for (char const* name : {"image_shapes", "labels"}) {
      require(name, {DataType::kINT64, DataType::kINT32}, "int64 or int32");
    }
  }

  // The session of this shape, made when it is its first time.
  Session& session(InputShape const& shape) {
    const auto known = std::find_if(sessions_.begin(), sessions_.end(),
                                    [&](Session const& one) { return one.shape == shape; });
    if (known != sessions_.end()) {
      sessions_.splice(sessions_.end(), sessions_, known);  // the last used is the last
      return sessions_.back();
    }
    if (sessions_.size() >= kMaxSessions) sessions_.pop_front();
    sessions_.push_back(make_session(shape));
    return sessions_.back();
  }

  Session make_session(InputShape const& shape) {
    const auto [count, height, width] = shape;
    Session session;
    session.shape = shape;
    session.context.reset(engine_->createExecutionContext(
        nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED));
    nvinfer1::IExecutionContext* context = session.context.get();
    if (context == nullptr) fail("no execution context could be made");
    context->setDeviceMemoryV2(scratch_.device(), static_cast<int64_t>(scratch_.size()));
    // Only the first context has the first profile by itself.
    if (context->getOptimizationProfile() != 0) {
      if (!context->setOptimizationProfileAsync(0, stream_.get())) fail("no profile 0");
      synchronize();
    }
    set_input(*context, "images", {count, 3, height, width});
    set_input(*context, "image_shapes", {count, 2});
    if (context->inferShapes(0, nullptr) != 0) fail("the shapes of its outputs are not known");
    for (int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
      char const* name = engine_->getIOTensorName(i);
      session.shapes[name] = to_shape(context->getTensorShape(name));
      if (!context->setTensorAddress(name, memory(session, name))) {
        fail(concat("the tensor ", name, " refuses its memory"));
      }
    }
    return session;
  }

  void set_input(nvinfer1::IExecutionContext& context, char const* name,
                 std::vector<int64_t> const& shape) const {
    if (!context.setInputShape(name, to_dims(shape))) {
      fail(concat("the input ", name, " refuses ", format_shape(shape)));
    }
  }

  // A tensor's memory on the GPU, made for the first session, which is the largest.
  void* memory(Session const& session, char const* name) {
    std::vector<int64_t> const& shape = session.shapes.at(name);
    if (std::any_of(shape.begin(), shape.end(), [](int64_t side) { return side < 0; })) {
      fail(concat("the shape of ", name, " depends on data, which is not supported"));
    }
    const DataType type = engine_->getTensorDataType(name);
    const size_t size = session.count(name) * item_size(type, name);
    const auto [entry, is_new] = tensors_.try_emplace(name);
    Tensor& tensor = entry->second;
    if (is_new) tensor = {type, Buffer(at_least_some(size))};
    if (tensor.buffer.size() < size) {
      fail(concat("the tensor ", name, " of shape ", format_shape(shape),
                  " is larger than for the largest input"));
    }
    return tensor.buffer.device();
  }

  // Hands the input over, and returns the session of its shape.
  Session& write(Batch const& input) {
    Session& session = this->session({input.count, input.height, input.width});
    Tensor const& images = tensors_.at("images");
    Tensor const& image_shapes = tensors_.at("image_shapes");
    std::copy(input.images.begin(), input.images.end(), images.buffer.host<float>());
    image_shapes.write(input.image_shapes.data(), input.image_shapes.size());
    images.buffer.copy_to_device(images.bytes(input.images.size()), stream_.get());
    image_shapes.buffer.copy_to_device(image_shapes.bytes(input.image_shapes.size()),
                                       stream_.get());
    return session;
  }

  void enqueue(Session& session) {
    if (session.graph) {
      check(cudaGraphLaunch(session.graph.get(), stream_.get()), "cudaGraphLaunch");
    } else if (!session.context->enqueueV3(stream_.get())) {
      fail("the engine does not run");
    }
  }

  void synchronize() { check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize"); }

  // An engine that cannot be captured goes on without a graph.
  void capture(Session& session) {
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    const bool enqueued = session.context->enqueueV3(stream_.get());
    cudaGraph_t captured = nullptr;
    cudaError_t status = cudaStreamEndCapture(stream_.get(), &captured);
    const Graph graph(captured);
    cudaGraphExec_t executable = nullptr;
    if (enqueued && status == cudaSuccess) {
      status = cudaGraphInstantiateWithFlags(&executable, captured, 0);
    }
    session.graph.reset(executable);
    if (session.graph) return;
    wants_graph_ = false;
    cudaGetLastError();  // forgotten, so that the next check does not report it
    std::cerr << "warning: " << path_.string() << " runs without a CUDA graph: "
              << (enqueued ? cudaGetErrorString(status) : tensorrt_log().take_errors().c_str())
              << std::endl;
  }

  std::filesystem::path path_;
  bool wants_graph_ = false;
  // Destroyed in the opposite order: the contexts before what they use, the engine before its
  // runtime.
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::map<std::string, Tensor> tensors_;
  Buffer scratch_;
  Stream stream_;
  std::list<Session> sessions_;
};

}  // namespace

std::unique_ptr<Network> open_engine(EngineOptions const& options, Metadata const& metadata) {
  return std::make_unique<Engine>(options, metadata);
}

}  // namespace codetr
