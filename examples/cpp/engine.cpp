#include "engine.h"

#include <NvInferRuntime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iostream>
#include <list>
#include <map>

#include "cuda.h"
#include "errors.h"
#include "files.h"
#include "tensorrt_library.h"

namespace codetr {
namespace {

using nvinfer1::DataType;

// An engine file begins with a tag and the version of its layout. Layout 0 has the version of the
// TensorRT that built it from byte 24 on.
constexpr uint32_t kTag = 0x74727466;
constexpr size_t kHeaderBytes = 28, kLayoutAt = 4, kVersionAt = 24;

std::vector<uint8_t> read_engine(std::filesystem::path const& path) {
  std::vector<uint8_t> content = read_file(path);
  uint32_t tag = 0;
  if (content.size() >= kHeaderBytes) std::memcpy(&tag, content.data(), sizeof(tag));
  if (tag == kTag) return content;
  throw std::runtime_error(concat(path.string(), content.empty()
                                                     ? " is empty: its export did not finish"
                                                     : " is not a TensorRT engine"));
}

// Returns why TensorRT refuses an engine.
std::string refusal(std::vector<uint8_t> const& engine, std::string const& missing_plugins) {
  const std::string messages = tensorrt_log().take_errors();
  const auto number = [&](size_t i) { return static_cast<int>(engine[kVersionAt + i]); };
  const std::string builder = concat(number(0), ".", number(1), ".", number(2));
  if (engine[kLayoutAt] == 0 && builder != tensorrt_version()) {
    return concat(" was built by TensorRT ", builder, ", and this is TensorRT ", tensorrt_version(),
                  ": export it again with this version");
  }
  if (!missing_plugins.empty() && messages.find("lugin") != messages.npos) {
    return concat(" needs a plugin that is not registered: ", missing_plugins);
  }
  return concat(" cannot be loaded; it may be damaged, or built for another kind of GPU: ",
                messages);
}

Shape to_shape(nvinfer1::Dims const& dims) { return {dims.d, dims.d + std::max(dims.nbDims, 0)}; }

size_t count_of(Shape const& shape) {
  size_t count = 1;
  for (int64_t side : shape) count *= static_cast<size_t>(side);
  return count;
}

// Memory of an input or output, sized for the largest of its shapes.
struct Tensor {
  size_t item_size = 0, size = 0;  // bytes
  DeviceMemory device;
  PinnedMemory host;

  template <class Number>
  std::vector<Number> values(Shape const& shape) const {
    auto const* data = static_cast<Number const*>(host.get());
    return {data, data + count_of(shape)};
  }
};

// Everything that belongs to one input shape. Each shape has its own execution context because a
// graph may hold addresses of the context's own memory, which changes with the shape. All contexts
// share the memory for intermediate results: one stream runs them in turn.
struct Session {
  std::array<int, 3> input{};  // N, H, W
  std::unique_ptr<nvinfer1::IExecutionContext> context;
  std::map<std::string, Shape> shapes;  // each tensor, all sizes known
  GraphExec graph;                      // destroyed before the context
};

constexpr size_t kMaxSessions = 8;

class Engine final : public Network {
 public:
  Engine(Options const& options, Metadata const& metadata) : path_(options.model) {
    const std::vector<uint8_t> content = read_engine(path_);
    const std::string missing_plugins = load_plugins(options.plugins);
    use_device(options.device);
    runtime_.reset(nvinfer1::createInferRuntime(tensorrt_log()));
    if (!runtime_) fail("TensorRT does not start");
    engine_.reset(runtime_->deserializeCudaEngine(content.data(), content.size()));
    if (!engine_) {
      throw std::runtime_error(concat(path_.string(), refusal(content, missing_plugins)));
    }
    for (int32_t i = 0; i < engine_->getNbIOTensors(); ++i) {
      names_.push_back(engine_->getIOTensorName(i));
    }
    check_tensors(options, metadata);
    stream_ = make_stream();
    scratch_size_ = std::max<int64_t>(engine_->getDeviceMemorySizeV2(), 256);
    scratch_ = make_device_memory(static_cast<size_t>(scratch_size_));
    // The largest shape comes first: no later shape needs more memory.
    InputSizes const& sizes = metadata.sizes;
    session({sizes.batch.max, sizes.height.max, sizes.width.max});
    wants_graph_ = options.cuda_graph;
  }

