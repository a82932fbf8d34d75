// Rows over blocks of threads, as the norms walk them, and the sum of their blocks' partial weight
// gradients in a fixed order. Private to this room's .cu files.
#pragma once

#include <cstdint>

#include "kernels/cuda_vector.cuh"

namespace dtrain::kernels {

// How a block walks over a row: thread t takes kLanes elements at (k blockDim + t) kLanes. With
// kSteps > 0 that many steps cover the row and its values stay in registers; with 0 the row is of
// any length and is read twice.
template <int kLanes, int kSteps>
struct Row {
  static constexpr int kKept = kSteps > 0 ? kSteps : 1;
  int64_t hidden;

  // body(k, i) for each step of this thread; k is constant after unrolling when kSteps > 0.
  template <class Body>
  __device__ void Each(Body body) const {
    if constexpr (kSteps > 0) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const int64_t i = RowElement(k, threadIdx.x, blockDim.x, kLanes);
        if (i < hidden) {
          body(k, i);
        }
      }
    } else {
      const RowStride mine = RowStrideOf(threadIdx.x, blockDim.x, kLanes);
      for (int64_t i = mine.first; i < hidden; i += mine.step) {
        body(0, i);
      }
    }
  }
};

constexpr int kColumns = 32;
constexpr int kGroups = 16;

// A block sums 32 columns of the workspace, whose rows are `stride` apart: sixteen groups of chunks
// each in order, then the groups.
template <class T>
__global__ void ColumnsKernel(const float* partials, int64_t chunks, int64_t stride, int64_t hidden,
                              T* out) {
  __shared__ float groups[kGroups][kColumns];
  const int64_t column = GridElement(blockIdx.x, threadIdx.x, kColumns, 1);
  const RowStride mine = RowStrideOf(threadIdx.y, kGroups, 1);
  float sum = 0;
  if (column < hidden) {
    for (int64_t chunk = mine.first; chunk < chunks; chunk += mine.step) {
      sum += partials[chunk * stride + column];
    }
  }
  groups[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < hidden) {
    for (int group = 1; group < kGroups; ++group) {
      sum += groups[group][threadIdx.x];
    }
    out[column] = Narrow<T>(sum);
  }
}

template <class T>
void SumColumns(const float* partials, int64_t chunks, int64_t stride, int64_t hidden, T* out,
                CudaStream stream) {
  const auto blocks = static_cast<unsigned>(GridBlocks(hidden, kColumns, 1));
  ColumnsKernel<<<blocks, dim3(kColumns, kGroups), 0, stream>>>(partials, chunks, stride, hidden,
                                                                out);
}

// Calls launch.Run<kLanes, kSteps>(threads) for the way that suits the width and the alignment.
template <class Launch>
void ChooseRow(int64_t hidden, bool aligned, const Launch& launch) {
  const RowWay way = RowWayOf(hidden, aligned);
  if (way.lanes == 1) {
    launch.template Run<1, 0>(way.threads);
  } else if (way.steps == 1) {
    launch.template Run<kWidth, 1>(way.threads);
  } else if (way.steps == 2) {
    launch.template Run<kWidth, 2>(way.threads);
  } else {
    launch.template Run<kWidth, 0>(way.threads);
  }
}

}  // namespace dtrain::kernels
