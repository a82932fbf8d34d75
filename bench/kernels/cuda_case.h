// The cases of dtrain-bench-kernels-cuda: kernels over streams of device memory. Single-threaded.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "bench/kernels/probe.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/layers/philox.h"
#include "kernels/optimizer/adamw.h"

namespace dtrain::bench {

constexpr int64_t kHidden = 4096;
constexpr int64_t kHeadDim = 128;  // An attention head's; a row of kHidden has 32.
constexpr int64_t kVocab = 32768;
constexpr int kStreams = 6;

// Ends the program when `error` is one.
void Check(cudaError_t error, const char* what);

// Buffers on the GPU, as long as the program.
struct Arena {
  int64_t elements = 0;
  char* streams[kStreams] = {};
  float* rstd = nullptr;  // [head_rows()].
  float* workspace = nullptr;
  double* block_sums = nullptr;
  double* sum = nullptr;
  kernels::AdamWStepScalars* adamw = nullptr;
  kernels::PhiloxStream* random = nullptr;
  int64_t* ids = nullptr;      // [rows()], each below it; some several times, some never.
  int64_t* targets = nullptr;  // [rows()], each below kVocab.
  float* row_numbers[2] = {};  // [rows()] each: written.
  void* sort_workspace = nullptr;
  size_t sort_bytes = 0;

  template <class T>
  T* Stream(int i) const {
    return reinterpret_cast<T*>(streams[i]);
  }
  int64_t rows() const { return elements / kHidden; }
  int64_t head_rows() const { return elements / kHeadDim; }
};

// Streams hold random numbers in [0.5, 1), read as fp32 and, both halves alike, as bf16.
Arena MakeArena(int64_t elements);
// Once more, as MakeArena leaves them.
void FillStreams(const Arena& arena);

struct Case {
  std::string name;
  StreamMix mix;
  std::function<absl::Status(const Arena&, CudaStream)> run;
};

// `operation` on fp32 and on bf16; `reads` and `writes` are streams of that type.
template <class Operation>
void AddBoth(std::vector<Case>& cases, const std::string& name, int reads, int writes,
             Operation operation) {
  cases.push_back(
      {name + "_f32", {.read4 = reads, .write4 = writes}, [=](const Arena& a, CudaStream stream) {
         return operation(float{}, a, stream);
       }});
  cases.push_back(
      {name + "_bf16", {.read2 = reads, .write2 = writes}, [=](const Arena& a, CudaStream stream) {
         return operation(BFloat16{}, a, stream);
       }});
}

// Updates, casts, norms, activations.
std::vector<Case> CudaFlatCases();
std::vector<Case> CudaRowCases();
// Cross-entropy, dropout, the embedding's gradient; FP8 and int8.
std::vector<Case> CudaTokenCases();
std::vector<Case> CudaNarrowCases();

}  // namespace dtrain::bench
