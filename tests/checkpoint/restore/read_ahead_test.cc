// How a restore has the disk read ahead: never in front of the epoch's record, and by the system
// itself where that reads far ahead of a reader who goes forwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/check.h"
#include "base/status.h"
#include "checkpoint/restore/tensor_reads.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/forwarding_storage.h"
#include "tests/checkpoint/restore/large_states.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::read_ahead_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Read {
  size_t opening = 0;  // The number of the open file.
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Notes what is published and read ahead, in order, and what is read.
class NotingStorage final : public ForwardingStorage {
 public:
  NotingStorage(Storage& inner, bool reads_ahead)
      : ForwardingStorage(inner), reads_ahead_(reads_ahead) {}
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) override {
    DT_ASSIGN_OR_RETURN(auto file, inner_.OpenFile(path));
    const std::lock_guard lock(mutex_);
    return std::make_unique<File>(std::move(file), path, openings_++, *this);
  }
  absl::Status Publish(const std::string& path, absl::string_view content) override {
    Note("publish " + path);
    return inner_.Publish(path, content);
  }
  bool reads_ahead() const override { return reads_ahead_; }

  void Note(const std::string& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  std::vector<std::string> TakeEvents() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }
  std::vector<Read> TakeReads() {
    const std::lock_guard lock(mutex_);
    return std::exchange(reads_, {});
  }

 private:
  class File final : public ReadableFile {
   public:
    File(std::unique_ptr<ReadableFile> file, std::string path, size_t opening,
         NotingStorage& storage)
        : file_(std::move(file)), path_(std::move(path)), opening_(opening), storage_(storage) {}
    uint64_t bytes() const override { return file_->bytes(); }
    absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
      {
        const std::lock_guard lock(storage_.mutex_);
        storage_.reads_.push_back({opening_, offset, into.size()});
      }
      return file_->ReadAt(offset, into);
    }
    void ReadAhead(uint64_t /*offset*/, uint64_t /*bytes*/) const override {
      storage_.Note("ahead " + path_);
    }
    bool takes_small_reads() const override { return true; }

   private:
    const std::unique_ptr<ReadableFile> file_;
    const std::string path_;
    const size_t opening_;
    NotingStorage& storage_;
  };

  const bool reads_ahead_;
  std::mutex mutex_;
  size_t openings_ = 0;
  std::vector<std::string> events_;
  std::vector<Read> reads_;
};

// The open files that were read. Each must have been read forwards and without a gap.
size_t OpeningsRead(const std::vector<Read>& reads) {
  std::map<size_t, uint64_t> ends;
  for (const Read& read : reads) {
    const auto [end, is_first] = ends.try_emplace(read.opening, read.offset);
    EXPECT_EQ(read.offset, end->second) << "open file " << read.opening;
    end->second = read.offset + read.bytes;
  }
  return ends.size();
}

class ReadAheadTest : public LargeStatesTest {
 protected:
  static std::unique_ptr<Checkpoint> Begin(Storage& storage) {
    AloneExchange alone;
    const AttemptOptions options{.job = "job", .verify = Verify::kSizes};
    auto attempt = BeginAttempt(storage, alone, options, absl::Minutes(1));
    DT_CHECK_OK(attempt.status());
    DT_CHECK(attempt->checkpoint != nullptr);
    return std::move(attempt->checkpoint);
  }
  void ReadWhole(TensorReads& reads) {
    std::vector<std::byte> whole(kStateBytes);
    ASSERT_TRUE(Ask(reads, 0, absl::MakeSpan(whole)).ok());
    ASSERT_TRUE(reads.Run().ok());
    EXPECT_TRUE(IsSaved(0, whole));
  }
};

TEST_F(ReadAheadTest, NothingIsReadAheadBeforeTheEpochHasBegunAndSmallFilesAreFirst) {
  NotingStorage storage(*storage_, /*reads_ahead=*/false);
  Begin(storage);
  const std::vector<std::string> events = storage.TakeEvents();
  ASSERT_GT(events.size(), 3U);
  EXPECT_THAT(events[0], StartsWith("publish epochs/"));
  EXPECT_THAT(std::vector(events.begin() + 1, events.end()), Each(StartsWith("ahead step-")));
  EXPECT_THAT(events[1], Not(HasSubstr(".safetensors")));
  EXPECT_TRUE(absl::EndsWith(events.back(), ".safetensors")) << events.back();
}

TEST_F(ReadAheadTest, WhereTheSystemReadsAheadItIsNotAskedTo) {
  NotingStorage storage(*storage_, /*reads_ahead=*/true);
  const auto from = Begin(storage);
  TensorReads reads(*from);
  reads.AddOtherFiles();
  ReadWhole(reads);
  const std::vector<std::string> events = storage.TakeEvents();
  EXPECT_EQ(events.size(), 1U) << "the epoch's record";
}

TEST_F(ReadAheadTest, WhereTheSystemReadsAheadBlocksInARowAreReadForwardsThroughAFileOfTheirOwn) {
  NotingStorage storage(*storage_, /*reads_ahead=*/true);
  const auto from = Begin(storage);
  TensorReads reads(*from);
  storage.TakeReads();
  ReadWhole(reads);
  EXPECT_EQ(OpeningsRead(storage.TakeReads()), 1U);

  std::vector<std::byte> first(100);
  std::vector<std::byte> last(100);
  ASSERT_TRUE(Ask(reads, 0, absl::MakeSpan(first)).ok());
  ASSERT_TRUE(Ask(reads, kStateBytes - last.size(), absl::MakeSpan(last)).ok());
  ASSERT_TRUE(reads.Run().ok());
  EXPECT_TRUE(IsSaved(0, first));
  EXPECT_TRUE(IsSaved(kStateBytes - last.size(), last));
  EXPECT_EQ(OpeningsRead(storage.TakeReads()), 2U) << "a block between them is not read";
}

}  // namespace
}  // namespace dtrain::checkpoint::read_ahead_test
