// codetr_detect_torch: detects objects in pictures with a TorchScript module, which torch.jit or
// Torch-TensorRT has saved. The program loads Torch-TensorRT's runtime library first.
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <torch/script.h>
#include <torch/version.h>

#include <chrono>

#include "cuda.h"
#include "program.h"
#include "tensorrt_library.h"

namespace codetr {
namespace {

// Returns why Torch-TensorRT's runtime is missing: a module without engines needs none.
std::string load_runtime(std::string const& chosen) {
  const std::string library = chosen.empty() ? "libtorchtrt_runtime.so" : chosen;
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return "";
  if (!chosen.empty()) throw std::runtime_error(concat("--torchtrt: ", dlerror()));
  return concat("; ", dlerror(), "; give --torchtrt");
}

class ScriptModule final : public Network {
 public:
  explicit ScriptModule(Options const& options)
      : path_(options.model),
        device_(options.device == kCpu
                    ? c10::Device(c10::kCPU)
                    : c10::Device(c10::kCUDA, static_cast<int8_t>(options.device))) {
    std::string missing = "cannot be loaded";
    if (device_.is_cuda()) {
      use_device(options.device);
      missing += load_plugins(options.plugins);
    }
    if (device_.is_cuda() || !options.torchtrt.empty()) missing += load_runtime(options.torchtrt);
    try {
      module_ = torch::jit::load(path_.string(), device_);
      module_.eval();
    } catch (c10::Error const& error) {
      fail(missing, error);
    }
  }

  Output run(Batch const& input) override {
    const std::vector<at::Tensor> outputs = forward(on_device(input));
    const at::Tensor boxes = outputs[0].to(c10::kCPU, c10::kFloat).contiguous();
    const at::Tensor scores = outputs[1].to(c10::kCPU, c10::kFloat).contiguous();
    const at::Tensor labels = outputs[2].to(c10::kCPU, c10::kLong).contiguous();
    return {static_cast<size_t>(scores.size(1)), values<float>(boxes), values<float>(scores),
            values<int64_t>(labels)};
  }

  std::vector<Samples> time(Batch const& input, int runs) override {
    const std::vector<c10::IValue> inputs = on_device(input);
    if (device_.is_cuda()) {
      cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
      return {{"TorchScript", time_on_gpu(stream, runs, [&] { forward(inputs); })}};
    }
    for (int i = 0; i < kWarmupRuns; ++i) forward(inputs);
    Samples samples{"TorchScript on the CPU", {}};
    for (int i = 0; i < runs; ++i) {
      const auto start = std::chrono::steady_clock::now();
      forward(inputs);
      const std::chrono::duration<float, std::milli> passed =
          std::chrono::steady_clock::now() - start;
      samples.milliseconds.push_back(passed.count());
    }
    return {samples};
  }

 private:
  // Reports an error of Torch without the stack of calls that Torch appends.
  [[noreturn]] void fail(std::string const& what, c10::Error const& error) const {
    throw std::runtime_error(
        concat(path_.string(), ": ", what, ": ", error.what_without_backtrace()));
  }

  template <class Number>
  static std::vector<Number> values(at::Tensor const& tensor) {
    Number const* data = tensor.const_data_ptr<Number>();
    return {data, data + tensor.numel()};
  }

  std::vector<c10::IValue> on_device(Batch const& input) const {
    const auto tensor = [&](auto const& numbers, c10::IntArrayRef shape, c10::ScalarType type) {
      auto* data = const_cast<std::decay_t<decltype(numbers[0])>*>(numbers.data());
      return at::from_blob(data, shape, type)
          .to(device_, type, /*non_blocking=*/false, /*copy=*/true);
    };
    return {tensor(input.images(), {input.count, 3, input.height, input.width}, c10::kFloat),
            tensor(input.image_shapes, {input.count, 2}, c10::kLong)};
  }

  // Returns boxes, scores, labels and any further outputs.
  std::vector<at::Tensor> forward(std::vector<c10::IValue> const& inputs) {
    const c10::InferenceMode no_gradients;
    std::vector<at::Tensor> outputs;
    try {
      const c10::IValue result = module_.forward(inputs);
      if (result.isTensorList()) {
        outputs = result.toTensorVector();
      } else if (result.isTuple()) {
        for (c10::IValue const& element : result.toTupleRef().elements()) {
          if (element.isTensor()) outputs.push_back(element.toTensor());
        }
      }
    } catch (c10::Error const& error) {
      fail("the module does not run", error);
    }
    if (outputs.size() < 3) {
      throw std::runtime_error(concat(path_.string(), ": expected the outputs boxes, scores and ",
                                      "labels, got ", outputs.size(), " tensors"));
    }
    return outputs;
  }

  std::filesystem::path path_;
  c10::Device device_;
  torch::jit::Module module_;
};

}  // namespace
}  // namespace codetr

int main(int count, char** arguments) {
  const codetr::Program program{
      "codetr_detect_torch", "--model",
      codetr::concat("Torch ", TORCH_VERSION, ", TensorRT ", codetr::tensorrt_version()),
      /*torch=*/true};
  const auto open = [](codetr::Options const& options, codetr::Metadata const&) {
    return std::make_unique<codetr::ScriptModule>(options);
  };
  return codetr::run_program(program, count, arguments, open);
}
