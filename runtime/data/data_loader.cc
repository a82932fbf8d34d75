#include "dtrain/data_loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "base/threads/worker.h"
#include "dtrain/batch_source.h"
#include "runtime/data/sample_order.h"
#include "runtime/job/exception_status.h"
#include "runtime/job/gather_texts.h"
#include "runtime/model/torch_pool.h"

namespace dtrain {
namespace {

constexpr int kWorkersMax = 1024;
constexpr int64_t kReadAheadMax = 1 << 20;
constexpr int64_t kSampleMax = int64_t{1} << 48;  // Above any real run; sums cannot overflow.

// How one rank's micro-batch is cut from the row.
struct RowShare {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t micro_batch = 1;

  int64_t round() const { return world_size * micro_batch; }  // Samples that all ranks take.
};

// The samples that a reading may take: in training of the run's row, in a pass of the dataset
// itself.
struct ReadingOrder {
  bool in_pass = false;
  int64_t end = std::numeric_limits<int64_t>::max();
};

std::string DescribeShape(const at::Tensor& tensor) {
  return tensor.defined() ? absl::StrFormat("%s [%s]", c10::toString(tensor.scalar_type()),
                                            absl::StrJoin(tensor.sizes(), ", "))
                          : "undefined";
}

// Describes, for people, what must be the same on all ranks.
std::string DescribeDataset(const DataLoaderOptions& options, int64_t size, uint64_t seed,
                            int64_t global_batch) {
  return absl::StrFormat(
      "\"%s\" of %d samples (%s, drop_last %s, %d a step)", options.name, size,
      options.shuffle ? absl::StrFormat("shuffled by seed %d", seed) : "in order",
      options.drop_last ? "true" : "false", global_batch);
}

// Samples of a step of the engine that takes the batches.
int64_t GlobalBatch(const Config& config, const DataLoaderOptions& options) {
  const int64_t run = config.gradient_accumulation_steps();
  return config.global_batch() / run * options.gradient_accumulation_steps.value_or(run);
}

absl::Status CheckDataset(const DataLoaderOptions& options, int64_t size, int64_t global_batch) {
  if (const auto& steps = options.gradient_accumulation_steps; steps.has_value() && *steps < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "dataset \"%s\": DataLoaderOptions::gradient_accumulation_steps is %d; allowed: 1 or more",
        options.name, *steps));
  }
  if (size < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("dataset \"%s\" has %d samples; it needs at least 1", options.name, size));
  }
  if (options.drop_last && size < global_batch) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "dataset \"%s\" has %d samples, fewer than the global batch of %d, and drop_last would "
        "leave all of them out; set train_batch_size to at most %d, or drop_last to false",
        options.name, size, global_batch, size));
  }
  if (options.workers < 0 || options.workers > kWorkersMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("dataset \"%s\": DataLoaderOptions::workers is %d; allowed: 0 to %d",
                        options.name, options.workers, kWorkersMax));
  }
  if (options.prefetch < 1 || options.prefetch > kReadAheadMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("dataset \"%s\": DataLoaderOptions::prefetch is %d; allowed: 1 to %d",
                        options.name, options.prefetch, kReadAheadMax));
  }
  return options.collate != nullptr
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrFormat(
                   "dataset \"%s\": DataLoaderOptions::collate is null; leave it out, or give a "
                   "function",
                   options.name));
}

absl::StatusOr<int64_t> CursorField(const Json& cursor, const char* name) {
  const auto field = cursor.find(name);
  if (field == cursor.end()) {
    return absl::InvalidArgumentError(absl::StrFormat("data cursor has no \"%s\"", name));
  }
  const absl::StatusOr<int64_t> value = JsonInteger(*field);
  if (!value.ok() || *value < 0 || *value > kSampleMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data cursor: \"%s\" is %s, want an integer from 0 to 2^48", name, DumpJson(*field)));
  }
  return *value;
}

}  // namespace

