#include <cub/device/device_radix_sort.cuh>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/cuda_group_index.h"
#include "kernels/cuda/cuda_vector.cuh"
#include "kernels/layers/embedding.h"

namespace dtrain::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 128;

// The offset of each part of the workspace, in bytes.
struct Workspace {
  size_t keys;    // int32 [tokens]: ids, before the sort.
  size_t sorted;  // int32 [tokens]: ids, after it.
  size_t places;  // int32 [tokens]: 0, 1, 2, ...
  size_t order;   // int32 [tokens]: tokens by id.
  size_t starts;  // int32 [vocab + 1].
  size_t sort;    // The workspace of CUB's sort.
  size_t sort_bytes;
  size_t bytes;
};

size_t RoundUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Ids of a vocabulary have this many bits.
int BitsOf(int64_t vocab) {
  int bits = 1;
  while (bits < 31 && (int64_t{1} << bits) < vocab) {
    ++bits;
  }
  return bits;
}

absl::StatusOr<Workspace> WorkspaceOf(int64_t tokens, int64_t vocab) {
  DT_CHECK(tokens >= 0 && tokens < (int64_t{1} << 31)) << " tokens " << tokens;
  DT_CHECK(vocab > 0 && vocab < (int64_t{1} << 31)) << " vocab " << vocab;
  Workspace w{};
  const size_t each = RoundUp(static_cast<size_t>(tokens) * sizeof(int32_t));
  w.sorted = w.keys + each;
  w.places = w.sorted + each;
  w.order = w.places + each;
  w.starts = w.order + each;
  w.sort = w.starts + RoundUp(static_cast<size_t>(vocab + 1) * sizeof(int32_t));
  const int32_t* none = nullptr;
  const cudaError_t error = cub::DeviceRadixSort::SortPairs(
      nullptr, w.sort_bytes, none, static_cast<int32_t*>(nullptr), none,
      static_cast<int32_t*>(nullptr), static_cast<int>(tokens), 0, BitsOf(vocab), nullptr);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // Told to the caller: the next launch is not to blame.
    return absl::InternalError(absl::StrCat("size of an embedding's workspace for ", tokens,
                                            " tokens: ", cudaGetErrorString(error)));
  }
  w.bytes = w.sort + RoundUp(w.sort_bytes);
  return w;
}

__global__ void __launch_bounds__(kThreads)
    KeysKernel(int64_t tokens, const int64_t* ids, int32_t* keys, int32_t* places) {
  const int64_t i = GridElement(blockIdx.x, threadIdx.x, kThreads, 1);
  if (i < tokens) {
    keys[i] = static_cast<int32_t>(ids[i]);
    places[i] = static_cast<int32_t>(i);
  }
}

// starts[v] = how many sorted ids are below v, for v in [0, vocab].
__global__ void __launch_bounds__(kThreads)
    StartsKernel(int64_t tokens, int64_t vocab, const int32_t* sorted, int32_t* starts) {
  const int64_t v = GridElement(blockIdx.x, threadIdx.x, kThreads, 1);
  if (v <= vocab) {
    starts[v] = static_cast<int32_t>(CountBelow(sorted, tokens, v));
  }
}

// A block is of RowBlockOf's shape, and the blocks of blockIdx.y share the columns of its rows.
// Each thread adds a row's tokens in order for its columns: four tokens of an id that a batch has
// often are on their way at once.
template <class T, int kLanes>
__global__ void __launch_bounds__(kRowThreads)
    RowsKernel(EmbeddingBackwardArgs<T> args, const int32_t* order, const int32_t* starts) {
  const int64_t row = GridElement(blockIdx.x, threadIdx.y, blockDim.y, 1);
  const int64_t column = GridElement(blockIdx.y, threadIdx.x, blockDim.x, kLanes);
  if (row >= args.vocab || column >= args.width) {
    return;
  }
  const int32_t begin = starts[row];
  const int32_t end = row == args.padding_index ? begin : starts[row + 1];
  Lanes<kLanes> sum = {};
  if (begin < end) {
    sum = LoadLanes<kLanes>(args.dy + order[begin] * args.width + column);
  }
#pragma unroll 4
  for (int32_t i = begin + 1; i < end; ++i) {
    const Lanes<kLanes> x = LoadLanes<kLanes>(args.dy + order[i] * args.width + column);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      sum.v[lane] += x.v[lane];
    }
  }
  StoreLanesWhole(args.dweight + row * args.width + column, sum);
}

