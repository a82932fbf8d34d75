#include "dtrain/token_loader.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/record_function.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/threads/worker.h"
#include "dtrain/batch_source.h"
#include "runtime/data/epoch.h"
#include "runtime/data/training_store.h"
#include "runtime/job/gather_texts.h"
#include "runtime/job/job_state.h"
#include "runtime/plan/data/corpus_identity.h"
#include "runtime/plan/data/documents.h"
#include "runtime/plan/data/token_corpus.h"
#include "runtime/plan/data/token_sampler.h"
#include "runtime/plan/data/training_data.h"

namespace dtrain {
namespace {

static_assert(kIgnoredTarget == plan::kIgnoredTarget);

constexpr size_t kReadAhead = 4;  // Micro-batches.
// Samples of a rank that a store learns of before they are read. It fetches as many of their blocks
// ahead as it has room for.
constexpr int64_t kAnnouncedSamples = 4096;

constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

// The loader's place in the data: micro-batch `micro` of global step `step`.
struct Position {
  int64_t step = 0;
  int64_t micro = 0;
};

// The rule is that of Batch::targets_counted.
int64_t CountTargets(const at::Tensor& targets) {
  const auto* const ids = targets.const_data_ptr<int64_t>();
  return targets.numel() - std::count(ids, ids + targets.numel(), plan::kIgnoredTarget);
}

plan::RankSlice SliceOf(const Job& job) {
  return {job.rank(), job.world_size(), job.config().micro_batch()};
}

// The number of tokens that the model knows: model.vocab_size; 0: the configuration has none.
int64_t ModelVocabulary(const Config& config) {
  const Json& model = config.user("model");
  const auto size = model.find("vocab_size");
  return size != model.end() && size->is_number_integer() ? size->get<int64_t>() : 0;
}

std::vector<plan::CorpusPart> PartsOf(const Config& config, Split split) {
  if (split == Split::kValidation) {
    return {{config.data_validation(), 1}};
  }
  return plan::TrainingParts(config);
}

}  // namespace

std::vector<int64_t> DocumentLengths(const at::Tensor& positions) {
  const std::array<const c10::IValue, 1> inputs = {positions};
  RECORD_FUNCTION("dtrain::document_lengths", inputs);  // Profiles show the wait; a test counts it.
  const at::Tensor rows = positions.to(at::kCPU).contiguous();
  const auto* const begin = rows.const_data_ptr<int64_t>();
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < rows.numel(); ++i) {
    if (begin[i] == 0 || i % rows.size(1) == 0) {
      lengths.push_back(0);
    }
    ++lengths.back();
  }
  return lengths;
}

struct TokenLoader::State {
  std::unique_ptr<plan::DataStore> store;  // Null: all files are of this host.
  plan::TokenCorpus corpus;
  plan::TokenSampler sampler;
  plan::RankSlice slice;
  int64_t accumulation;
  int64_t sequence_length;
  int64_t vocabulary_limit;
  plan::DocumentRule documents;
  bool is_masked;               // Some file has a mask.
  std::string key;              // In the configuration: "data.train".
  bool other_batch = false;     // A change of train_batch_size has been accepted.
  std::string corpus_identity;  // A hash of the training data; "": not known.
  at::Device device = at::kCPU;

  std::mutex mutex;
  std::condition_variable room;
  std::condition_variable filled;
  std::deque<absl::StatusOr<Batch>> ready;  // Guarded, as all below.
  Position next_read;
  Position next_given;
  int64_t end = kEndless;               // Samples that may be read, of all ranks.
  std::optional<Position> before_pass;  // In a pass: where the loader stood before it.
  uint64_t generation = 0;  // Changes when the position jumps: what was read before is dropped.
  bool stop = false;
  // The reader's own: the next micro-batch that the store is to learn of, and how many it knows.
  Position next_announced;
  int64_t announced = 0;
  std::thread reader;

  State(std::unique_ptr<plan::DataStore> remote, plan::TokenCorpus c, plan::TokenSampler s)
      : store(std::move(remote)),
        corpus(std::move(c)),
        sampler(std::move(s)),
        is_masked(corpus.has_masks()) {}

