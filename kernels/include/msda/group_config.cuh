// What a forward group kernel is compiled for, and the policies that follow from it. Times are
// those of one encoder layer of Co-DINO at 768x1152 (8 heads of 32 channels, 5 levels of 4 points)
// on an NVIDIA H200 with a cold L2, unless a comment says otherwise; "near" and "uniform" are
// distributions of the locations (kernels/lab/README.md).
#pragma once

#include <type_traits>

#include "msda/group_sample.cuh"
#include "msda/params.h"
#include "msda/tiles.cuh"

namespace msda {

struct GroupSpec {
  // The problem, as far as it is known at compile time. Known levels take 183 us, levels read at
  // run time 224 us (fp16, fused, near).
  int head_dim = 32;  // D
  Locations locations = Locations::kGiven;
  bool float_inputs = false;  // 16-bit values with float locations and weights
  bool int8_value = false;    // with the other tensors in 16 bits
  int num_heads = 0;          // M; 0: read at run time
  int num_levels = 0;         // L, each of four points; 0: any levels and points
  // The launch. Persistent blocks are as many as the GPU holds, and go from tile to tile; otherwise
  // there is one block for each tile.
  bool persistent = true;
  int threads = 512;          // of a block
  int blocks = 2;             // of a multiprocessor; bounds the registers of a thread
  int samples_in_flight = 1;  // whose corners a lane loads before it blends the first
};

template <typename T, GroupSpec kSpec>
struct GroupConfig {
  using Type = T;
  static constexpr GroupSpec spec = kSpec;
  static constexpr bool k16Bit = sizeof(T) == 2;
  static constexpr bool kFused = kSpec.locations != Locations::kGiven;  // softmax, offsets inside
  static constexpr bool kBoxes = kSpec.locations == Locations::kReferenceBoxes;
  static constexpr bool kKnownLevels = kSpec.num_levels > 0;
  static constexpr bool kInt8Value = kSpec.int8_value;
  using Input = std::conditional_t<kSpec.float_inputs, float, T>;  // of locations and weights
  using Weight = std::conditional_t<kInt8Value, Fixed16, T>;       // of corners
  using Sum = std::conditional_t<kInt8Value, int32_t, float>;

  // ---- The shape of a block ---------------------------------------------------------------------
  // A lane holds kChunks of a head's channels: 16 bytes of the output, and as many of value, or 8
  // of int8. A group of kLanes neighbouring lanes makes one (n,q,m). A block takes the heads that
  // share a 128-byte line of value.
  static constexpr int kChunkChannels = 16 / sizeof(T);
  static constexpr int kChunkBytes = kInt8Value ? 8 : 16;  // of value
  static constexpr int kChunks = sizeof(T) / 2;
  static constexpr int kLanes = kSpec.head_dim / (kChunkChannels * kChunks);
  static constexpr int kHeadBytes = kSpec.head_dim * (kInt8Value ? 1 : sizeof(T));  // of value
  static constexpr int kHeads = kHeadBytes < 128 ? 128 / kHeadBytes : 1;
  static constexpr int kQueries = kSpec.threads / kLanes / kHeads;  // of a tile
  static constexpr int kTileHeight = kQueries / kTileWidth;

  // ---- Policies ---------------------------------------------------------------------------------
  // Spills are bytes of a thread's stack with 5 known levels, by nvcc 13.0 for sm_90.

  // Of every four known levels, each lane of a group makes the samples of one: the group then reads
  // its inputs in wide loads (176 us instead of 181, near). float values lack the registers.
  static constexpr int kLevelRounds = k16Bit ? kSpec.num_levels / 4 : 0;
  // Weights are divided by the largest of their (n,q,m), because corner weights are 16-bit numbers.
  static constexpr bool kRelativeWeights = kFused || k16Bit;
  // float values with levels read at run time begin with masked samples: clamped ones spill 24
  // bytes, and take 1,832 instructions instead of 1,120 (fused).
  static constexpr bool kMaskedOnly = !k16Bit && !kKnownLevels;
  // The softmax is normalised before the samples are made, so that no register keeps its sum;
  // otherwise 8 bytes spill. Decoders do not wait for the sum: their blocks are too few to hide it.
  static constexpr bool kNormaliseFirst = kFused && k16Bit && kKnownLevels && kSpec.persistent;
  // The samples of all known levels are made before the first is blended. Given locations: 8 bytes
  // spill, otherwise 16. Fused kernels would spill 16 bytes, and otherwise none.
  static constexpr bool kSamplesFirst = k16Bit && !kFused;
  // The addresses of locations and weights are opaque to nvcc, which would otherwise keep their
  // uniform and their varying parts in registers of their own and spill 8 bytes (fused).
  static constexpr bool kOpaqueInputs = !k16Bit && kKnownLevels && kSpec.persistent;
  // L2 fetches the lines of corners as a whole: many queries want both heads of a line at the same
  // time (849 us instead of 867 at 1280x1920, uniform). The few queries of a decoder are scattered,
  // and each head reads other cells: whole lines take 10.5 us instead of 9.4 (900 queries).
  static constexpr bool kWholeLines = kSpec.persistent;
  // The corners of the coarsest level, which is small enough to stay in L1, leave it last. The
  // inputs, which are read once, leave it first. Both together: 799 us instead of 849 at 1280x1920
  // (uniform).
  static constexpr bool kKeepsCoarsestLevel = kFused && k16Bit && kKnownLevels;

  static_assert(kLanes >= 2 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0);
  static_assert(kTileHeight >= 1 && kQueries == kTileHeight * kTileWidth);
  static_assert(kLanes % kSpec.samples_in_flight == 0 || kSpec.samples_in_flight % kLanes == 0);
  static_assert(!kKnownLevels || kLanes == 4);
  static_assert(!kInt8Value || (kFused && k16Bit && kKnownLevels));
};

}  // namespace msda
