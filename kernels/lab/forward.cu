// Times and checks forms of the forward kernels, to choose the launches of forward_dispatch.cuh. It
// links neither Torch nor TensorRT. README.md lists what lost.
//
//   nvcc -std=c++20 -O3 -arch=sm_90 -I../include -o forward forward.cu ../src/kernels_fp64.cu
//   ./forward [--height 768] [--width 1152] [--batch 1] [--packed 0] [--only TEXT]
//
// The problem is an encoder layer of a five-scale Co-DINO, and a decoder layer of 900 queries: 8
// heads of 32 channels, 4 points. Locations "near" are the published initial offsets plus noise of
// 1.5 cells; "uniform" locations lie anywhere. With a cold cache, launches alternate between two
// sets of inputs, each as large as an H200's L2; with a warm one they repeat one set. Times are the
// median of 20 graphs of 10 launches. Errors are relative to the general kernel in double.
// --packed 1: a query's offsets and logits (or locations and weights) are columns of one tensor.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "msda/forward_dispatch.cuh"

namespace {

using msda::ForwardArguments;
using msda::Locations;
using msda::Problem;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

struct Options {
  int height = 768;
  int width = 1152;
  int batch = 1;
  bool packed = false;
  std::string only;
};

__device__ uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}
__device__ float uniform(uint32_t seed, int64_t i) {
  const uint32_t word =
      mix(mix(static_cast<uint32_t>(i) ^ mix(seed)) + static_cast<uint32_t>(i >> 32));
  return (word >> 8) * (1.0f / (1 << 24));
}
__device__ float normal(uint32_t seed, int64_t i) {
  const float u = uniform(seed, 2 * i) + 1e-7f;
  return sqrtf(-2.0f * logf(u)) * cospif(2.0f * uniform(seed, 2 * i + 1));
}

__global__ void fill_normal(float* out, int64_t count, uint32_t seed) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = normal(seed, i);
}

// Makes reference [N,Q,L,2 or 4], offsets and locations [N,Q,M,K,2]; one thread for each (n,q).
__global__ void fill_samples(const int64_t* shapes, int levels, int heads, int points,
                             int64_t queries, int64_t count, bool encoder, bool boxes, bool near,
                             float* reference, float* offsets, float* locations, uint32_t seed) {
  const int64_t query_index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (query_index >= count) return;
  int64_t query = query_index % queries;
  float x = uniform(seed, 2 * query_index), y = uniform(seed, 2 * query_index + 1);
  if (encoder) {
    int level = 0;
    while (query >= shapes[2 * level] * shapes[2 * level + 1]) {
      query -= shapes[2 * level] * shapes[2 * level + 1];
      ++level;
    }
    x = (query % shapes[2 * level + 1] + 0.5f) / shapes[2 * level + 1];
    y = (query / shapes[2 * level + 1] + 0.5f) / shapes[2 * level];
  }
  const float w = 0.05f + 0.35f * uniform(seed + 1, 2 * query_index);
  const float h = 0.05f + 0.35f * uniform(seed + 1, 2 * query_index + 1);
  for (int level = 0; level < levels; ++level) {
    float* const r = reference + (query_index * levels + level) * (boxes ? 4 : 2);
    r[0] = x;
    r[1] = y;
    if (boxes) {
      r[2] = w;
      r[3] = h;
    }
    const float columns = shapes[2 * level + 1], lines = shapes[2 * level];
    for (int head = 0; head < heads; ++head) {
      for (int point = 0; point < points; ++point) {
        const int64_t i = ((query_index * heads + head) * levels + level) * points + point;
        const float angle = 2.0f * head / heads;
        const float dx = cospif(angle), dy = sinpif(angle), longest = fmaxf(fabsf(dx), fabsf(dy));
        const float unit_x = boxes ? 0.5f / points * w : 1.0f / columns;
        const float unit_y = boxes ? 0.5f / points * h : 1.0f / lines;
        float ox = dx / longest * (point + 1) + 1.5f * normal(seed + 2, 2 * i);
        float oy = dy / longest * (point + 1) + 1.5f * normal(seed + 2, 2 * i + 1);
        if (!near) {
          ox = (uniform(seed + 3, 2 * i) - x) / unit_x;
          oy = (uniform(seed + 3, 2 * i + 1) - y) / unit_y;
        }
        offsets[2 * i] = ox;
        offsets[2 * i + 1] = oy;
        locations[2 * i] = x + ox * unit_x;
        locations[2 * i + 1] = y + oy * unit_y;
      }
    }
  }
}

