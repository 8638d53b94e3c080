// The losing launches (README.md) of the forward group kernels, as a library. time_forward.py says
// how to build it. All launches are for 8 heads of 32 channels and 5 levels of 4 points.
#include <cuda_fp16.h>

#include <algorithm>
#include <string>
#include <vector>

#include "msda/forward_group.cuh"

namespace {

using msda::DataType;
using msda::GroupSpec;
using msda::Locations;

struct Form {
  std::string name;
  DataType type;
  Locations locations;
  cudaError_t (*launch)(const msda::Problem&, const msda::ForwardArguments&, cudaStream_t);
};
std::vector<Form> forms;

// Persistent blocks, with levels known at compile time.
constexpr GroupSpec persistent(int threads, int blocks, int samples_in_flight = 1) {
  return {.num_heads = 8,
          .num_levels = 5,
          .threads = threads,
          .blocks = blocks,
          .samples_in_flight = samples_in_flight};
}
constexpr GroupSpec block_for_each_tile(int threads, int blocks, int samples_in_flight) {
  GroupSpec spec = persistent(threads, blocks, samples_in_flight);
  spec.persistent = false;
  return spec;
}
constexpr GroupSpec levels_at_run_time(GroupSpec spec) {
  spec.num_heads = spec.num_levels = 0;
  return spec;
}

template <typename T, Locations kLocations, GroupSpec... kLaunches>
void add() {
  const auto add_one = [](auto config) {
    using Config = decltype(config);
    constexpr GroupSpec kSpec = Config::spec;
    forms.push_back({std::to_string(kSpec.threads) + " threads x" + std::to_string(kSpec.blocks) +
                         ", samples in flight " + std::to_string(kSpec.samples_in_flight) +
                         (kSpec.num_levels ? "" : ", levels at run time"),
                     sizeof(T) == 2 ? DataType::kFloat16 : DataType::kFloat32, kLocations,
                     msda::launch_forward_group<Config>});
  };
  constexpr auto located = [](GroupSpec spec) {
    spec.locations = kLocations;
    return spec;
  };
  (add_one(msda::GroupConfig<T, located(kLaunches)>()), ...);
}

template <Locations kLocations>
void add_encoder() {
  add<__half, kLocations, persistent(1024, 1), persistent(448, 2), persistent(384, 2, 2),
      persistent(320, 3), persistent(192, 5), persistent(128, 8),
      levels_at_run_time(persistent(512, 2)), levels_at_run_time(persistent(384, 3))>();
  add<float, kLocations, persistent(256, 3), levels_at_run_time(persistent(384, 2))>();
}

const bool added = [] {
  add_encoder<Locations::kReferencePoints>();
  add_encoder<Locations::kGiven>();
  add<__half, Locations::kReferenceBoxes, block_for_each_tile(128, 5, 2),
      levels_at_run_time(block_for_each_tile(128, 4, 4))>();
  add<float, Locations::kReferenceBoxes, levels_at_run_time(block_for_each_tile(128, 4, 2))>();
  return true;
}();

}  // namespace

#define LAB_EXPORT extern "C" __attribute__((visibility("default")))

// Returns the name of form `index` if it takes the type and locations, null if it takes others, and
// an empty name after the last form.
LAB_EXPORT const char* lab_form(int index, int type, int locations) {
  if (index >= static_cast<int>(forms.size())) return "";
  const Form& form = forms[index];
  const bool fits = form.type == DataType{type} && form.locations == Locations{locations};
  return fits ? form.name.c_str() : nullptr;
}

// Launches form `index` and returns its cudaError_t.
//   sizes    N, S, Q
//   tensors  in the order of ForwardArguments
LAB_EXPORT int lab_forward(int index, const int64_t sizes[3], void* const tensors[7],
                           cudaStream_t stream) {
  msda::Problem problem;
  problem.batch_size = sizes[0];
  problem.num_cells = sizes[1];
  problem.num_heads = 8;
  problem.head_dim = 32;
  problem.num_levels = 5;
  problem.num_queries = sizes[2];
  problem.total_points = 20;
  std::fill_n(problem.points_per_level, 5, 4);
  problem.locations = forms[index].locations;
  problem.value_type = problem.location_type = problem.weight_type = forms[index].type;
  problem.set_dense();
  const msda::ForwardArguments arguments{tensors[0], tensors[1], tensors[2], tensors[3],
                                         tensors[4], tensors[5], tensors[6]};
  return forms[index].launch(problem, arguments, stream);
}
