#include "tests/checkpoint/testing.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "checkpoint/restore/tensor_reads.h"

namespace dtrain::checkpoint {

TemporaryFolder::TemporaryFolder(Where where) {
  // Files in /dev/shm survive SIGKILL as the page cache does, and fsync is free there.
  const bool memory = where == Where::kMemory && std::filesystem::is_directory("/dev/shm");
  const std::filesystem::path parent =
      memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
  std::string pattern = (parent / "dtrain-ckpt-XXXXXX").string();
  DT_CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

FakeState::FakeState(int64_t step, int rank, int world_size, size_t scale)
    : rank_(rank), world_size_(world_size) {
  SplitMix64 random(MixBits(static_cast<uint64_t>(step)) + static_cast<uint64_t>(rank));
  const auto rows = static_cast<int64_t>(16 * scale);
  const std::string r = absl::StrCat(rank);
  Add(source_.model, absl::StrCat("layers.", r, ".weight"), DType::kBFloat16, {rows, 32}, random);
  Add(source_.model, absl::StrCat("layers.", r, ".bias"), DType::kFloat32, {32}, random);
  Add(source_.model, absl::StrCat("layers.", r, ".scalar"), DType::kFloat32, {}, random);
  Add(source_.model, absl::StrCat("layers.", r, ".empty"), DType::kInt64, {0, 3}, random);
  Add(source_.state, "master", DType::kFloat32, {rows * 32}, random);
  Add(source_.state, "exp_avg", DType::kFloat32, {rows * 32}, random);
  Add(source_.state, "rng", DType::kUInt8, {17}, random);
  source_.model_files = {{"config.json", "{\"model_type\": \"llama\"}\n"}};
  source_.job.zero_stage = 1;
  source_.job.layout_hash = "0123456789abcdef";
  source_.job.engine = {{"step", step}, {"lr", 3e-4}};
  source_.job.data = {{"epoch", 0}, {"sample", step * 8}};
  source_.job.skip = {{10, 20}, {40, 41}};
  source_.job.user = {{"note", "caf\u00e9 \"quoted\" \n"}};
  source_.rank = {{"rng", static_cast<uint64_t>(0xfedcba9876543210ULL) - uint64_t(rank)}};
}

void FakeState::Add(std::vector<NamedTensor>& list, const std::string& name, DType dtype,
                    std::vector<int64_t> shape, SplitMix64& random) {
  size_t bytes = DTypeBytes(dtype);
  for (const int64_t dim : shape) {
    bytes *= static_cast<size_t>(dim);
  }
  buffers_.push_back(std::make_unique<std::vector<std::byte>>(bytes));
  for (std::byte& byte : *buffers_.back()) {
    byte = static_cast<std::byte>(random.Next());
  }
  list.push_back({{name, dtype, std::move(shape)}, *buffers_.back()});
}

absl::Status ReadModelTensor(Checkpoint& from, const TensorSpec& stored,
                             absl::Span<std::byte> into) {
  TensorReads reads(from);
  DT_RETURN_IF_ERROR(reads.AddModel(stored, 0, into));
  return reads.Run();
}

absl::Status FakeState::Compare(Checkpoint& checkpoint) const {
  DT_RETURN_IF_ERROR(checkpoint.CheckLayout("0123456789abcdef"));
  std::vector<std::vector<std::byte>> read;
  TensorReads reads(checkpoint);
  for (const auto* const list : {&source_.model, &source_.state}) {
    for (const NamedTensor& tensor : *list) {
      std::vector<std::byte>& into = read.emplace_back(tensor.bytes.size(), std::byte{0x5a});
      DT_RETURN_IF_ERROR(list == &source_.model
                             ? reads.AddModel(tensor.spec, 0, absl::MakeSpan(into))
                             : reads.AddState(rank_, tensor.spec, 0, absl::MakeSpan(into)));
    }
  }
  DT_RETURN_IF_ERROR(reads.Run());
  size_t next = 0;
  for (const auto* const list : {&source_.model, &source_.state}) {
    for (const NamedTensor& tensor : *list) {
      if (tensor.bytes != absl::MakeConstSpan(read[next++])) {
        return absl::DataLossError(absl::StrCat(tensor.spec.name, " differs"));
      }
    }
  }
  const Manifest& manifest = checkpoint.manifest();
  const JobState& job = manifest.state;
  if (job.engine != source_.job.engine || job.data != source_.job.data ||
      job.skip != source_.job.skip || job.user != source_.job.user ||
      manifest.rank_state[static_cast<size_t>(rank_)] != source_.rank) {
    return absl::DataLossError("the manifest's records differ");
  }
  DT_ASSIGN_OR_RETURN(const std::string config, checkpoint.ReadModelFile("config.json"));
  return config == source_.model_files[0].second ? absl::OkStatus()
                                                 : absl::DataLossError("config.json differs");
}

class ThreadHub::ThreadExchange final : public Exchange {
 public:
  ThreadExchange(ThreadHub& hub, int rank) : hub_(hub), rank_(rank) {}
  int rank() const override { return rank_; }
  int world_size() const override { return hub_.world_size_; }

  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine,
                                                  Deadline deadline) override {
    std::unique_lock lock(hub_.mutex_);
    hub_.texts_[static_cast<size_t>(rank_)].emplace_back(mine);
    hub_.changed_.notify_all();
    const size_t round = gathers_++;
    if (rank_ != 0) {
      return std::vector<std::string>();
    }
    std::vector<std::string> all;
    for (int rank = 0; rank < hub_.world_size_; ++rank) {
      const auto& texts = hub_.texts_[static_cast<size_t>(rank)];
      while (texts.size() <= round) {
        if (deadline.Expired()) {
          return absl::DeadlineExceededError(absl::StrCat("rank ", rank, " did not report"));
        }
        hub_.changed_.wait_for(lock, std::chrono::milliseconds(deadline.PollTimeoutMs(50)));
      }
      all.push_back(texts[round]);
    }
    return all;
  }

  absl::StatusOr<std::string> Broadcast(absl::string_view text, Deadline deadline) override {
    std::unique_lock lock(hub_.mutex_);
    const size_t round = broadcasts_++;
    if (rank_ == 0) {
      hub_.broadcasts_.emplace_back(text);
      hub_.changed_.notify_all();
      return std::string(text);
    }
    while (hub_.broadcasts_.size() <= round) {
      if (deadline.Expired()) {
        return absl::DeadlineExceededError("rank 0 did not answer");
      }
      hub_.changed_.wait_for(lock, std::chrono::milliseconds(deadline.PollTimeoutMs(50)));
    }
    return hub_.broadcasts_[round];
  }

 private:
  ThreadHub& hub_;
  const int rank_;
  size_t gathers_ = 0;
  size_t broadcasts_ = 0;
};

std::unique_ptr<Exchange> ThreadHub::ForRank(int rank) {
  return std::make_unique<ThreadExchange>(*this, rank);
}

void RunRanks(int world_size, const std::function<void(int rank, Exchange& exchange)>& body) {
  ThreadHub hub(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&hub, &body, rank] { body(rank, *hub.ForRank(rank)); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

std::vector<SaveReport> SaveOnRanks(Storage& storage, const WriterOptions& options, int world_size,
                                    int64_t step, size_t scale) {
  std::vector<SaveReport> reports(static_cast<size_t>(world_size));
  RunRanks(world_size, [&](int rank, Exchange& exchange) {
    FakeState state(step, rank, world_size, scale);
    Writer writer(storage, options);
    reports[static_cast<size_t>(rank)] = writer.Save(step, state.source(), exchange);
  });
  return reports;
}

WriterOptions OptionsFor(const EpochRecord& epoch) {
  WriterOptions options;
  options.epoch = epoch;
  return options;
}

std::string ReadAll(Storage& storage, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(storage, path, 1U << 30);
  DT_CHECK(text.ok()) << text.status().ToString();
  return *text;
}

uint64_t MemoryBytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  uint64_t kilobytes = 0;
  for (std::string word; file >> word;) {
    if (word == name) {
      file >> kilobytes;
    }
  }
  return kilobytes << 10;
}

}  // namespace dtrain::checkpoint
