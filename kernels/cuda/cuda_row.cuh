// Rows over blocks of threads, as the norms walk them, and the sum of their blocks' partial weight
// gradients in a fixed order. Private to this room's .cu files.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_reduce.cuh"
#include "kernels/cuda/cuda_row_index.h"
#include "kernels/cuda/cuda_vector.cuh"

namespace dtrain::kernels {

// The sum over each kTeam neighbouring lanes, in all of them. REQUIRES: all lanes of the warp call
// it.
template <int kTeam>
__device__ inline float TeamSum(float value) {
#pragma unroll
  for (int distance = kTeam / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  }
  return value;
}

// kLanes elements as they lie in memory, for values that are loaded long before they are used: as
// fp32 numbers those of 2 bytes take twice the registers. LanesOf gives what LoadLanes does.
template <int kLanes, class T>
__device__ inline Pieces<kLanes, T> LoadPieces(const T* p) {
  Pieces<kLanes, T> pieces;
#pragma unroll
  for (int i = 0; i < pieces.kCount; ++i) {
    pieces.v[i] = reinterpret_cast<const uint4*>(p)[i];
  }
  return pieces;
}
template <int kLanes, class T>
__device__ inline Lanes<kLanes> LanesOf(const Pieces<kLanes, T>& pieces) {
  T elements[kLanes];
  memcpy(elements, pieces.v, sizeof(elements));
  Lanes<kLanes> lanes;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    lanes.v[i] = Widen(elements[i]);
  }
  return lanes;
}

// How a block, or a team of kTeam of its threads, walks over a row: thread t of them takes kLanes
// elements at (k threads + t) kLanes. With kSteps > 0 that many steps cover the row and its values
// stay in registers; with 0 the row is of any length and is read twice.
template <int kLanes, int kSteps, int kTeam>
struct Row {
  static constexpr int kKept = kSteps > 0 ? kSteps : 1;
  int64_t hidden;  // 0 for a team without a row: its threads only take part in shuffles.

  __device__ static unsigned threads() { return kTeam > 0 ? kTeam : blockDim.x; }
  __device__ static unsigned thread() { return kTeam > 0 ? threadIdx.x % kTeam : threadIdx.x; }
  // Rows that a block has at once, and which of them is this thread's.
  __device__ static unsigned rows() { return kTeam > 0 ? blockDim.x / kTeam : 1; }
  __device__ static unsigned row() { return kTeam > 0 ? threadIdx.x / kTeam : 0; }

  // body(k, i) for each step of this thread; k is constant after unrolling when kSteps > 0.
  template <class Body>
  __device__ void Each(Body body) const {
    if constexpr (kSteps > 0) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const int64_t i = RowElement(k, thread(), threads(), kLanes);
        if (i < hidden) {
          body(k, i);
        }
      }
    } else {
      const RowStride mine = RowStrideOf(thread(), threads(), kLanes);
      for (int64_t i = mine.first; i < hidden; i += mine.step) {
        body(0, i);
      }
    }
  }

  // The sum over the row's threads, in each of them. `scratch` as BlockSum's. All threads call it.
  __device__ static float Sum(float value, float* scratch) {
    if constexpr (kTeam > 0) {
      return TeamSum<kTeam>(value);
    } else {
      return BlockSum(value, scratch);
    }
  }
};

// The place where a block of teams adds up their sums of each column.
template <int kLanes, int kSteps, int kTeam>
constexpr int kTeamColumns = kTeam > 0 ? kLanes* kSteps* kTeam : 1;

// partial [hidden] gets the block's sums of columns: of its threads' `kept`, or, of teams, the sums
// over the teams, one after the other. `columns` is shared, kTeamColumns floats. All threads call
// it.
template <int kLanes, int kSteps, int kTeam>
__device__ void StoreColumns(const Row<kLanes, kSteps, kTeam>& row, const Lanes<kLanes>* kept,
                             float* columns, float* partial) {
  if constexpr (kTeam == 0) {
    row.Each([&](int k, int64_t i) { StoreLanes(partial + i, kept[k]); });
  } else {
    for (unsigned turn = 0; turn < row.rows(); ++turn) {
      if (turn == row.row()) {
        row.Each([&](int k, int64_t i) {
          Lanes<kLanes> sum = kept[k];
          if (turn > 0) {
#pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
              sum.v[lane] = columns[i + lane] + sum.v[lane];
            }
          }
          if (turn + 1 == row.rows()) {
            StoreLanes(partial + i, sum);
          } else {
#pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
              columns[i + lane] = sum.v[lane];
            }
          }
        });
      }
      __syncthreads();
    }
  }
}

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
  const unsigned blocks = GridBlocks(hidden, kColumns, 1);
  ColumnsKernel<<<blocks, dim3(kColumns, kGroups), 0, stream>>>(partials, chunks, stride, hidden,
                                                                out);
}

// Calls launch.Run<kLanes, kSteps, kTeam>(plan) for the plan that suits the width and the
// alignment.
template <class Launch>
void ChooseRow(const RowPlan& plan, const Launch& launch) {
  if (plan.lanes == 1) {
    launch.template Run<1, 0, 0>(plan);
  } else if (plan.team == 16) {
    launch.template Run<kWidth, 1, 16>(plan);
  } else if (plan.team == 32 && plan.steps == 1) {
    launch.template Run<kWidth, 1, 32>(plan);
  } else if (plan.team == 32) {
    launch.template Run<kWidth, 3, 32>(plan);
  } else if (plan.steps == 1) {
    launch.template Run<kWidth, 1, 0>(plan);
  } else if (plan.steps == 2) {
    launch.template Run<kWidth, 2, 0>(plan);
  } else {
    launch.template Run<kWidth, 0, 0>(plan);
  }
}

}  // namespace dtrain::kernels