template <typename T>
__global__ void convert(const float* in, T* out, double* wide, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  out[i] = msda::narrow<T>(in[i]);
  if (wide) wide[i] = static_cast<double>(msda::widen(out[i]));
}

template <typename T>
__global__ void compare(const T* out, const double* truth, int64_t count, double* sums) {
  double error = 0, size = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const double difference = static_cast<double>(msda::widen(out[i])) - truth[i];
    error += difference * difference;
    size += truth[i] * truth[i];
  }
  atomicAdd(sums, error);
  atomicAdd(sums + 1, size);
}

template <typename T>
T* allocate(int64_t count) {
  T* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
  return memory;
}

unsigned blocks_of(int64_t count) { return static_cast<unsigned>((count + 255) / 256); }

template <typename T>
struct Set {
  ForwardArguments arguments;
  double* truth = nullptr;  // of the first set
};

template <typename T>
constexpr msda::DataType kType = std::is_same_v<T, float>    ? msda::DataType::kFloat32
                                 : std::is_same_v<T, __half> ? msda::DataType::kFloat16
                                                             : msda::DataType::kBFloat16;

template <typename T>
class Bench {
 public:
  Bench(const Options& options, bool encoder, Locations locations, bool near, bool warm)
      : options_(options), sets_used_(warm ? 1 : 2) {
    const bool fused = locations != Locations::kGiven;
    const bool boxes = locations == Locations::kReferenceBoxes;
    int64_t shapes[10], starts[5], cells = 0;
    for (int level = 0; level < 5; ++level) {
      const int stride = 4 << level;
      shapes[2 * level] = (options.height + stride - 1) / stride;
      shapes[2 * level + 1] = (options.width + stride - 1) / stride;
      starts[level] = cells;
      cells += shapes[2 * level] * shapes[2 * level + 1];
    }
    problem.batch_size = options.batch;
    problem.num_cells = cells;
    problem.num_heads = 8;
    problem.head_dim = 32;
    problem.num_levels = 5;
    problem.num_queries = encoder ? cells : 900;
    problem.total_points = 20;
    for (int level = 0; level < 5; ++level) problem.points_per_level[level] = 4;
    problem.set_dense();
    problem.locations = locations;
    problem.value_type = problem.location_type = problem.weight_type = kType<T>;
    const int64_t queries = problem.batch_size * problem.num_queries, items = queries * 8;
    outputs_ = items * 32;
    int64_t* const device_shapes = allocate<int64_t>(10);
    int64_t* const device_starts = allocate<int64_t>(5);
    check(cudaMemcpy(device_shapes, shapes, sizeof(shapes), cudaMemcpyDefault), "copy");
    check(cudaMemcpy(device_starts, starts, sizeof(starts), cudaMemcpyDefault), "copy");
    const int64_t values = problem.batch_size * cells * 256;
    float* const scratch = allocate<float>(std::max({values, items * 40, items * 20}));
    float* const other = allocate<float>(items * 40);
    for (int s = 0; s < 2; ++s) {
      ForwardArguments& a = sets_[s].arguments;
      a.spatial_shapes = device_shapes;
      a.level_start_index = device_starts;
      const bool first = s == 0;
      const auto store = [&](const float* from, int64_t count, double*& wide) -> const void* {
        T* const out = allocate<T>(count);
        wide = first ? allocate<double>(count) : nullptr;
        convert<T><<<blocks_of(count), 256>>>(from, out, wide, count);
        return out;
      };
      ForwardArguments wide = a;
      double *wide_value, *wide_locations, *wide_weights;
      fill_normal<<<blocks_of(values), 256>>>(scratch, values, 11 + s);
      a.value = store(scratch, values, wide_value);
      float* const reference = allocate<float>(queries * 5 * (boxes ? 4 : 2));
      fill_samples<<<blocks_of(queries), 256>>>(device_shapes, 5, 8, 4, problem.num_queries,
                                                queries, encoder, boxes, near, reference, scratch,
                                                other, 23 + s);
      a.reference_points = fused ? reference : nullptr;
      a.sampling_locations = store(fused ? scratch : other, items * 40, wide_locations);
      fill_normal<<<blocks_of(items * 20), 256>>>(scratch, items * 20, 37 + s);
      a.attention_weights = store(scratch, items * 20, wide_weights);
      a.output = allocate<T>(outputs_);
      if (first) {
        wide.value = wide_value;
        wide.sampling_locations = wide_locations;
        wide.attention_weights = wide_weights;
        double* wide_reference = nullptr;
        if (fused) {
          wide_reference = allocate<double>(queries * 5 * (boxes ? 4 : 2));
          float* const same = allocate<float>(queries * 5 * (boxes ? 4 : 2));
          convert<float><<<blocks_of(queries * 5 * (boxes ? 4 : 2)), 256>>>(
              reference, same, wide_reference, queries * 5 * (boxes ? 4 : 2));
        }
        wide.reference_points = wide_reference;
        sets_[0].truth = allocate<double>(outputs_);
        wide.output = sets_[0].truth;
        Problem in_double = problem;
        in_double.value_type = in_double.location_type = in_double.weight_type =
            msda::DataType::kFloat64;
        check(msda::run_forward<double>(msda::ForwardKernel::kGeneral, in_double, wide, nullptr),
              "truth");
        check(cudaDeviceSynchronize(), "truth");
        cudaFree(wide_value);
        cudaFree(wide_locations);
        cudaFree(wide_weights);
      }
      if (options.packed) pack(a, queries);
    }
    if (options.packed) problem.location_stride = problem.weight_stride = 480;
    cudaFree(scratch);
    cudaFree(other);
    sums_ = allocate<double>(2);
  }