  Position After(Position at) const {
    return at.micro + 1 < accumulation ? Position{at.step, at.micro + 1} : Position{at.step + 1, 0};
  }

  bool has_documents() const { return documents.token >= 0 || is_masked; }

  // EndOfData where no sample of this rank's micro-batch is before `before`.
  absl::StatusOr<Batch> Read(Position at, int64_t before) const {
    const int64_t first =
        at.step * sampler.options().global_batch + slice.place(at.micro) * slice.micro_batch;
    if (first >= before) {
      return EndOfData();
    }
    std::vector<plan::SampleLocation> samples = sampler.MicroBatch(at.step, at.micro, slice);
    samples.resize(static_cast<size_t>(std::min(slice.micro_batch, before - first)));
    return ReadSamples(samples);
  }

  // Tells the store which samples come from `at` on, so that it fetches them while others are read.
  void Announce(Position at, int64_t before, bool has_jumped) {
    if (store == nullptr) {
      return;
    }
    if (has_jumped) {
      store->ForgetAhead();
    }
    if (has_jumped || announced == 0) {
      next_announced = at;
      announced = 0;
    }
    const int64_t most = std::max<int64_t>(1, kAnnouncedSamples / slice.micro_batch);
    while (announced < most && AnnounceOne(before)) {
      next_announced = After(next_announced);
      ++announced;
    }
    announced -= announced > 0 ? 1 : 0;  // The one at `at` is read now.
  }

  // False: the store has enough to fetch, or there are no more samples.
  bool AnnounceOne(int64_t before) const {
    const int64_t first = next_announced.step * sampler.options().global_batch +
                          slice.place(next_announced.micro) * slice.micro_batch;
    if (first >= before) {
      return false;
    }
    const auto samples = sampler.MicroBatch(next_announced.step, next_announced.micro, slice);
    return std::all_of(samples.begin(), samples.end(), [this](const plan::SampleLocation& sample) {
      return corpus.WillRead(sample, sequence_length);
    });
  }

  absl::StatusOr<Batch> ReadSamples(const std::vector<plan::SampleLocation>& samples) const {
    const int64_t width = sequence_length + 1;
    at::Tensor rows =
        at::empty({static_cast<int64_t>(samples.size()), width}, at::TensorOptions(at::kLong));
    int64_t* out = rows.mutable_data_ptr<int64_t>();
    for (const plan::SampleLocation& sample : samples) {
      DT_RETURN_IF_ERROR(corpus.Read(sample, sequence_length, vocabulary_limit, out));
      out += width;
    }
    Batch batch{ForDevice(rows.narrow(1, 0, sequence_length)),
                ForDevice(rows.narrow(1, 1, sequence_length))};
    if (has_documents()) {
      batch.positions = ForDevice(at::empty_like(batch.targets));
      DT_RETURN_IF_ERROR(MarkRows(samples, rows, batch));
      batch.document_lengths = DocumentLengths(batch.positions);
    }
    batch.targets_counted = CountTargets(batch.targets);
    return batch;
  }

  // Pinned when it goes to a GPU, so that Next does not wait for the copy. A copy in any case: a
  // single row is contiguous, and tokens and targets, which overlap in it, would share memory.
  at::Tensor ForDevice(const at::Tensor& rows) const {
    return device.is_cpu() ? rows.clone(at::MemoryFormat::Contiguous)
                           : rows.contiguous().pin_memory();
  }

  absl::Status MarkRows(const std::vector<plan::SampleLocation>& samples, const at::Tensor& rows,
                        Batch& batch) const {
    const auto length = static_cast<size_t>(sequence_length);
    const auto span = [&](at::Tensor& tensor, int64_t row) {
      return absl::MakeSpan(tensor.mutable_data_ptr<int64_t>() + row * sequence_length, length);
    };
    const auto* const tokens = rows.const_data_ptr<int64_t>();
    std::vector<uint8_t> mask(length + 1);
    for (int64_t i = 0; i < rows.size(0); ++i) {
      const absl::Span<const int64_t> row(tokens + i * rows.size(1), length + 1);
      const plan::SampleLocation& sample = samples[static_cast<size_t>(i)];
      if (!corpus.is_masked(sample.file)) {
        plan::MarkDocuments(row, documents, span(batch.positions, i), span(batch.targets, i));
        continue;
      }
      DT_RETURN_IF_ERROR(corpus.ReadMask(sample, sequence_length, mask.data()));
      plan::MarkSamples(row, mask, span(batch.positions, i), span(batch.targets, i));
    }
    return absl::OkStatus();
  }

