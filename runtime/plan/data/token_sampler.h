// TokenSampler: which window of the corpus is sample number n. A pure function; thread-safe.
//
// Windows. Files stand in the given order; window i of a file takes the sequence_length + 1 tokens
// at i * sequence_length (the last token of one window is the first of the next, as in llm.c), and
// what does not fill a window at a file's end is not used. So a file of n tokens holds
// (n - 1) / sequence_length windows.
//
// Order. The run draws an endless row of samples. Epoch e is a permutation of all windows that
// depends on (seed, e) alone; a global batch may span two epochs, so nothing is dropped. Global
// step s takes the samples [s * global_batch, (s + 1) * global_batch) of the row, whatever the
// world size. Within a step, micro-step g of rank r takes the positions
// [(g * world + r) * micro_batch, + micro_batch): every split of the same global batch into ranks,
// micro-batches and accumulation reads the same set, and reads it in the same order of positions.
//
// Mixtures. With several parts, mixture.h's pattern says of which part a sample of the row is and
// which of the part's own: each part has its own order and its own epochs, as if it were alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "runtime/plan/data/mixture.h"

namespace dtrain::plan {

// Samples [begin, end) of the row that the run leaves out (a rollback past bad data adds a range).
struct SkipRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const SkipRange&) const = default;
};

// A cursor's record of a part of a mixture, to tell a resume with other parts or weights.
struct MixedPart {
  int64_t windows = 0;
  int64_t share = 0;  // Its part of MixturePattern::kPlaces.
  bool operator==(const MixedPart&) const = default;
};

// The position of a run in its data, part of the checkpoint. `step` is the next global step.
struct DataCursor {
  int64_t step = 0;
  uint64_t seed = 0;
  int64_t epoch = 0;    // Rounds through all windows, derived from the rest, for readers.
  int64_t windows = 0;  // The corpus's; they tell a resume on other data.
  int64_t global_batch = 0;
  int64_t sequence_length = 0;
  std::vector<SkipRange> skip;
  std::vector<MixedPart> mixture;  // Empty: there is one part.

  Json ToJson() const;
  static absl::StatusOr<DataCursor> FromJson(const Json& json);
  bool operator==(const DataCursor&) const = default;
};

// The place where a sample's sequence_length + 1 tokens start.
struct SampleLocation {
  int file = 0;
  int64_t offset = 0;  // In tokens.
  int64_t epoch = 0;
  bool operator==(const SampleLocation&) const = default;
};

// A part of a mixture: some files, and how often samples are drawn from them beside the others.
struct SamplerPart {
  std::vector<int64_t> tokens_per_file;
  double weight = 1;
};

struct SamplerOptions {
  int64_t sequence_length = 0;
  int64_t global_batch = 0;
  uint64_t seed = 0;
  bool shuffle = true;  // False: windows in file order (validation).
};

// This rank's part of a step.
struct RankSlice {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t micro_batch = 1;

  // The place of micro-step `micro_step` among the micro-batches of all ranks in one step.
  int64_t place(int64_t micro_step) const { return micro_step * world_size + rank; }
};

class TokenSampler {
 public:
  // `tokens_per_file`: tokens in each file. InvalidArgument: a size below 1, or no window at all
  // (the corpus is shorter than sequence_length + 1 tokens).
  static absl::StatusOr<TokenSampler> Create(absl::Span<const int64_t> tokens_per_file,
                                             const SamplerOptions& options,
                                             std::vector<SkipRange> skip = {});
  // The same for a mixture, whose files are numbered through all parts. InvalidArgument also for
  // weights that MixturePattern refuses, and for a part that is drawn and has no window.
  static absl::StatusOr<TokenSampler> Create(absl::Span<const SamplerPart> parts,
                                             const SamplerOptions& options,
                                             std::vector<SkipRange> skip = {});

  // The sample at `position` of global step `step`. REQUIRES: step >= 0, 0 <= position <
  // global_batch.
  SampleLocation At(int64_t step, int64_t position) const;
  // The samples of micro-step `micro_step` of one rank, in order.
  // REQUIRES: the slice divides global_batch and micro_step is below the accumulation.
  std::vector<SampleLocation> MicroBatch(int64_t step, int64_t micro_step,
                                         const RankSlice& slice) const;

  // Windows in the corpus.
  int64_t windows() const { return windows_; }
  // Global steps in an epoch, which end inside one: as many samples as there are windows in the
  // parts that are drawn.
  double steps_per_epoch() const;
  const SamplerOptions& options() const { return options_; }
  // The cursor of a run that will take `step` next.
  DataCursor CursorAt(int64_t step) const;
  // FailedPrecondition, naming the field and both values, if `cursor` belongs to other data, or to
  // another seed, batch or sequence length: the run would not continue where it stopped.
  // `other_batch`: the batch may differ.
  absl::Status CheckCursor(const DataCursor& cursor, bool other_batch = false) const;
  // The first step of this sampler whose samples the run has not seen before `cursor`: with another
  // batch, up to a batch of samples may be left out. REQUIRES: CheckCursor.
  int64_t StepAfter(const DataCursor& cursor) const;

 private:
  TokenSampler() = default;
  int64_t RowNumber(int64_t step, int64_t position) const;
  // Sample `number` of a part.
  SampleLocation InPart(int part, int64_t number) const;

  struct Part {
    int64_t first_window = 0;
    int64_t windows = 0;
  };

  SamplerOptions options_;
  std::vector<Part> parts_;
  std::shared_ptr<const MixturePattern> pattern_;  // Null: there is one part.
  std::vector<int64_t> windows_before_;  // windows in earlier files; one more entry than files.
  int64_t windows_ = 0;
  std::vector<SkipRange> skip_;  // Sorted, disjoint, not empty.
};

}  // namespace dtrain::plan
