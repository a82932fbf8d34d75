// Batches of a dataset of the program's own: shuffled, shared out over the ranks, read ahead by
// worker threads, and resumed exactly.
//
//   struct Digits {
//     int64_t size() const { return images.size(0); }
//     dtrain::Sample Get(int64_t index) const { return {images[index], labels[index]}; }
//     at::Tensor images, labels;
//   };
//   DT_ASSIGN_OR_RETURN(auto train, dtrain::DataLoader::Open(job, digits));
//   checkpoints->Track("data", *train);
//   engine->Step(*train, [&](dtrain::SampleBatch& batch) { return net->Loss(batch[0], batch[1]);
//   });
//
// Order. The run draws an endless row of samples, epoch after epoch: each is a permutation of the
// dataset that depends on the seed and the epoch alone, or the order of indices. One round of
// micro-batches takes the next world size x micro-batch samples of the row, the first of them on
// rank 0. So every number of ranks and every accumulation reads the same samples in the same global
// step, a checkpoint holds a single number, and a run with another number of ranks goes on where
// the last one stopped. Where an epoch ends inside a global batch, the batch goes on with the next
// epoch and nothing is left out, unless drop_last leaves out what does not fill a global batch.
//
// A DataLoader is a BatchSource (dtrain/batch_source.h). Next is for one thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "dtrain/graph_inputs.h"
#include "dtrain/job.h"
#include "dtrain/tracked.h"

namespace dtrain {

// The tensors of one item of a dataset, in an order that the program chooses: {image, label}. CPU
// tensors.
using Sample = std::vector<at::Tensor>;

// A dataset by index: `size()` items, and `Get(index)`, which gives one of them and is called from
// several threads at a time. What Get throws, or returns as an error, ends the run with one line
// that names dataset and index.
template <typename Dataset>
concept MapDataset = requires(const Dataset& dataset, int64_t index) {
  { dataset.size() } -> std::convertible_to<int64_t>;
  { dataset.Get(index) } -> std::convertible_to<absl::StatusOr<Sample>>;
};

// A rank's micro-batch, on its device (Job::device).
struct SampleBatch {
  std::vector<at::Tensor> tensors;  // Collate made them: stacked ones are [samples, ...].
  int64_t samples = 0;              // How many samples the batch holds.

  // A tensor of the batch, by its place in a sample.
  const at::Tensor& operator[](size_t place) const { return tensors.at(place); }
  // The same number, for the engine.
  int64_t sample_count() const { return samples; }
  // All of its tensors, for CUDA graphs.
  GraphInputs graph_inputs();
};

// Makes a batch of samples, which are at least one. Called from several threads at a time.
using Collate = std::function<absl::StatusOr<std::vector<at::Tensor>>(std::vector<Sample> samples)>;

// The default: tensor by tensor, at::stack. InvalidArgument: samples that differ in the number of
// tensors, or in the shape or type of one.
absl::StatusOr<std::vector<at::Tensor>> StackSamples(std::vector<Sample> samples);

// How a DataLoader reads its dataset. All ranks give the same.
struct DataLoaderOptions {
  std::string name = "dataset";       // Names it in messages.
  bool shuffle = true;                // False: in the order of indices.
  std::optional<uint64_t> seed = {};  // Decides the order; none: `seed` of the configuration.
  bool drop_last = false;  // Each epoch leaves out the samples that do not fill a global batch.
  // Micro-batches of a step of the engine that takes the batches, where they are its own
  // (engines.NAME, EngineOptions::settings), for drop_last and steps_per_epoch. None: the run's.
  std::optional<int64_t> gradient_accumulation_steps = {};
  int workers = 2;                 // Threads that call Get. 0: Next calls it.
  int64_t prefetch = 4;            // Micro-batches that are read ahead, at least 1.
  Collate collate = StackSamples;  // Makes the batches.
};

// A BatchSource over a dataset by index, with the order of this file's beginning.
class DataLoader final : public Tracked {
 public:
  // Collective. `dataset` outlives the loader. InvalidArgument on all ranks, with the dataset's
  // name: it is empty, smaller than a global batch with drop_last, or its size or the options
  // differ between ranks; or an option is out of range.
  template <typename Dataset>
  static absl::StatusOr<std::unique_ptr<DataLoader>> Open(Job& job, const Dataset& dataset,
                                                          DataLoaderOptions options = {}) {
    static_assert(MapDataset<Dataset>,
                  "dtrain::MapDataset: a dataset needs `int64_t size() const` and `Get(int64_t "
                  "index) const` that returns a dtrain::Sample (a std::vector<at::Tensor>) or an "
                  "absl::StatusOr of one; pass the object itself, not a pointer to it");
    if constexpr (MapDataset<Dataset>) {
      return OpenItems(
          job,
          {[&dataset] { return static_cast<int64_t>(dataset.size()); },
           [&dataset](int64_t index) -> absl::StatusOr<Sample> { return dataset.Get(index); }},
          std::move(options));
    } else {
      return absl::InternalError("this call does not compile");
    }
  }
  // A temporary would be gone before the first batch.
  template <MapDataset Dataset>
  static absl::StatusOr<std::unique_ptr<DataLoader>> Open(Job& job, const Dataset&& dataset,
                                                          DataLoaderOptions options = {}) = delete;
  ~DataLoader() override;

  // The next micro-batch of this rank. Goes on without an end, except in a pass.
  absl::StatusOr<SampleBatch> Next();
  // Back to the first sample of the row.
  void Restart();
  // A pass is what Engine::Evaluate reads: each sample once, in the order of indices, at any number
  // of ranks. The last round may be short: some ranks then have fewer samples, or no batch. Behind
  // it Next returns EndOfData(). EndPass goes back to where the loader stood before BeginPass.
  void BeginPass();
  // Ends the pass that BeginPass has begun.
  void EndPass();
  // The first sample as a batch of one: takes no part in the order of samples.
  absl::StatusOr<SampleBatch> Spare() const;
  // The dataset's name and size, for messages.
  std::string Description() const;

  int64_t size() const;  // Items of the dataset.
  // The epoch, from 0, of the sample that comes next.
  int64_t epoch() const;
  // Global batches in an epoch: with drop_last a whole number, else samples / global batch, which
  // is none where a batch goes on with the next epoch. With train_epochs in the configuration, give
  // it to Job::SetStepsPerEpoch.
  double steps_per_epoch() const;

  Json SaveState() const override;  // The position in the row, which is the same on every rank.
  // Goes on at a saved position. FailedPrecondition: the dataset has another size or order than
  // when it was saved.
  absl::Status RestoreState(const Json& state) override;

 private:
  struct Items {
    std::function<int64_t()> count;
    std::function<absl::StatusOr<Sample>(int64_t index)> get;
  };
  struct State;
  explicit DataLoader(std::unique_ptr<State> state);
  static absl::StatusOr<std::unique_ptr<DataLoader>> OpenItems(Job& job, Items items,
                                                               DataLoaderOptions options);
  std::unique_ptr<State> state_;
};

}  // namespace dtrain