  void ReadAhead() {
    PrepareThread("dt-loader", /*low_priority=*/true);
    std::unique_lock lock(mutex);
    uint64_t last_generation = generation;
    while (true) {
      room.wait(lock, [this] { return stop || ready.size() < kReadAhead; });
      if (stop) {
        return;
      }
      const Position at = next_read;
      const uint64_t of_generation = generation;
      const int64_t before = end;
      next_read = After(at);
      lock.unlock();
      Announce(at, before, std::exchange(last_generation, of_generation) != of_generation);
      absl::StatusOr<Batch> batch = Read(at, before);
      lock.lock();
      if (of_generation == generation) {
        ready.push_back(std::move(batch));
        filled.notify_one();
      }
    }
  }

  void JumpTo(Position at) {
    std::lock_guard lock(mutex);
    before_pass.reset();
    Jump(at, kEndless);
  }

  // REQUIRES: `mutex` is held.
  void Jump(Position at, int64_t before) {
    ++generation;
    ready.clear();
    next_read = at;
    next_given = at;
    end = before;
    room.notify_one();
  }

  // Moves the batch to the device.
  void Send(Batch& batch) const {
    if (device.is_cpu()) {
      return;
    }
    batch.tokens = batch.tokens.to(device, /*non_blocking=*/true);
    batch.targets = batch.targets.to(device, /*non_blocking=*/true);
    if (batch.positions.defined()) {
      batch.positions = batch.positions.to(device, /*non_blocking=*/true);
    }
  }
};

absl::StatusOr<std::unique_ptr<TokenLoader>> TokenLoader::Open(Job& job, Split split,
                                                               TokenLoaderOptions options) {
  const Config& config = job.config();
  const bool training = split == Split::kTrain;
  const auto& patterns = training ? config.data_train() : config.data_validation();
  const char* const key = training ? "data.train" : "data.validation";
  if (patterns.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        key,
        " names no token file; make some by `dtrain data prepare --out DIR FOLDER...` and set ",
        key, "=DIR/", training ? "train" : "val", ".bin"));
  }
  DT_ASSIGN_OR_RETURN(const auto format, plan::TokenFormatFromName(config.data_format()));
  const std::vector<plan::CorpusPart> parts = PartsOf(config, split);
  DT_ASSIGN_OR_RETURN(std::unique_ptr<plan::DataStore> store, OpenTrainingStore(parts, job));
  auto opened = plan::TokenCorpus::Open(parts, format, store.get());
  DT_RETURN_IF_ERROR(Annotate(opened.status(), key));
  DT_RETURN_IF_ERROR(opened->CheckRowLength(config.sequence_length()));
  const plan::SamplerOptions sampling{.sequence_length = config.sequence_length(),
                                      .global_batch = config.global_batch(),
                                      .seed = config.seed(),
                                      .shuffle = training};
  auto sampler = plan::TokenSampler::Create(opened->parts(), sampling);
  DT_RETURN_IF_ERROR(Annotate(sampler.status(), key));
  std::string identity;
  if (training) {
    const std::vector<int64_t> tokens = opened->tokens_per_file();
    job.state().train_tokens = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    job.state().train_files = static_cast<int64_t>(tokens.size());
    auto found = plan::CorpusIdentity(*opened);
    DT_RETURN_IF_ERROR(Annotate(found.status(), key));
    identity = *std::move(found);
    DT_RETURN_IF_ERROR(CheckSameOnRanks(
        job, identity, [](const std::string& first, const std::string& other, int rank) {
          return absl::StrFormat(
              "data.train has other tokens on rank %d (%s) than on rank 0 (%s); every rank opens "
              "the "
              "same files: copy them to all hosts anew, or let data.train name a folder that the "
              "hosts share",
              rank, other, first);
        }));
    DT_RETURN_IF_ERROR(SetEpoch(job, sampler->steps_per_epoch()));
  }
  if (store != nullptr) {
    store->StartReading();
  }
  auto state = std::make_unique<State>(std::move(store), *std::move(opened), *std::move(sampler));
  state->slice = SliceOf(job);
  state->accumulation = config.gradient_accumulation_steps();
  state->sequence_length = config.sequence_length();
  state->vocabulary_limit = options.vocabulary > 0 ? options.vocabulary : ModelVocabulary(config);
  state->key = key;
  state->documents = {config.data_document_token(), config.data_document_token_starts()};
  state->corpus_identity = std::move(identity);
  state->other_batch = job.state().accepts("train_batch_size");
  state->device = job.device();
  state->reader = std::thread([s = state.get()] { s->ReadAhead(); });
  return std::unique_ptr<TokenLoader>(new TokenLoader(std::move(state)));
}