GraphInputs SampleBatch::graph_inputs() {
  GraphInputs inputs{.tensors = {}, .numbers = {samples}};
  for (at::Tensor& tensor : tensors) {
    inputs.tensors.push_back(&tensor);
  }
  return inputs;
}

absl::StatusOr<std::vector<at::Tensor>> StackSamples(std::vector<Sample> samples) {
  const Sample& first = samples.front();
  for (const Sample& sample : samples) {
    if (sample.size() != first.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "samples of one batch have %d and %d tensors; give all of them equally many, or a "
          "collate function of your own (DataLoaderOptions::collate)",
          first.size(), sample.size()));
    }
    for (size_t i = 0; i < first.size(); ++i) {
      if (const std::string a = DescribeShape(first[i]), b = DescribeShape(sample[i]);
          a != b || !first[i].defined()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "tensor %d of the samples of one batch is %s and %s; give all of them the same shape "
            "and type, or a collate function of your own (DataLoaderOptions::collate)",
            i, a, b));
      }
    }
  }
  std::vector<at::Tensor> batch;
  for (size_t i = 0; i < first.size(); ++i) {
    std::vector<at::Tensor> column;
    column.reserve(samples.size());
    for (const Sample& sample : samples) {
      column.push_back(sample[i]);
    }
    batch.push_back(at::stack(column));
  }
  return batch;
}

struct DataLoader::State {
  // A micro-batch that is being read, or has been.
  struct Slot {
    bool ready = false;
    absl::StatusOr<SampleBatch> batch = EndOfData();
  };

  Items items;
  int64_t size;
  DataLoaderOptions options;
  SampleOrder order;
  RowShare share;
  int64_t global_batch;
  at::Device device = at::kCPU;

  mutable std::mutex mutex;
  std::condition_variable room;
  std::condition_variable filled;
  std::deque<std::shared_ptr<Slot>> slots;  // In the order of Next; guarded, as all below.
  int64_t next_read = 0;                    // The first sample of the round that is read next.
  int64_t next_given = 0;                   // The same of the round that Next gives.
  ReadingOrder reading;
  int64_t before_pass = 0;  // In a pass: where the loader stood before it.
  bool stop = false;
  std::vector<std::thread> workers;

  State(Items i, DataLoaderOptions o, const SampleOrder& s)
      : items(std::move(i)), size(s.options().size), options(std::move(o)), order(s) {}

  void Work() {
    PrepareThread("dt-dataset", /*low_priority=*/true);
    ComputeOnThisThreadAlone();
    std::unique_lock lock(mutex);
    while (true) {
      room.wait(lock,
                [this] { return stop || static_cast<int64_t>(slots.size()) < options.prefetch; });
      if (stop) {
        return;
      }
      const auto slot = std::make_shared<Slot>();  // A jump drops it while it is read.
      slots.push_back(slot);
      const int64_t at = next_read;
      next_read += share.round();
      const ReadingOrder row = reading;
      lock.unlock();
      absl::StatusOr<SampleBatch> batch = Read(at, row);
      lock.lock();
      slot->batch = std::move(batch);
      slot->ready = true;
      filled.notify_all();
    }
  }

  // This rank's micro-batch of the round at `round`. EndOfData where it has no sample.
  absl::StatusOr<SampleBatch> Read(int64_t round, const ReadingOrder& row) const {
    const int64_t begin = round + share.rank * share.micro_batch;
    const int64_t end = begin + std::min(share.micro_batch, row.end - begin);
    if (begin >= end) {
      return EndOfData();
    }
    std::vector<Sample> samples;
    for (int64_t sample = begin; sample < end; ++sample) {
      DT_ASSIGN_OR_RETURN(samples.emplace_back(),
                          Get(row.in_pass ? sample : order.At(sample).index));
    }
    return Collated(std::move(samples));
  }

