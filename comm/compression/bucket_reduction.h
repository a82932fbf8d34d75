// How one gradient bucket is summed over ranks: as it is, or compressed. Each bucket has one
// object, which keeps its policy's memory from step to step (rounding errors, a low-rank basis).
//
// A reduction is started, then advanced until it is done; between two Advance calls a collective is
// under way. Every rank must start and advance its buckets in the same order, and afterwards every
// rank holds the same bits: decisions depend only on reduced values, so they are the same on all
// ranks. One thread at a time uses a reduction. A policy's memory is not saved in checkpoints:
// after a restart it begins at zero, and only what one step had rounded away is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "comm/compression/int8_blocks.h"
#include "comm/group.h"

namespace dtrain::comm {

// A tensor of a bucket, seen as a matrix: its first dimension times the others. A vector has one
// column.
struct BucketTensor {
  size_t start = 0;  // In elements, from the bucket's first.
  size_t rows = 0;
  size_t columns = 1;
  size_t elements() const { return rows * columns; }
};

struct BucketShape {
  std::string name;  // For reports.
  size_t elements = 0;
  std::vector<BucketTensor> tensors;  // In order; elements between them are padding.
};

class BucketReduction {
 public:
  virtual ~BucketReduction() = default;
  // Starts to sum `data` ([elements] fp32) over ranks, in place; it must stay until done. `step` is
  // the training step, from 1.
  virtual absl::Status Start(absl::Span<float> data, int64_t step) = 0;
  // Waits for the collective under way. False: another was started. True: done.
  virtual absl::StatusOr<bool> Advance() = 0;
  // The sum of squares of the result; the same bits on every rank, not finite when an element is
  // not.
  virtual double sum_of_squares() const = 0;
  // Duration of the last collective, once it is done; 0: not known.
  virtual int64_t DurationNanos() const { return 0; }
  // Waits until nothing uses the memory any more; the result is lost. After an abort it is quick.
  virtual void Drain() = 0;
};

// Advances all until they are done, one after the other in each round. `Reduction`:
// BucketReduction, or a class with the same Advance.
template <typename Reduction>
absl::Status AdvanceToEnd(std::vector<Reduction*> open) {
  while (!open.empty()) {
    std::vector<Reduction*> further;
    for (Reduction* const reduction : open) {
      DT_ASSIGN_OR_RETURN(const bool done, reduction->Advance());
      if (!done) {
        further.push_back(reduction);
      }
    }
    open = std::move(further);
  }
  return absl::OkStatus();
}

enum class Compression : uint8_t {
  kNone,
  // Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS 2019.
  kPowerSgd,
  // Wang et al.: ZeRO++, ICML 2024 (qgZ), with 8 bits and error feedback.
  kInt8,
};

struct CompressionOptions {
  Compression kind = Compression::kNone;
  Wire wire = Wire::kSameAsBuffer;  // Type on the wire of buckets that are not compressed.
  int rank = 4;                     // PowerSGD: the rank of the approximation.
  // Adds the error that compression makes in a step to the next step's gradient. Off only in
  // measurements that show its effect.
  bool error_feedback = true;
  int64_t start_step = 100;       // Steps up to here are not compressed.
  size_t elements_min = 1 << 16;  // Smaller buckets are not compressed.
  uint64_t seed = 0;              // Seed of PowerSGD's first basis; equal on all ranks.
  Int8Codec int8 = {};            // Packs and unpacks the blocks of kInt8.
};

// REQUIRES: `group` outlives it; all ranks give the same shape and options. Groups of one rank
// compress nothing.
std::unique_ptr<BucketReduction> CreateBucketReduction(Group& group, const BucketShape& shape,
                                                       const CompressionOptions& options);

}  // namespace dtrain::comm
