// The operators on the emulator, as C functions for ctypes (tests/matrix/emulated_kernels.py).
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "emulator.h"
#include "guarded.h"
#include "msda/launchers.h"
#include "msda/linear_choice.h"
#include "msda/params.h"
#include "msda/quantized_linear_choice.h"
#include "msda/top_k_choice.h"

namespace {

using emulator::GuardedTensor;

// emulated_kernels.py has a copy of this struct.
static_assert(std::is_standard_layout_v<msda::Problem> && sizeof(msda::Problem) == 232);
static_assert(std::is_standard_layout_v<msda::WindowProblem> && sizeof(msda::WindowProblem) == 64);

// Memory of the caller, from a tensor's first element to its last. null: the operator has no such
// tensor.
struct Tensor {
  const char* name;
  void* data;
  int64_t bytes;
};

std::string last_message;

// The guarded copies of one call's tensors. The order's seed draws where in their pages they lie; 0
// puts all of them at the end.
class Copies {
 public:
  const void* input(const Tensor& tensor) { return add(tensor, GuardedTensor::Access::kRead); }
  void* output(const Tensor& tensor) { return add(tensor, GuardedTensor::Access::kWrite); }
  // Memory to work with, or null for 0 bytes.
  void* zeros(const char* name, size_t bytes) {
    return bytes == 0 ? nullptr : add(name, nullptr, bytes, GuardedTensor::Access::kWrite);
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
  void* add(const Tensor& tensor, GuardedTensor::Access access) {
    if (!tensor.data) return nullptr;
    return add(tensor.name, tensor.data, static_cast<size_t>(tensor.bytes), access);
  }
  void* add(const char* name, void* data, size_t bytes, GuardedTensor::Access access) {
    const bool at_start = emulator::order() >> copies_.size() % 64 & 1;
    copies_.push_back(std::make_unique<GuardedTensor>(name, data, bytes, access, at_start));
    return copies_.back()->data();
  }

  std::vector<std::unique_ptr<GuardedTensor>> copies_;
};

msda::ForwardArguments forward_arguments(Copies& copies, const Tensor* tensors) {
  return {copies.input(tensors[0]), copies.input(tensors[1]), copies.input(tensors[2]),
          copies.input(tensors[3]), copies.input(tensors[4]), copies.input(tensors[5]),
          copies.output(tensors[6])};
}

// Checks the problem, calls run(copies), and brings the outputs back.
template <typename Problem, typename Run>
int call(const Problem& problem, uint64_t order, const Run& run) {
  last_message = msda::check(problem);
  if (!last_message.empty()) return cudaErrorInvalidValue;
  emulator::set_order(order);
  Copies copies;
  const cudaError_t status = run(copies);
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

// Both return a cudaError_t, and emulated_message() explains one that is not cudaSuccess.
//   tensors  those of ForwardArguments, then those of BackwardArguments, in their order
//   order    that of emulator::set_order()
int emulated_forward(const msda::Problem& problem, const Tensor* tensors, uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    return msda::forward(problem, forward_arguments(copies, tensors), nullptr);
  });
}

int emulated_backward(const msda::Problem& problem, const Tensor* tensors, uint64_t order,
                      int deterministic) {
  return call(problem, order, [&](Copies& copies) {
    msda::BackwardArguments arguments{forward_arguments(copies, tensors),
                                      copies.input(tensors[7]),
                                      copies.output(tensors[8]),
                                      copies.output(tensors[9]),
                                      copies.output(tensors[10]),
                                      copies.output(tensors[11]),
                                      deterministic != 0};
    arguments.work = copies.zeros("work", msda::backward_work(problem, arguments).bytes);
    return msda::backward(problem, arguments, nullptr);
  });
}

// tensors: those of WindowArguments, in their order.
int emulated_window_attention(const msda::WindowProblem& problem, const Tensor* tensors,
                              uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    const msda::WindowArguments arguments{copies.input(tensors[0]), copies.input(tensors[1]),
                                          copies.input(tensors[2]), copies.output(tensors[3])};
    return msda::window_attention(problem, arguments, nullptr);
  });
}

// tensors: x, weight and bias of each level, output and quantized.
int emulated_group_norm(const msda::GroupNormProblem& problem, const Tensor* tensors,
                        uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    msda::GroupNormArguments arguments;
    const Tensor* next = tensors;
    for (int i = 0; i < problem.num_levels; ++i) {
      msda::GroupNormLevel& level = arguments.levels[i];
      for (const void** tensor : {&level.x, &level.weight, &level.bias}) {
        *tensor = copies.input(*next++);
      }
    }
    arguments.output = copies.output(next[0]);
    arguments.quantized = copies.output(next[1]);
    arguments.work = copies.zeros("work", msda::group_norm_work(problem));
    return msda::group_norm(problem, arguments, nullptr);
  });
}

// tensors: those of LinearArguments, in their order.
int emulated_linear(const msda::LinearProblem& problem, const Tensor* tensors, uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    const msda::LinearArguments arguments{copies.input(tensors[0]), copies.input(tensors[1]),
                                          copies.input(tensors[2]), copies.input(tensors[3]),
                                          copies.input(tensors[4]), copies.input(tensors[5]),
                                          copies.input(tensors[6]), copies.output(tensors[7])};
    return msda::linear(problem, arguments, nullptr);
  });
}