  absl::StatusOr<Sample> Get(int64_t index) const {
    const auto where = [&] {
      return absl::StrFormat("sample %d of dataset \"%s\"", index, options.name);
    };
    absl::StatusOr<Sample> sample = EndOfData();
    const auto get = [&] {
      const at::NoGradGuard no_grad;
      sample = items.get(index);
      return absl::OkStatus();
    };
    DT_RETURN_IF_ERROR(CallSafely([&] { return absl::StrCat("in ", where()); }, get));
    if (IsEndOfData(sample.status())) {  // An evaluation would end there without a word.
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: Get returned EndOfData(), but size() is %d", where(), size));
    }
    return sample.ok() ? std::move(sample)
                       : absl::StatusOr<Sample>(Annotate(sample.status(), where()));
  }

  absl::StatusOr<SampleBatch> Collated(std::vector<Sample> samples) const {
    SampleBatch batch{.tensors = {}, .samples = static_cast<int64_t>(samples.size())};
    const auto where = [&] { return absl::StrFormat("collation of dataset \"%s\"", options.name); };
    const auto collate = [&]() -> absl::Status {
      const at::NoGradGuard no_grad;
      absl::StatusOr<std::vector<at::Tensor>> tensors = options.collate(std::move(samples));
      if (!tensors.ok()) {
        return Annotate(tensors.status(), where());
      }
      batch.tensors = *std::move(tensors);
      for (at::Tensor& tensor : batch.tensors) {  // So that Next does not wait for the copy.
        if (!device.is_cpu() && tensor.defined() && tensor.is_cpu()) {
          tensor = tensor.contiguous().pin_memory();
        }
      }
      return absl::OkStatus();
    };
    DT_RETURN_IF_ERROR(CallSafely([&] { return absl::StrCat("in the ", where()); }, collate));
    return batch;
  }

  absl::StatusOr<SampleBatch> Sent(absl::StatusOr<SampleBatch> batch) const {
    if (batch.ok() && !device.is_cpu()) {
      for (at::Tensor& tensor : batch->tensors) {
        tensor = tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
      }
    }
    return batch;
  }

  // REQUIRES: `mutex` is held.
  void Jump(int64_t sample, const ReadingOrder& row) {
    slots.clear();
    next_read = sample;
    next_given = sample;
    reading = row;
    room.notify_all();
  }

  // The place in training, also in a pass.
  int64_t place() const {
    std::lock_guard lock(mutex);
    return reading.in_pass ? before_pass : next_given;
  }
};

absl::StatusOr<std::unique_ptr<DataLoader>> DataLoader::OpenItems(Job& job, Items items,
                                                                  DataLoaderOptions options) {
  const Config& config = job.config();
  const uint64_t seed = options.seed.value_or(config.seed());
  const int64_t global_batch = GlobalBatch(config, options);
  int64_t size = 0;
  const auto where = [&] { return absl::StrFormat("in size() of dataset \"%s\"", options.name); };
  const auto count = [&] {
    size = items.count();
    return absl::OkStatus();
  };
  absl::Status mine = CallSafely(where, count);
  mine.Update(CheckDataset(options, size, global_batch));
  DT_RETURN_IF_ERROR(AgreeOnError(job, mine));
  DT_RETURN_IF_ERROR(CheckSameOnRanks(
      job, DescribeDataset(options, size, seed, global_batch),
      [](const std::string& first, const std::string& other, int rank) {
        return absl::StrFormat(
            "dataset %s on rank 0 is %s on rank %d; every rank opens the same dataset, whole, and "
            "takes its share of it",
            first, other, rank);
      }));
  const SampleOrder order({.size = size,
                           .epoch_samples = EpochSamples(size, global_batch, options.drop_last),
                           .seed = seed,
                           .shuffle = options.shuffle});
  auto state = std::make_unique<State>(std::move(items), std::move(options), order);
  state->share = {job.rank(), job.world_size(), config.micro_batch()};
  state->global_batch = global_batch;
  state->device = job.device();
  State* const shared = state.get();
  // Its destructor ends the threads that began, should the system refuse another one.
  std::unique_ptr<DataLoader> loader(new DataLoader(std::move(state)));
  for (int i = 0; i < shared->options.workers; ++i) {
    shared->workers.emplace_back([shared] { shared->Work(); });
  }
  return loader;
}

