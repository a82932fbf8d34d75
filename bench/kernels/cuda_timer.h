// Times launches by events on a stream of its own. Single-threaded; ends the program where CUDA
// gives an error.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "bench/kernels/cuda_case.h"

namespace dtrain::bench {

class Timer {
 public:
  Timer() {
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    Check(cudaEventCreate(&begin_), "cudaEventCreate");
    Check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  // Seconds of one of `launches`. Blocks until they are done.
  template <class Launch>
  double Seconds(int launches, Launch launch) {
    Check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < launches; ++i) {
      launch(stream_);
    }
    Check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    Check(cudaEventSynchronize(end_), "what was launched");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3 / launches;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace dtrain::bench