template <int kLanes, class T>
void LaunchRows(const EmbeddingBackwardArgs<T>& args, const int32_t* order, const int32_t* starts,
                CudaStream stream) {
  const RowBlock block = RowBlockOf(GridBlocks(args.width, 1, kLanes), kRowThreads);
  const dim3 grid(GridBlocks(args.vocab, block.rows, 1),
                  GridBlocks(args.width, block.across, kLanes));
  RowsKernel<T, kLanes><<<grid, dim3(block.across, block.rows), 0, stream>>>(args, order, starts);
}

template <class T>
absl::Status Backward(const EmbeddingBackwardArgs<T>& args, void* workspace, size_t bytes,
                      CudaStream stream) {
  RequireStream(stream);
  DT_CHECK_GT(args.width, 0);
  absl::StatusOr<Workspace> made = WorkspaceOf(args.tokens, args.vocab);
  if (!made.ok()) {
    return made.status();
  }
  const Workspace& w = *made;
  DT_CHECK_GE(bytes, w.bytes) << " the workspace of an embedding's backward";
  auto* const base = static_cast<char*>(workspace);
  auto* const keys = reinterpret_cast<int32_t*>(base + w.keys);
  auto* const sorted = reinterpret_cast<int32_t*>(base + w.sorted);
  auto* const places = reinterpret_cast<int32_t*>(base + w.places);
  auto* const order = reinterpret_cast<int32_t*>(base + w.order);
  auto* const starts = reinterpret_cast<int32_t*>(base + w.starts);
  if (args.tokens > 0) {
    KeysKernel<<<GridBlocks(args.tokens, kThreads, 1), kThreads, 0, stream>>>(args.tokens, args.ids,
                                                                              keys, places);
    size_t sort_bytes = w.sort_bytes;
    // A radix sort is stable: tokens of one id keep their order.
    const cudaError_t error = cub::DeviceRadixSort::SortPairs(
        base + w.sort, sort_bytes, keys, sorted, places, order, static_cast<int>(args.tokens), 0,
        BitsOf(args.vocab), stream);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return absl::InternalError(
          absl::StrCat("sort of an embedding's tokens: ", cudaGetErrorString(error)));
    }
  }
  StartsKernel<<<GridBlocks(args.vocab + 1, kThreads, 1), kThreads, 0, stream>>>(
      args.tokens, args.vocab, sorted, starts);
  if (Aligned16(args.dy, args.dweight) && args.width % kWidth == 0) {
    LaunchRows<kWidth>(args, order, starts, stream);
  } else {
    LaunchRows<1>(args, order, starts, stream);
  }
  return LaunchStatus("embedding backward");
}

}  // namespace

absl::StatusOr<size_t> EmbeddingWorkspaceBytesCuda(int64_t tokens, int64_t vocab) {
  const absl::StatusOr<Workspace> workspace = WorkspaceOf(tokens, vocab);
  return workspace.ok() ? absl::StatusOr<size_t>(workspace->bytes) : workspace.status();
}

absl::Status EmbeddingBackwardCuda(const EmbeddingBackwardArgs<float>& args, void* workspace,
                                   size_t workspace_bytes, CudaStream stream) {
  return Backward(args, workspace, workspace_bytes, stream);
}
absl::Status EmbeddingBackwardCuda(const EmbeddingBackwardArgs<BFloat16>& args, void* workspace,
                                   size_t workspace_bytes, CudaStream stream) {
  return Backward(args, workspace, workspace_bytes, stream);
}

}  // namespace dtrain::kernels