TokenLoader::TokenLoader(std::unique_ptr<State> state) : state_(std::move(state)) {}

TokenLoader::~TokenLoader() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->room.notify_all();
  }
  if (state_->store != nullptr) {
    state_->store->Cancel();
  }
  state_->reader.join();
}

absl::StatusOr<Batch> TokenLoader::Next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.filled.wait(lock, [&] { return !state.ready.empty(); });
  absl::StatusOr<Batch> batch = std::move(state.ready.front());
  state.ready.pop_front();
  state.next_given = state.After(state.next_given);
  state.room.notify_one();
  if (batch.ok()) {
    state.Send(*batch);
  }
  return batch;
}

void TokenLoader::Restart() { state_->JumpTo({}); }

void TokenLoader::BeginPass() {
  State& state = *state_;
  std::lock_guard lock(state.mutex);
  if (!state.before_pass.has_value()) {
    state.before_pass = state.next_given;
  }
  state.Jump({}, state.sampler.windows());
}

void TokenLoader::EndPass() {
  State& state = *state_;
  std::lock_guard lock(state.mutex);
  if (const auto before = std::exchange(state.before_pass, std::nullopt); before.has_value()) {
    state.Jump(*before, kEndless);
  }
}

absl::StatusOr<Batch> TokenLoader::Spare() const {
  absl::StatusOr<Batch> batch = state_->ReadSamples({state_->sampler.At(0, 0)});
  if (batch.ok()) {
    batch->targets.fill_(kIgnoredTarget);
    batch->targets_counted = 0;
    state_->Send(*batch);
  }
  return batch;
}

std::string TokenLoader::Description() const {
  const auto& files = state_->corpus.files();
  return absl::StrFormat("%s (%s%s; %d windows of %d tokens)", state_->key, files.front().path(),
                         files.size() > 1 ? absl::StrFormat(" and %d more", files.size() - 1) : "",
                         state_->sampler.windows(), state_->sequence_length);
}

int64_t TokenLoader::vocabulary() const { return state_->corpus.vocabulary(); }

bool TokenLoader::has_documents() const { return state_->has_documents(); }

Json TokenLoader::SaveState() const {
  std::lock_guard lock(state_->mutex);
  Json cursor = state_->sampler.CursorAt(state_->next_given.step).ToJson();
  cursor["micro"] = state_->next_given.micro;
  if (!state_->corpus_identity.empty()) {
    cursor["corpus"] = state_->corpus_identity;
  }
  return cursor;
}

absl::Status TokenLoader::RestoreState(const Json& state) {
  DT_ASSIGN_OR_RETURN(const auto cursor, plan::DataCursor::FromJson(state));
  DT_RETURN_IF_ERROR(state_->sampler.CheckCursor(cursor, state_->other_batch));
  const auto saved = state.find("corpus");  // Not there: of an older version.
  if (saved != state.end() && *saved != state_->corpus_identity) {
    return absl::FailedPreconditionError(
        "the files of data.train hold other tokens than when the checkpoint was saved, though as "
        "many; restore them, or start anew with --fresh");
  }
  const bool is_same = cursor.global_batch == state_->sampler.CursorAt(0).global_batch;
  state_->JumpTo(
      {state_->sampler.StepAfter(cursor), is_same ? state.value("micro", int64_t{0}) : 0});
  return absl::OkStatus();
}

}  // namespace dtrain
