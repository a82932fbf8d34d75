// Micro-batches of token sequences, read ahead by a thread of its own.
//
// Next is for one thread. The order of samples depends on the seed and the global batch only, so
// every world size reads the same samples in the same global step; the position is exact state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtrain/graph_inputs.h"
#include "dtrain/job.h"
#include "dtrain/tracked.h"

namespace dtrain {

// The files that a loader reads: data.train or data.validation.
enum class Split { kTrain, kValidation };

// The value in Batch::targets of a place where no loss is counted.
inline constexpr int64_t kIgnoredTarget = -100;

// A rank's micro-batch of token sequences, on its device.
struct Batch {
  at::Tensor tokens;   // [micro_batch, sequence_length] int64.
  at::Tensor targets;  // The same shape: the next token of each.
  // With data.document_token or files that have masks, the same shape: the place of each token in
  // its document, 0 where one starts; the last target of each is kIgnoredTarget, and so is what a
  // mask leaves out. Undefined without: a row is one text.
  at::Tensor positions = {};
  // How many targets are not kIgnoredTarget, for losses that would otherwise wait for the device to
  // count them (ops::CrossEntropyOptions); -1: not known.
  int64_t targets_counted = -1;
  // Lengths of the documents, one after the other through all rows, for models that would otherwise
  // wait for the device to read `positions`; empty: not known, or no positions.
  std::vector<int64_t> document_lengths = {};

  // The word for its samples on the console and in records.
  static constexpr absl::string_view kSampleUnit = "tokens";
  // The tokens of the batch, for rates.
  int64_t sample_count() const { return targets.numel(); }
  // The targets that a loss counts, as far as they are known.
  int64_t counted_sample_count() const {
    return targets_counted >= 0 ? targets_counted : sample_count();
  }
  // The tensors and numbers that a CUDA graph takes anew.
  GraphInputs graph_inputs() {
    GraphInputs inputs{{&tokens, &targets, &positions}, {targets_counted}};
    inputs.numbers.insert(inputs.numbers.end(), document_lengths.begin(), document_lengths.end());
    return inputs;
  }
};

// Lengths of the documents in rows of positions, of which 0 starts one, as a row does. Waits for a
// device that holds them.
std::vector<int64_t> DocumentLengths(const at::Tensor& positions);

// Says what a TokenLoader checks.
struct TokenLoaderOptions {
  // Ids from here on are an error. 0: model.vocab_size of the configuration, where it is given.
  int64_t vocabulary = 0;
};

// A BatchSource over token files, with the order of this file's beginning.
class TokenLoader final : public Tracked {
 public:
  // Opens the token files that data.train or data.validation name. Those of data.train are opened
  // by all ranks together, because the ranks compare what they have found. Errors name file and
  // offset: a missing, empty, truncated or too short file, an id at or above the vocabulary. Those
  // of data.train turn train_epochs of the configuration into train_steps.
  static absl::StatusOr<std::unique_ptr<TokenLoader>> Open(Job& job, Split split,
                                                           TokenLoaderOptions options = {});
  ~TokenLoader() override;

  // The next micro-batch of this rank, on its device (Job::device). Goes on without an end, file by
  // file and epoch by epoch, except in a pass.
  absl::StatusOr<Batch> Next();
  // Back to the first sample.
  void Restart();
  // A pass is what Engine::Evaluate reads: from the first sample on, each window once. The last
  // global batch may be short, where a rank's micro-batch may have fewer rows; behind it Next
  // returns EndOfData(). EndPass goes back to where the loader stood before BeginPass.
  void BeginPass();
  // Ends the pass that BeginPass has begun.
  void EndPass();
  // The first window as a batch of one row whose targets are all ignored: takes no part in the
  // order of samples.
  absl::StatusOr<Batch> Spare() const;
  // The key, its files and how many windows they hold, for messages.
  std::string Description() const;
  // Largest token id + 1 that the files say they hold; 0: they do not say.
  int64_t vocabulary() const;
  // Whether batches have positions, because data.document_token or masks separate documents.
  bool has_documents() const;

  Json SaveState() const override;  // The position, which is the same on every rank.
  // Goes on at a saved position. FailedPrecondition: the files hold other tokens than when it was
  // saved.
  absl::Status RestoreState(const Json& state) override;

 private:
  struct State;
  explicit TokenLoader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The tokenizer of the tokens in data.train, as {name, text} for EngineOptions::model_files: what
// `dtrain data prepare` has put beside the first of the files that has some, on this host or at an
// address. Empty: none has. One rank may call it alone. The errors of reading a file that is there.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadCorpusTokenizer(Job& job);

}  // namespace dtrain
