// A graph of LibTorch's operations on the compute stream, captured once and launched again and
// again: at::cuda::CUDAGraph behind a seam. Memory that the operations allocate stays theirs, at
// the same addresses, and every launch draws random numbers anew from the generator.
//
// Used by the thread that trains.
#pragma once

#include "absl/status/status.h"

namespace dtrain {

class TensorGraph {
 public:
  // Gives up a capture that has not ended.
  virtual ~TensorGraph() = default;
  // Until End, what this thread (and autograd's, for it) queues on the compute stream is recorded
  // and does not run. A call that would wait for the device throws LibTorch's error. May be called
  // once.
  virtual absl::Status Begin() = 0;
  // The error that spoilt the capture, in CUDA's words: then all is as before Begin.
  virtual absl::Status End() = 0;
  // Queues what was captured. REQUIRES: End gave OK.
  virtual absl::Status Launch() = 0;
};

}  // namespace dtrain
