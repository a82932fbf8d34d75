// Helpers of the checkpoint tests: a small state with known bytes, temporary folders, and ranks as
// threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/numeric/prng.h"
#include "checkpoint/commit/writer.h"
#include "checkpoint/exchange.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/state_source.h"

namespace dtrain::checkpoint {

// An empty folder that is removed at the end.
class TemporaryFolder {
 public:
  enum class Where { kDisk, kMemory };
  explicit TemporaryFolder(Where where = Where::kDisk);
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A rank's share of a job's state at one step; every byte follows from (seed, step, rank).
class FakeState {
 public:
  FakeState(int64_t step, int rank, int world_size, size_t scale = 1);
  SpanSource& source() { return source_; }
  // OK when `checkpoint`, read back as this rank, has the same bits; otherwise an error that names
  // the difference.
  absl::Status Compare(Checkpoint& checkpoint) const;

 private:
  void Add(std::vector<NamedTensor>& list, const std::string& name, DType dtype,
           std::vector<int64_t> shape, SplitMix64& random);
  int rank_;
  int world_size_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> buffers_;
  SpanSource source_;
};

// Reads a whole tensor of a checkpoint.
absl::Status ReadModelTensor(Checkpoint& from, const TensorSpec& stored,
                             absl::Span<std::byte> into);

// An exchange between threads. If a rank never comes, the others get DeadlineExceeded.
class ThreadHub {
 public:
  explicit ThreadHub(int world_size) : world_size_(world_size), texts_(size_t(world_size)) {}
  std::unique_ptr<Exchange> ForRank(int rank);

 private:
  class ThreadExchange;
  const int world_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::string>> texts_;  // By rank: the texts gathered so far.
  std::vector<std::string> broadcasts_;
};

// Runs body(rank, exchange) on one thread a rank and joins them all.
void RunRanks(int world_size, const std::function<void(int rank, Exchange& exchange)>& body);

// The reports of a save of `step` by every rank.
std::vector<SaveReport> SaveOnRanks(Storage& storage, const WriterOptions& options, int world_size,
                                    int64_t step, size_t scale = 1);

WriterOptions OptionsFor(const EpochRecord& epoch);

// A copy of a tensor's bytes as text, for comparison.
std::string ReadAll(Storage& storage, const std::string& path);

// "VmHWM:" (most so far) or "VmRSS:" (now) of this process.
uint64_t MemoryBytes(const std::string& name);

}  // namespace dtrain::checkpoint