  using Launch = std::function<cudaError_t(const Problem&, const ForwardArguments&, cudaStream_t)>;

  void measure(const std::string& name, const Launch& launch) {
    if (!options_.only.empty() && name.find(options_.only) == std::string::npos) return;
    cudaStream_t stream;
    check(cudaStreamCreate(&stream), "stream");
    check(cudaMemsetAsync(sets_[0].arguments.output, 0xff, outputs_ * sizeof(T), stream), "memset");
    cudaError_t status = launch(problem, sets_[0].arguments, stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
    if (status != cudaSuccess) {
      std::printf("%-58s %s\n", name.c_str(), cudaGetErrorString(status));
      if (status != cudaErrorNotSupported) std::exit(1);
      return;
    }
    check(cudaMemset(sums_, 0, 16), "memset");
    compare<T><<<256, 256>>>(static_cast<const T*>(sets_[0].arguments.output), sets_[0].truth,
                             outputs_, sums_);
    double sums[2];
    check(cudaMemcpy(sums, sums_, 16, cudaMemcpyDefault), "compare");
    cudaGraph_t graph;
    cudaGraphExec_t run;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < 10; ++i)
      check(launch(problem, sets_[i % sets_used_].arguments, stream), "launch");
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&run, graph, 0), "instantiate");
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> times;
    for (int i = 0; i < 22; ++i) {
      cudaEventRecord(begin, stream);
      check(cudaGraphLaunch(run, stream), "graph");
      cudaEventRecord(end, stream);
      check(cudaEventSynchronize(end), "graph");
      float ms;
      cudaEventElapsedTime(&ms, begin, end);
      if (i >= 2) times.push_back(ms * 100);
    }
    std::sort(times.begin(), times.end());
    std::printf("%-58s %8.1f us  (%.1f to %.1f)  error %.1e\n", name.c_str(),
                times[times.size() / 2], times[1], times[times.size() - 2],
                std::sqrt(sums[0] / sums[1]));
    std::fflush(stdout);
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }

  template <msda::GroupSpec kSpec>
  void group(const std::string& title) {
    using Config = msda::GroupConfig<T, kSpec>;
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, msda::forward_group_kernel<Config>), "attributes");
    measure(title + " levels " + std::to_string(kSpec.num_levels) + " threads " +
                std::to_string(kSpec.threads) + " x" + std::to_string(kSpec.blocks) + " flight " +
                std::to_string(kSpec.samples_in_flight) + (kSpec.persistent ? "" : " few") +
                " regs " + std::to_string(attributes.numRegs) +
                (attributes.localSizeBytes ? " spills" : ""),
            msda::launch_forward_group<Config>);
  }

  Problem problem;

 private:
  // Makes the offsets and logits of 8 * 20 points columns of one tensor.
  static void pack(ForwardArguments& arguments, int64_t queries) {
    constexpr size_t kPitch = 480 * sizeof(T);
    const auto move = [&](const void*& from, T* to, size_t bytes) {
      check(cudaMemcpy2D(to, kPitch, from, bytes, bytes, queries, cudaMemcpyDefault), "pack");
      cudaFree(const_cast<void*>(from));
      from = to;
    };
    T* const packed = allocate<T>(queries * 480);
    move(arguments.sampling_locations, packed, 320 * sizeof(T));
    move(arguments.attention_weights, packed + 320, 160 * sizeof(T));
  }

  Options options_;
  int sets_used_;
  Set<T> sets_[2];
  int64_t outputs_ = 0;
  double* sums_ = nullptr;
};