  Output run(Batch const& input) override {
    Session& session = this->session({input.count, input.height, input.width});
    upload("images", input.images);
    upload("image_shapes", input.image_shapes);
    enqueue(session);
    for (auto const& [name, tensor] : tensors_) {
      if (is_input(name)) continue;
      const size_t size = count_of(session.shapes.at(name)) * tensor.item_size;
      check(cudaMemcpyAsync(tensor.host.get(), tensor.device.get(), size, cudaMemcpyDeviceToHost,
                            stream_.get()),
            "cudaMemcpyAsync");
    }
    synchronize();
    // The first run has done the lazy initialisation, which a graph cannot capture.
    if (wants_graph_ && !session.graph) capture(session);
    auto const& shapes = session.shapes;
    return {static_cast<size_t>(shapes.at("scores").at(1)),
            tensors_.at("boxes").values<float>(shapes.at("boxes")),
            tensors_.at("scores").values<float>(shapes.at("scores")),
            tensors_.at("labels").values<int64_t>(shapes.at("labels"))};
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
    const GraphExec graph = std::move(session.graph);
    measure("no CUDA graph");
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

  // Checks that the engine is the one that the metadata describes, and a detector.
  void check_tensors(Options const& options, Metadata const& metadata) const {
    std::map<std::string, Shape> shapes;
    std::map<std::string, Profile> profiles;
    for (std::string const& name : names_) {
      Shape const& shape = shapes[name] = to_shape(engine_->getTensorShape(name.c_str()));
      if (!is_input(name) || std::find(shape.begin(), shape.end(), -1) == shape.end()) continue;
      const auto get = [&](nvinfer1::OptProfileSelector which) {
        return to_shape(engine_->getProfileShape(name.c_str(), 0, which));
      };
      profiles[name] = {get(nvinfer1::OptProfileSelector::kMIN),
                        get(nvinfer1::OptProfileSelector::kOPT),
                        get(nvinfer1::OptProfileSelector::kMAX)};
    }
    metadata.check_engine(options.metadata(), shapes, profiles);
    const auto require = [&](char const* name, size_t rank, DataType type) {
      if (shapes.count(name) > 0 && shapes[name].size() == rank &&
          engine_->getTensorDataType(name) == type) {
        return;
      }
      throw std::runtime_error(concat(path_.string(), ": expected a detector's engine with a ",
                                      type == DataType::kFLOAT ? "float32" : "int64", " tensor ",
                                      name, " of rank ", rank, ", got none"));
    };
    require("images", 4, DataType::kFLOAT);
    require("image_shapes", 2, DataType::kINT64);
    require("boxes", 3, DataType::kFLOAT);
    require("scores", 2, DataType::kFLOAT);
    require("labels", 2, DataType::kINT64);
  }

  // Returns the session of this shape, which becomes the last of the list.
  Session& session(std::array<int, 3> const& input) {
    const auto known = std::find_if(sessions_.begin(), sessions_.end(),
                                    [&](Session const& one) { return one.input == input; });
    if (known != sessions_.end()) {
      sessions_.splice(sessions_.end(), sessions_, known);
    } else {
      if (sessions_.size() >= kMaxSessions) sessions_.pop_front();
      sessions_.push_back(make_session(input));
    }
    return sessions_.back();
  }

  Session make_session(std::array<int, 3> const& input) {
    Session session;
    session.input = input;
    session.context.reset(engine_->createExecutionContext(
        nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED));
    nvinfer1::IExecutionContext* context = session.context.get();
    if (context == nullptr) fail("no execution context could be made");
    context->setDeviceMemoryV2(scratch_.get(), scratch_size_);
    // Only the first context has the first profile by itself.
    if (context->getOptimizationProfile() != 0) {
      if (!context->setOptimizationProfileAsync(0, stream_.get())) fail("no profile 0");
      synchronize();
    }
    const auto [count, height, width] = input;
    if (!context->setInputShape("images", nvinfer1::Dims4{count, 3, height, width}) ||
        !context->setInputShape("image_shapes", nvinfer1::Dims2{count, 2}) ||
        context->inferShapes(0, nullptr) != 0) {
      fail(concat("the engine refuses images ", format_shape({count, 3, height, width})));
    }
    for (std::string const& name : names_) {
      session.shapes[name] = to_shape(context->getTensorShape(name.c_str()));
      if (!context->setTensorAddress(name.c_str(), memory(name, session.shapes[name]))) {
        fail(concat("the tensor ", name, " refuses its memory"));
      }
    }
    return session;
  }

  // Returns a tensor's memory on the GPU, allocated for the first session.
  void* memory(std::string const& name, Shape const& shape) {
    if (std::any_of(shape.begin(), shape.end(), [](int64_t side) { return side < 0; })) {
      fail(concat("the shape of ", name, " depends on data, which is not supported"));
    }
    Tensor& tensor = tensors_[name];
    if (!tensor.device) {
      const bool is_wide = engine_->getTensorDataType(name.c_str()) == DataType::kINT64;
      tensor.item_size = is_wide ? 8 : 4;
      // TensorRT needs a valid address for an empty tensor, too.
      tensor.size = std::max<size_t>(count_of(shape) * tensor.item_size, 256);
      tensor.device = make_device_memory(tensor.size);
      tensor.host = make_pinned_memory(tensor.size);
    }
    if (tensor.size < count_of(shape) * tensor.item_size) {
      fail(concat("the tensor ", name, " of shape ", format_shape(shape),
                  " is larger than for the largest input"));
    }
    return tensor.device.get();
  }

  template <class Number>
  void upload(char const* name, std::vector<Number> const& values) {
    Tensor const& tensor = tensors_.at(name);
    const size_t size = values.size() * sizeof(Number);
    std::memcpy(tensor.host.get(), values.data(), size);
    check(cudaMemcpyAsync(tensor.device.get(), tensor.host.get(), size, cudaMemcpyHostToDevice,
                          stream_.get()),
          "cudaMemcpyAsync");
  }

  void enqueue(Session& session) {
    if (session.graph) {
      check(cudaGraphLaunch(session.graph.get(), stream_.get()), "cudaGraphLaunch");
    } else if (!session.context->enqueueV3(stream_.get())) {
      fail("the engine does not run");
    }
  }

  void synchronize() { check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize"); }

  // Captures a run. An engine that cannot be captured goes on without a graph.
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
    cudaGetLastError();  // clears the error, so that the next check does not report it
    std::cerr << "warning: " << path_.string() << " runs without a CUDA graph: "
              << (enqueued ? cudaGetErrorString(status) : tensorrt_log().take_errors().c_str())
              << std::endl;
  }

  std::filesystem::path path_;
  bool wants_graph_ = false;
  // Members are destroyed in the opposite order: the contexts before what they use, the engine
  // before its runtime.
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::vector<std::string> names_;
  std::map<std::string, Tensor> tensors_;
  int64_t scratch_size_ = 0;
  DeviceMemory scratch_;
  Stream stream_;
  std::list<Session> sessions_;
};

}  // namespace

std::unique_ptr<Network> open_engine(Options const& options, Metadata const& metadata) {
  return std::make_unique<Engine>(options, metadata);
}

}  // namespace codetr
