#include "bench/kernels/cuda_case.h"

#include <algorithm>

#include "base/check.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "kernels/layers/embedding.h"
#include "kernels/layers/layernorm.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain::bench {

void Check(cudaError_t error, const char* what) {
  DT_CHECK(error == cudaSuccess) << " " << what << ": " << cudaGetErrorString(error);
}

namespace {

// Device memory for the life of the program.
template <class T>
T* Allocate(int64_t count) {
  void* data = nullptr;
  Check(cudaMalloc(&data, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
  Check(cudaMemset(data, 0, static_cast<size_t>(count) * sizeof(T)), "cudaMemset");
  return static_cast<T*>(data);
}

// Ids come from a multiplicative hash, as in the CPU's cases.
void AddIds(Arena& arena) {
  std::vector<int64_t> ids;
  std::vector<int64_t> targets;
  for (int64_t row = 0; row < arena.rows(); ++row) {
    const uint64_t hash = static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15U >> 32;
    ids.push_back(static_cast<int64_t>(hash % static_cast<uint64_t>(arena.rows())));
    targets.push_back(static_cast<int64_t>(hash % static_cast<uint64_t>(kVocab)));
  }
  arena.ids = Allocate<int64_t>(arena.rows());
  arena.targets = Allocate<int64_t>(arena.rows());
  const size_t bytes = ids.size() * sizeof(int64_t);
  Check(cudaMemcpy(arena.ids, ids.data(), bytes, cudaMemcpyHostToDevice), "ids");
  Check(cudaMemcpy(arena.targets, targets.data(), bytes, cudaMemcpyHostToDevice), "targets");
  const auto workspace = kernels::EmbeddingWorkspaceBytesCuda(arena.rows(), arena.rows());
  DT_CHECK_OK(workspace.status());
  arena.sort_bytes = *workspace;
  arena.sort_workspace = Allocate<char>(static_cast<int64_t>(*workspace));
}

}  // namespace

void FillStreams(const Arena& arena) {
  std::vector<uint32_t> host(1 << 20);
  SplitMix64 random(1);
  for (uint32_t& bits : host) {
    const auto half = static_cast<uint32_t>(0x3f00 + random.Below(0x80));
    bits = half << 16 | half;
  }
  for (char* const stream : arena.streams) {
    for (int64_t at = 0; at < arena.elements; at += static_cast<int64_t>(host.size())) {
      const auto count = std::min(static_cast<int64_t>(host.size()), arena.elements - at);
      Check(cudaMemcpy(reinterpret_cast<float*>(stream) + at, host.data(),
                       static_cast<size_t>(count) * sizeof(float), cudaMemcpyHostToDevice),
            "filling a stream");
    }
  }
}

Arena MakeArena(int64_t elements) {
  Arena arena{.elements = elements};
  auto* const all = reinterpret_cast<char*>(Allocate<float>(kStreams * elements));
  for (int i = 0; i < kStreams; ++i) {  // One after the other: some cases take two as one.
    arena.streams[i] = all + i * elements * static_cast<int64_t>(sizeof(float));
  }
  FillStreams(arena);
  arena.rstd = Allocate<float>(arena.head_rows());
  Check(
      cudaMemcpy(arena.rstd, arena.streams[0],
                 static_cast<size_t>(arena.head_rows()) * sizeof(float), cudaMemcpyDeviceToDevice),
      "filling rstd");
  // LayerNorm's of whole rows is the largest: weight and bias.
  arena.workspace = Allocate<float>(kernels::LayerNormWorkspaceFloatsCuda(arena.rows(), kHidden));
  arena.block_sums = Allocate<double>(kernels::NormBlocks(0, elements));
  arena.sum = Allocate<double>(1);
  arena.adamw = Allocate<kernels::AdamWStepScalars>(1);
  const kernels::AdamWStepScalars scalars =
      kernels::MakeAdamWStepScalars({.lr = 1e-6, .weight_decay = 0.1, .step = 5});
  Check(cudaMemcpy(arena.adamw, &scalars, sizeof(scalars), cudaMemcpyHostToDevice), "scalars");
  arena.random = Allocate<kernels::PhiloxStream>(1);
  arena.row_numbers[0] = Allocate<float>(arena.rows());
  arena.row_numbers[1] = Allocate<float>(arena.rows());
  AddIds(arena);
  return arena;
}

}  // namespace dtrain::bench