// Launches of persistent blocks, and of one block for each tile.
constexpr msda::GroupSpec many(int threads, int blocks, int samples_in_flight = 1) {
  return {.threads = threads, .blocks = blocks, .samples_in_flight = samples_in_flight};
}
constexpr msda::GroupSpec few(int threads, int blocks, int samples_in_flight) {
  msda::GroupSpec spec = many(threads, blocks, samples_in_flight);
  spec.persistent = false;
  return spec;
}

// The problem of this program, with levels known at compile time or read at run time.
constexpr msda::GroupSpec known(msda::GroupSpec spec, Locations locations) {
  spec.locations = locations;
  spec.num_heads = 8;
  spec.num_levels = 5;
  return spec;
}
constexpr msda::GroupSpec unknown(msda::GroupSpec spec, Locations locations) {
  spec.locations = locations;
  return spec;
}

const char* name(Locations locations) {
  return locations == Locations::kGiven             ? "given"
         : locations == Locations::kReferencePoints ? "points"
                                                    : "boxes";
}

template <typename T, Locations kLocations>
void encoder(const Options& options, const std::string& type) {
  for (const bool near : {true, false}) {
    Bench<T> bench(options, true, kLocations, near, false);
    const std::string title = type + " encoder " + name(kLocations) + (near ? " near" : " uniform");
    bench.measure(title + " general", msda::launch_forward<T>);
    if constexpr (sizeof(T) == 2) {
      bench.template group<known(many(512, 2), kLocations)>(title);
      bench.template group<known(many(256, 4), kLocations)>(title);
      bench.template group<known(many(384, 2, 2), kLocations)>(title);
      bench.template group<known(many(1024, 1), kLocations)>(title);
      bench.template group<unknown(many(512, 2), kLocations)>(title);
      bench.template group<unknown(many(384, 3), kLocations)>(title);
    } else {
      bench.template group<known(many(384, 2), kLocations)>(title);
      bench.template group<known(many(256, 3), kLocations)>(title);
      bench.template group<unknown(many(384, 2), kLocations)>(title);
    }
  }
}

template <typename T, Locations kLocations>
void decoder(const Options& options, const std::string& type) {
  for (const bool warm : {false, true}) {
    Bench<T> bench(options, false, kLocations, true, warm);
    const std::string title = type + " decoder " + name(kLocations) + (warm ? " warm" : " cold");
    bench.measure(title + " general", msda::launch_forward<T>);
    if constexpr (sizeof(T) == 2) {
      bench.template group<known(few(128, 4, 4), kLocations)>(title);
      bench.template group<known(few(128, 5, 2), kLocations)>(title);
      bench.template group<unknown(few(128, 4, 4), kLocations)>(title);
      bench.template group<known(many(512, 2), kLocations)>(title);
    } else {
      bench.template group<known(few(128, 4, 2), kLocations)>(title);
      bench.template group<unknown(few(128, 4, 2), kLocations)>(title);
      bench.template group<known(many(384, 2), kLocations)>(title);
    }
  }
}

}  // namespace

int main(int count, char** given) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = given[i];
    if (name == "--height") {
      options.height = std::atoi(given[i + 1]);
    } else if (name == "--width") {
      options.width = std::atoi(given[i + 1]);
    } else if (name == "--batch") {
      options.batch = std::atoi(given[i + 1]);
    } else if (name == "--packed") {
      options.packed = std::atoi(given[i + 1]) != 0;
    } else if (name == "--only") {
      options.only = given[i + 1];
    } else {
      std::fprintf(stderr, "%s: unknown option\n", given[i]);
      return 2;
    }
  }
  encoder<__half, Locations::kReferencePoints>(options, "fp16");
  encoder<__half, Locations::kGiven>(options, "fp16");
  encoder<float, Locations::kReferencePoints>(options, "fp32");
  encoder<float, Locations::kGiven>(options, "fp32");
  encoder<__nv_bfloat16, Locations::kReferencePoints>(options, "bf16");
  decoder<__half, Locations::kReferenceBoxes>(options, "fp16");
  decoder<__half, Locations::kReferencePoints>(options, "fp16");
  decoder<__half, Locations::kGiven>(options, "fp16");
  decoder<float, Locations::kReferenceBoxes>(options, "fp32");
  return 0;
}
