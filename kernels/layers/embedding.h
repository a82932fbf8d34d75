// The gradient of an embedding table: for each row, the sum of the gradients of the tokens that
// read it.
//
// Tokens are sorted by id (stably), and each row adds its tokens in order in fp32 and is rounded
// once: no atomics, and the same bits on every SIMD variant and thread count, whatever other
// tokens there are. CUDA gives the same bits, except that a NaN is CUDA's own (cuda_table.h).
// Thread-safe on disjoint buffers; the CPU form allocates nothing, the CUDA form takes a workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"

namespace dtrain::kernels {

template <class T>
struct EmbeddingBackwardArgs {
  int64_t tokens = 0;
  int64_t vocab = 0;
  int64_t width = 0;
  int64_t padding_index = -1;    // Its row gets zeros; -1: none.
  const int64_t* ids = nullptr;  // [tokens], each in [0, vocab).
  const T* dy = nullptr;         // [tokens, width].
  T* dweight = nullptr;          // [vocab, width], written whole: zeros where no token is.
  int64_t* order = nullptr;      // Workspace: [tokens].
  int64_t* starts = nullptr;     // Workspace: [vocab + 2].
};

// The stable sort alone: `order` holds the tokens by id, and row v's are order[starts[v]] to
// order[starts[v + 1]]. Serial: a pass over the tokens and one over the rows.
void SortTokensById(int64_t tokens, int64_t vocab, const int64_t* ids, int64_t* order,
                    int64_t* starts);

void EmbeddingBackwardCpu(const EmbeddingBackwardArgs<float>& args, ParallelFor parallel_for);
void EmbeddingBackwardCpu(const EmbeddingBackwardArgs<BFloat16>& args, ParallelFor parallel_for);

// The same on device pointers; `workspace` is EmbeddingWorkspaceBytesCuda(tokens, vocab) bytes at a
// 256-byte address, instead of order and starts. Queue kernels on `stream`, do not synchronise;
// Internal when a launch fails. REQUIRES: tokens < 2^31.
absl::StatusOr<size_t> EmbeddingWorkspaceBytesCuda(int64_t tokens, int64_t vocab);
absl::Status EmbeddingBackwardCuda(const EmbeddingBackwardArgs<float>& args, void* workspace,
                                   size_t workspace_bytes, CudaStream stream);
absl::Status EmbeddingBackwardCuda(const EmbeddingBackwardArgs<BFloat16>& args, void* workspace,
                                   size_t workspace_bytes, CudaStream stream);

}  // namespace dtrain::kernels