// tensors: those of LinearMaxArguments, in their order.
int emulated_linear_max(const msda::LinearMaxProblem& problem, const Tensor* tensors,
                        uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    const msda::LinearMaxArguments arguments{copies.input(tensors[0]), copies.input(tensors[1]),
                                             copies.input(tensors[2]), copies.output(tensors[3])};
    return msda::linear_max(problem, arguments, nullptr);
  });
}

// tensors: x and the indices.
int emulated_top_k(const msda::TopKProblem& problem, const Tensor* tensors, uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    const msda::TopKArguments arguments{static_cast<const float*>(copies.input(tensors[0])),
                                        static_cast<int32_t*>(copies.output(tensors[1])),
                                        copies.zeros("work", msda::top_k_work(problem))};
    return msda::top_k(problem, arguments, nullptr);
  });
}

// tensors: those of ImageInputArguments, in their order.
int emulated_image_input(const msda::ImageInputProblem& problem, const Tensor* tensors,
                         uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    const msda::ImageInputArguments arguments{copies.input(tensors[0]), copies.output(tensors[1])};
    return msda::image_input(problem, arguments, nullptr);
  });
}

// The name of the kernel that an H200 runs a problem with, by linear_choice.h.
const char* fastest_linear(const msda::LinearProblem& problem) {
  const msda::LinearForm* const form = msda::fastest_form(problem);
  return form == nullptr ? "plain" : msda::name(form->kernel);
}

// Whether kernel "parts" can search rows of a length, by top_k_choice.h.
bool runs_top_k_parts(int64_t size, int64_t count) {
  return msda::can_run(msda::TopKKernel::kParts, {1, size, count});
}

// tensors: those of QuantizedLinearArguments, in their order.
int emulated_quantized_linear(const msda::QuantizedLinearProblem& problem, const Tensor* tensors,
                              uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    const msda::QuantizedLinearArguments arguments{
        copies.input(tensors[0]), copies.input(tensors[1]), copies.input(tensors[2]),
        copies.input(tensors[3]), copies.input(tensors[4]), copies.input(tensors[5]),
        copies.output(tensors[6])};
    return msda::quantized_linear(problem, arguments, nullptr);
  });
}

// tensors: those of QuantizedLayerNormArguments, in their order.
int emulated_quantized_layer_norm(const msda::QuantizedLayerNormProblem& problem,
                                  const Tensor* tensors, uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    const msda::QuantizedLayerNormArguments arguments{
        copies.input(tensors[0]), copies.input(tensors[1]), copies.input(tensors[2]),
        copies.output(tensors[3])};
    return msda::quantized_layer_norm(problem, arguments, nullptr);
  });
}

// tensors: those of LinearOfSumArguments, in their order.
int emulated_linear_of_sum(const msda::LinearOfSumProblem& problem, const Tensor* tensors,
                           uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    const msda::LinearOfSumArguments arguments{copies.input(tensors[0]), copies.input(tensors[1]),
                                               copies.input(tensors[2]), copies.input(tensors[3]),
                                               copies.output(tensors[4])};
    return msda::linear_of_sum(problem, arguments, nullptr);
  });
}

// tensors: those of FeedForwardArguments, in their order.
int emulated_feed_forward(const msda::FeedForwardProblem& problem, const Tensor* tensors,
                          uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    const msda::FeedForwardArguments arguments{
        copies.input(tensors[0]),
        copies.input(tensors[1]),
        copies.input(tensors[2]),
        copies.input(tensors[3]),
        copies.input(tensors[4]),
        copies.input(tensors[5]),
        copies.input(tensors[6]),
        copies.output(tensors[7]),
        copies.zeros("work", msda::feed_forward_work(problem))};
    return msda::feed_forward(problem, arguments, nullptr);
  });
}

// tensors: those of QuantizedFeedForwardArguments, in their order. Those that the problem does not
// have are null.
int emulated_quantized_feed_forward(const msda::QuantizedFeedForwardProblem& problem,
                                    const Tensor* tensors, uint64_t order) {
  return call(problem, order, [&](Copies& copies) {
    const msda::QuantizedFeedForwardArguments arguments{
        copies.input(tensors[0]),  copies.input(tensors[1]),  copies.input(tensors[2]),
        copies.input(tensors[3]),  copies.input(tensors[4]),  copies.input(tensors[5]),
        copies.input(tensors[6]),  copies.input(tensors[7]),  copies.input(tensors[8]),
        copies.output(tensors[9]), copies.output(tensors[10])};
    return msda::quantized_feed_forward(problem, arguments, nullptr);
  });
}

bool has_fast_linear_max(const msda::LinearMaxProblem& problem) {
  return msda::has_fast_linear_max(problem);
}

// The name of the kernel that an H200 runs a problem with, by quantized_linear_choice.h.
const char* fastest_quantized_linear(const msda::QuantizedLinearProblem& problem) {
  if (msda::fits_rows(problem)) return msda::name(msda::QuantizedLinearKernel::kRows);
  const msda::QuantizedLinearForm* const form = msda::fastest_form(problem);
  return form == nullptr ? "plain" : msda::name(form->kernel);
}

const char* emulated_message() { return last_message.c_str(); }

}  // extern "C"
