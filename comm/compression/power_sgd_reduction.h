// A bucket as low-rank factors (Vogels et al. 2019, algorithm 1, with the warm start of section 4.2
// and the error feedback of algorithm 2).
//
// For each matrix M of the bucket: P = M Q is summed over ranks and made orthonormal, Q = M^T P is
// summed over ranks, and the reduced gradient is P Q^T; the next step begins with that Q, so that
// the steps together do a power iteration. Vectors, and matrices too small to gain by a factor of
// two, travel as they are, in one message with P. Used by one thread at a time.
#pragma once

#include <vector>

#include "comm/compression/bucket_reduction.h"

namespace dtrain::comm {

class PowerSgdReduction final : public BucketReduction {
 public:
  PowerSgdReduction(Group& group, const BucketShape& shape, const CompressionOptions& options);
  absl::Status Start(absl::Span<float> data, int64_t step) override;
  absl::StatusOr<bool> Advance() override;
  double sum_of_squares() const override { return sum_of_squares_; }
  void Drain() override { work_.Wait().IgnoreError(); }

 private:
  // A compressed tensor, and where its factors lie.
  struct Factored {
    BucketTensor tensor;
    size_t p = 0;       // In first_.
    size_t q = 0;       // In q_ and own_q_.
    size_t memory = 0;  // In memory_.
  };
  // A range of the bucket that travels as it is.
  struct Whole {
    size_t start = 0;
    size_t count = 0;
    size_t place = 0;  // In first_.
  };

  absl::StatusOr<Work> Sum(std::vector<float>& values, const char* what);
  absl::Status StartSecond();
  void Finish();
  // Gives a column that carries nothing a new direction, the same on every rank.
  void RenewColumn(float* column, size_t count);
  void Forget();

  Group& group_;
  const std::string name_;
  const int rank_;
  const bool error_feedback_;
  std::vector<Factored> factored_;
  std::vector<Whole> wholes_;
  absl::Span<float> data_;
  Work work_;
  bool second_ = false;  // Q is under way.
  double sum_of_squares_ = 0;
  // Number of new directions so far; seeds the next one, and is equal on all ranks.
  uint64_t renewals_ = 0;
  const uint64_t seed_;
  std::vector<float> first_;   // P of all tensors, then what travels whole.
  std::vector<float> q_;       // The basis; summed in place.
  std::vector<float> own_q_;   // This rank's part of it.
  std::vector<float> memory_;  // The error of the approximation, for all tensors.
};

}  // namespace dtrain::comm
