// The operators on the emulator, as C functions for ctypes (tests/emulated.py).
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator.h"
#include "guarded.h"
#include "msda/launchers.h"
#include "msda/params.h"

namespace {

using emulator::GuardedTensor;

// Memory of the caller, from a tensor's first element to its last. null with 0 bytes: the operator
// has no such tensor.
struct Tensor {
  void* data;
  int64_t bytes;
};

std::string last_message;

}  // namespace

extern "C" {

// The sizes and types of msda::Problem; the types are numbers of its enumerations.
struct EmulatedProblem {
  int64_t batch_size;
  int64_t num_cells;
  int64_t num_heads;
  int64_t head_dim;
  int64_t num_levels;
  int64_t num_queries;
  int64_t total_points;
  int64_t location_stride;
  int64_t weight_stride;
  const int32_t* points_per_level;
  int32_t locations;
  int32_t value_type;
  int32_t location_type;
  int32_t weight_type;
  int32_t int64_shapes;
};

// The tensors of both directions. The forward has neither grad_output nor gradients; the backward
// has no output.
struct EmulatedTensors {
  Tensor value;
  Tensor spatial_shapes;
  Tensor level_start_index;
  Tensor reference_points;
  Tensor sampling_locations;
  Tensor attention_weights;
  Tensor output;
  Tensor grad_output;
  Tensor grad_value;
  Tensor grad_sampling_locations;
  Tensor grad_attention_weights;
  Tensor grad_reference_points;
};

}  // extern "C"

namespace {

msda::Problem make_problem(const EmulatedProblem& from) {
  msda::Problem problem;
  problem.batch_size = from.batch_size;
  problem.num_cells = from.num_cells;
  problem.num_heads = from.num_heads;
  problem.head_dim = from.head_dim;
  problem.num_levels = from.num_levels;
  problem.num_queries = from.num_queries;
  problem.total_points = from.total_points;
  problem.location_stride = from.location_stride;
  problem.weight_stride = from.weight_stride;
  for (int64_t i = 0; i < from.num_levels && i < msda::kMaxLevels; ++i) {
    problem.points_per_level[i] = from.points_per_level[i];
  }
  problem.locations = static_cast<msda::Locations>(from.locations);
  problem.value_type = static_cast<msda::DataType>(from.value_type);
  problem.location_type = static_cast<msda::DataType>(from.location_type);
  problem.weight_type = static_cast<msda::DataType>(from.weight_type);
  problem.int64_shapes = from.int64_shapes != 0;
  return problem;
}

// The guarded copies of one call's tensors. The order's seed draws where in their pages they lie; 0
// puts all of them at the end.
class Copies {
 public:
  const void* input(const char* name, const Tensor& tensor) {
    return add(name, tensor, GuardedTensor::Access::kRead);
  }
  void* output(const char* name, const Tensor& tensor) {
    return add(name, tensor, GuardedTensor::Access::kWrite);
  }
  // Memory to work with, or null for 0 bytes.
  void* zeros(const char* name, size_t bytes) {
    if (bytes == 0) return nullptr;
    return add(name, nullptr, bytes, GuardedTensor::Access::kWrite);
  }
  // Copies the outputs back. Returns what is wrong with them, or an empty string.
  std::string finish() {
    std::string wrong;
    for (const auto& copy : copies_) {
      const std::string what = copy->finish();
      if (wrong.empty()) wrong = what;
    }
    return wrong;
  }

 private:
  void* add(const char* name, const Tensor& tensor, GuardedTensor::Access access) {
    if (!tensor.data) return nullptr;
    return add(name, tensor.data, static_cast<size_t>(tensor.bytes), access);
  }
  void* add(const char* name, void* data, size_t bytes, GuardedTensor::Access access) {
    const bool at_start = emulator::order() >> copies_.size() % 64 & 1;
    copies_.push_back(std::make_unique<GuardedTensor>(name, data, bytes, access, at_start));
    return copies_.back()->data();
  }

  std::vector<std::unique_ptr<GuardedTensor>> copies_;
};

msda::ForwardArguments forward_arguments(Copies& copies, const EmulatedTensors& tensors) {
  msda::ForwardArguments arguments;
  arguments.value = copies.input("value", tensors.value);
  arguments.spatial_shapes = copies.input("spatial_shapes", tensors.spatial_shapes);
  arguments.level_start_index = copies.input("level_start_index", tensors.level_start_index);
  arguments.reference_points = copies.input("reference_points", tensors.reference_points);
  arguments.sampling_locations =
      copies.input("sampling_locations or sampling_offsets", tensors.sampling_locations);
  arguments.attention_weights =
      copies.input("attention_weights or attention_logits", tensors.attention_weights);
  arguments.output = copies.output("output", tensors.output);
  return arguments;
}

// Checks the problem, calls run(problem, copies), and brings the outputs back.
template <typename Run>
int call(const EmulatedProblem& sizes, uint64_t order, const Run& run) {
  const msda::Problem problem = make_problem(sizes);
  last_message = msda::check(problem);
  if (!last_message.empty()) return cudaErrorInvalidValue;
  emulator::set_order(order);
  Copies copies;
  const cudaError_t status = run(problem, copies);
  if (status != cudaSuccess) {
    last_message = emulator::message();
    if (last_message.empty()) last_message = msda::check_environment();
    return status;
  }
  last_message = copies.finish();
  return last_message.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace

extern "C" {

// Both return a cudaError_t, and emulated_message() explains one that is not cudaSuccess. `order`
// is that of emulator::set_order().
int emulated_forward(const EmulatedProblem* sizes, const EmulatedTensors* tensors, uint64_t order) {
  return call(*sizes, order, [&](const msda::Problem& problem, Copies& copies) {
    return msda::forward(problem, forward_arguments(copies, *tensors), nullptr);
  });
}

int emulated_backward(const EmulatedProblem* sizes, const EmulatedTensors* tensors,
                      int deterministic, uint64_t order) {
  return call(*sizes, order, [&](const msda::Problem& problem, Copies& copies) {
    msda::BackwardArguments arguments;
    arguments.forward = forward_arguments(copies, *tensors);
    arguments.grad_output = copies.input("grad_output", tensors->grad_output);
    arguments.grad_value = copies.output("grad_value", tensors->grad_value);
    arguments.grad_sampling_locations =
        copies.output("grad_sampling_locations or _offsets", tensors->grad_sampling_locations);
    arguments.grad_attention_weights =
        copies.output("grad_attention_weights or _logits", tensors->grad_attention_weights);
    arguments.grad_reference_points =
        copies.output("grad_reference_points", tensors->grad_reference_points);
    arguments.deterministic = deterministic != 0;
    arguments.work = copies.zeros("work", msda::backward_work(problem, arguments).bytes);
    return msda::backward(problem, arguments, nullptr);
  });
}

const char* emulated_message() { return last_message.c_str(); }

}  // extern "C"