DataLoader::DataLoader(std::unique_ptr<State> state) : state_(std::move(state)) {}

DataLoader::~DataLoader() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->room.notify_all();
  }
  for (std::thread& worker : state_->workers) {
    worker.join();
  }
}

absl::StatusOr<SampleBatch> DataLoader::Next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const int64_t at = state.next_given;
  if (state.workers.empty()) {
    const ReadingOrder row = state.reading;
    state.next_given += state.share.round();
    lock.unlock();
    return state.Sent(state.Read(at, row));
  }
  state.filled.wait(lock, [&] { return !state.slots.empty() && state.slots.front()->ready; });
  absl::StatusOr<SampleBatch> batch = std::move(state.slots.front()->batch);
  state.slots.pop_front();
  state.next_given += state.share.round();
  state.room.notify_one();
  lock.unlock();
  return state.Sent(std::move(batch));
}

void DataLoader::Restart() {
  std::lock_guard lock(state_->mutex);
  state_->Jump(0, {});
}

void DataLoader::BeginPass() {
  State& state = *state_;
  std::lock_guard lock(state.mutex);
  if (!state.reading.in_pass) {
    state.before_pass = state.next_given;
  }
  state.Jump(0, {.in_pass = true, .end = state.size});
}

void DataLoader::EndPass() {
  State& state = *state_;
  std::lock_guard lock(state.mutex);
  if (state.reading.in_pass) {
    state.Jump(state.before_pass, {});
  }
}

absl::StatusOr<SampleBatch> DataLoader::Spare() const {
  DT_ASSIGN_OR_RETURN(Sample sample, state_->Get(0));
  std::vector<Sample> samples;
  samples.push_back(std::move(sample));
  return state_->Sent(state_->Collated(std::move(samples)));
}

std::string DataLoader::Description() const {
  return absl::StrFormat("dataset \"%s\" (%d samples)", state_->options.name, size());
}

int64_t DataLoader::size() const { return state_->size; }

int64_t DataLoader::epoch() const { return state_->order.At(state_->place()).epoch; }

double DataLoader::steps_per_epoch() const {
  return static_cast<double>(state_->order.options().epoch_samples) /
         static_cast<double>(state_->global_batch);
}

Json DataLoader::SaveState() const {
  const SampleOrderOptions& order = state_->order.options();
  return {{"sample", state_->place()},
          {"size", order.size},
          {"epoch_samples", order.epoch_samples},
          {"shuffle_seed", order.shuffle ? Json(order.seed) : Json()}};
}

absl::Status DataLoader::RestoreState(const Json& state) {
  DT_ASSIGN_OR_RETURN(const int64_t sample, CursorField(state, "sample"));
  DT_ASSIGN_OR_RETURN(const int64_t size, CursorField(state, "size"));
  DT_ASSIGN_OR_RETURN(const int64_t epoch_samples, CursorField(state, "epoch_samples"));
  const Json now = SaveState();
  for (const char* const key : {"size", "shuffle_seed"}) {
    const auto was = state.find(key);
    if (was == state.end() || *was != now.at(key)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "dataset \"%s\" is another one than when the checkpoint was saved: %s was %s, now %s; "
          "restore it, or start anew with --fresh",
          state_->options.name, key, was == state.end() ? "absent" : DumpJson(*was),
          DumpJson(now.at(key))));
    }
  }
  if (epoch_samples < 1 || epoch_samples > size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("data cursor: \"epoch_samples\" is %d, want 1 to %d", epoch_samples, size));
  }
  std::lock_guard lock(state_->mutex);
  state_->Jump(state_->order.Continue(sample, epoch_samples), {});
  return absl::OkStatus();
}

}  // namespace dtrain
