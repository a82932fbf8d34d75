// Softmax cross-entropy over rows of logits, with its gradient in place of the logits.
//
// For a row x [vocab] with target y, V = vocab, s = label_smoothing and z = z_loss:
//   lse  = log(sum_j e^x_j)
//   loss = lse - (1 - s) x_y - (s / V) sum_j x_j + z lse^2
//   dx_j = gradient_scale (e^(x_j - lse) (1 + 2 z lse) - (1 - s) [j = y] - s / V)
// Label smoothing as torch.nn.functional.cross_entropy (Szegedy et al. 2016, arXiv 1512.00567);
// z-loss as PaLM's (Chowdhery et al. 2022, arXiv 2204.02311, section 5). A row whose target is
// ignore_index has loss and gradient 0, whatever it holds; one whose target is outside [0, vocab)
// has NaN for both (nothing outside the row is read). Logits fp32 or bf16, math in fp32, the loss
// of a row in fp64 and rounded once. Same bits on every SIMD variant, thread count and split; CUDA
// sums in another order and takes the hardware's exponential (losses agree to 1e-6 relative to
// lse). Thread-safe on disjoint buffers; nothing is allocated.
//
// On CUDA a block has a row and reads it by 16-byte words. Where a gradient is wanted it reads the
// row twice: from its start for the maximum and the sum, then from its end, which the caches still
// hold, for the gradient. The rows of 50,304 logits in bf16 that an H100 works on at once, three on
// a multiprocessor, are 38 MiB, and its L2 cache has 50 MiB. What of larger rows is no longer there
// comes from memory again: neither does shared memory hold a row, nor does a cluster share one
// (docs/notes/design-gpu.md counts the passes).
// Rows follow each other without padding. Where `vocab` is no multiple of 16 bytes they begin at
// any address, and up to seven elements at each end are taken one by one.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"

namespace dtrain::kernels {

struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  float z_loss = 0;
  float label_smoothing = 0;  // In [0, 1].
};

template <class T>
struct CrossEntropyArgs {
  int64_t tokens = 0;
  int64_t vocab = 0;
  CrossEntropyOptions options;
  const T* logits = nullptr;         // [tokens, vocab].
  const int64_t* targets = nullptr;  // [tokens].
  float* losses = nullptr;           // [tokens]. Written.
  float* lse = nullptr;   // [tokens]. Written: the logarithm of a row's summed exponentials.
  T* gradient = nullptr;  // [tokens, vocab]; may be logits. Null: none is wanted.
  float gradient_scale = 1;
};

// A batch's sums, from which dtrain::Loss is made.
struct CrossEntropyTotals {
  double sum = 0;     // The losses' sum, in order of the tokens.
  int64_t count = 0;  // Tokens whose target is not ignore_index.
};

// Losses and lse; then, while a row is in the cache, its gradient unless that is null.
void CrossEntropyForwardCpu(const CrossEntropyArgs<float>& args, ParallelFor parallel_for);
void CrossEntropyForwardCpu(const CrossEntropyArgs<BFloat16>& args, ParallelFor parallel_for);

CrossEntropyTotals CrossEntropyTotalsCpu(int64_t tokens, const float* losses,
                                         const int64_t* targets, int64_t ignore_index);

// The same on device pointers; repeats give the same bits. Queue kernels on `stream`, do not
// synchronise; Internal when a launch fails. The totals are written to *totals.
absl::Status CrossEntropyForwardCuda(const CrossEntropyArgs<float>& args, CudaStream stream);
absl::Status CrossEntropyForwardCuda(const CrossEntropyArgs<BFloat16>& args, CudaStream stream);
absl::Status CrossEntropyTotalsCuda(int64_t tokens, const float* losses, const int64_t* targets,
                                    int64_t ignore_index, CrossEntropyTotals* totals,
                                    CudaStream stream);

}  // namespace dtrain::kernels
