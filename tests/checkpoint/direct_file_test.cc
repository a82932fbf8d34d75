// Large files have the bytes that were appended, by io_uring or by threads, with O_DIRECT or
// without it, whatever their sizes and whatever the system answers to a write. Tests in which the
// kernel itself refuses, by a seccomp filter, a limit or a full disk, have a process of their own.
#include "checkpoint/storage/direct_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/numeric/prng.h"
#include "checkpoint/storage/storage.h"
#include "checkpoint/storage/write_blocks.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::direct_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kBlock = kWriteBlockBytes;
constexpr size_t kSizes[] = {
    0, 1, 511, 512, 4095, 4096, kBlock - 1, kBlock, kBlock + 1, (13 << 20) + 7, 6 * kBlock};

std::string Content(size_t size) {
  std::string content(size, '\0');
  SplitMix64 random(size);
  for (char& c : content) {
    c = static_cast<char>(random.Next());
  }
  return content;
}

absl::Span<const std::byte> Bytes(const std::string& text, size_t begin = 0,
                                  size_t count = std::string::npos) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())
      .subspan(begin, count);
}

// A file in a folder of its own, as DirectFile gets it.
class NewFile {
 public:
  explicit NewFile(uint64_t size, TemporaryFolder::Where where = TemporaryFolder::Where::kDisk)
      : folder_(where), path_(folder_.path() + "/file") {
    fd_ = *OpenFile(path_, O_WRONLY | O_CREAT | O_EXCL);
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(size)), 0);
  }
  int fd() const { return fd_.get(); }
  bool is_direct() const { return (fcntl(fd(), F_GETFL) & O_DIRECT) != 0; }
  uint64_t size() const {
    struct stat info {};
    EXPECT_EQ(fstat(fd(), &info), 0);
    return static_cast<uint64_t>(info.st_size);
  }
  std::string Read() const { return *ReadFile(path_); }

 private:
  const TemporaryFolder folder_;
  const std::string path_;
  UniqueFd fd_;
};

// Does each write when it is started, and answers as `answer` says. They end in the reverse order.
class ScriptedQueue final : public WriteQueue {
 public:
  struct Call {
    int number = 0;  // From 0.
    int fd = -1;
    bool direct = false;
    uint64_t offset = 0;
    absl::Span<const std::byte> data;
    int64_t Do(size_t bytes) const {
      // A write that was cut short need not suit O_DIRECT.
      const int flags = fcntl(fd, F_GETFL);
      fcntl(fd, F_SETFL, flags & ~O_DIRECT);
      const ssize_t n = pwrite(fd, data.data(), bytes, static_cast<off_t>(offset));
      fcntl(fd, F_SETFL, flags);
      return n;
    }
    int64_t DoAll() const { return Do(data.size()); }
  };
  using Answer = std::function<int64_t(const Call&)>;

  explicit ScriptedQueue(Answer answer) : answer_(std::move(answer)) {}
  absl::Status Start(size_t slot, int fd, uint64_t offset,
                     absl::Span<const std::byte> data) override {
    EXPECT_LT(slot, kWriteSlots);
    for (const Ended& other : ended_) {
      EXPECT_NE(other.slot, slot);
    }
    const bool direct = (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
    if (direct) {
      EXPECT_EQ(offset % 4096, 0U);
      EXPECT_EQ(data.size() % 4096, 0U);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data.data()) % 4096, 0U);
    }
    ended_.push_back({slot, answer_({calls_++, fd, direct, offset, data})});
    most_ = std::max(most_, ended_.size());
    return absl::OkStatus();
  }
  absl::StatusOr<Ended> Wait() override {
    EXPECT_FALSE(ended_.empty());
    const Ended ended = ended_.back();
    ended_.pop_back();
    return ended;
  }
  size_t most() const { return most_; }

 private:
  const Answer answer_;
  int calls_ = 0;
  std::vector<Ended> ended_;
  size_t most_ = 0;
};

absl::Status AppendInPieces(DirectFile& file, const std::string& content) {
  SplitMix64 random(content.size() + 1);
  for (size_t at = 0; at < content.size();) {
    const size_t n = std::min<size_t>(1 + random.Below(2 * kBlock), content.size() - at);
    if (absl::Status status = file.Append(Bytes(content, at, n)); !status.ok()) {
      return status;
    }
    at += n;
  }
  return absl::OkStatus();
}

struct Way {
  const char* name;
  bool uring;
  TemporaryFolder::Where where;
};

class DirectFileTest : public ::testing::TestWithParam<Way> {
 protected:
  static absl::StatusOr<std::unique_ptr<WriteQueue>> Queue() {
    if (GetParam().uring) {
      return OpenUringQueue();
    }
    return MakeThreadQueue();
  }
};
INSTANTIATE_TEST_SUITE_P(
    Ways, DirectFileTest,
    ::testing::Values(Way{"UringOnDisk", true, TemporaryFolder::Where::kDisk},
                      Way{"ThreadsOnDisk", false, TemporaryFolder::Where::kDisk},
                      Way{"UringInMemory", true, TemporaryFolder::Where::kMemory},
                      Way{"ThreadsInMemory", false, TemporaryFolder::Where::kMemory}),
    [](const auto& way) { return way.param.name; });

TEST_P(DirectFileTest, HasTheBytesThatWereAppended) {
  for (const size_t size : kSizes) {
    for (const uint64_t expected : {uint64_t{size}, uint64_t{0}, uint64_t{size + 3 * kBlock}}) {
      SCOPED_TRACE(absl::StrCat(size, " bytes, ", expected, " expected"));
      auto queue = Queue();
      if (!queue.ok()) {
        GTEST_SKIP() << "io_uring cannot be used here: " << queue.status().message();
      }
      const NewFile made(expected, GetParam().where);
      DirectFile file(made.fd(), expected, *std::move(queue));
      const std::string content = Content(size);
      EXPECT_TRUE(AppendInPieces(file, content).ok());
      EXPECT_TRUE(file.Sync().ok());
      EXPECT_EQ(made.size(), size);
      file.Close();
      EXPECT_TRUE(made.Read() == content);
    }
  }
}

TEST_P(DirectFileTest, HoldsAllThatWasAppendedAfterEachSync) {
  auto queue = Queue();
  if (!queue.ok()) {
    GTEST_SKIP() << "io_uring cannot be used here: " << queue.status().message();
  }
  const NewFile made(5 * kBlock, GetParam().where);
  DirectFile file(made.fd(), 5 * kBlock, *std::move(queue));
  const std::string content = Content(5 * kBlock);
  size_t at = 0;
  for (const size_t end : {size_t{1}, size_t{5000}, size_t{8192}, kBlock - 1, kBlock,
                           3 * kBlock + 77, 3 * kBlock + 77, 5 * kBlock}) {
    EXPECT_TRUE(file.Append(Bytes(content, at, end - at)).ok());
    EXPECT_TRUE(file.Sync().ok());
    EXPECT_TRUE(made.Read() == content.substr(0, end)) << end;
    at = end;
  }
  file.Close();
}

// `text` from a place in memory that O_DIRECT takes, moved by `past` bytes.
class Held {
 public:
  explicit Held(const std::string& text, size_t past = 0) : memory_(text.size() + past + 8192) {
    const auto begin = reinterpret_cast<uintptr_t>(memory_.data());
    begin_ = (4096 - begin % 4096) % 4096 + past;
    std::copy(Bytes(text).begin(), Bytes(text).end(),
              memory_.begin() + static_cast<int64_t>(begin_));
    size_ = text.size();
  }
  absl::Span<const std::byte> bytes() const {
    return absl::MakeConstSpan(memory_).subspan(begin_, size_);
  }

 private:
  std::vector<std::byte> memory_;
  size_t begin_ = 0;
  size_t size_ = 0;
};

TEST_P(DirectFileTest, HoldsWhatWasHeldBesideWhatWasAppended) {
  struct Step {
    size_t appended, held, past;
  };
  // What suits O_DIRECT, by its place in the file, in memory, both or neither.
  constexpr Step kSteps[] = {{4096, kBlock + 4096 + 77, 0},
                             {4096 - 77, 2 * kBlock, 0},
                             {0, 6 * kBlock, 0},
                             {8192, kBlock + 1, 1},
                             {100, kBlock, 0},
                             {1, 4095, 0},
                             {8192 - 1 - 1 - 100 - 4095, 4096, 0}};
  auto queue = Queue();
  if (!queue.ok()) {
    GTEST_SKIP() << "io_uring cannot be used here: " << queue.status().message();
  }
  const NewFile made(kBlock, GetParam().where);
  DirectFile file(made.fd(), kBlock, *std::move(queue));
  std::string all;
  for (const Step& step : kSteps) {
    const std::string appended = Content(step.appended);
    const std::string held = Content(step.held);
    const Held memory(held, step.past);
    EXPECT_TRUE(file.Append(Bytes(appended)).ok());
    EXPECT_TRUE(file.AppendHeld(memory.bytes()).ok());
    EXPECT_TRUE(file.Sync().ok());
    all += appended + held;
    EXPECT_TRUE(made.Read() == all) << all.size();
  }
  file.Close();
}

TEST_P(DirectFileTest, MayBeLeftInTheMiddle) {
  auto queue = Queue();
  if (!queue.ok()) {
    GTEST_SKIP() << "io_uring cannot be used here: " << queue.status().message();
  }
  const NewFile made(5 * kBlock, GetParam().where);
  DirectFile file(made.fd(), 5 * kBlock, *std::move(queue));
  EXPECT_TRUE(file.Append(Bytes(Content(3 * kBlock + 9))).ok());
  file.Close();
}

// The whole of `content` through a queue that answers so.
void ExpectWritten(const std::string& content, const ScriptedQueue::Answer& answer, bool direct) {
  const NewFile made(content.size());
  const bool can_be_direct = [&] {
    const NewFile other(0);
    return fcntl(other.fd(), F_SETFL, O_DIRECT) == 0;
  }();
  DirectFile file(made.fd(), content.size(), std::make_unique<ScriptedQueue>(answer));
  absl::Status status = AppendInPieces(file, content);
  status.Update(file.Sync());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(file.is_direct(), direct && can_be_direct);
  EXPECT_EQ(made.is_direct(), direct && can_be_direct);
  file.Close();
  EXPECT_TRUE(made.Read() == content);
}

TEST(DirectFileAnswersTest, WritesSeveralBlocksAtOnce) {
  const NewFile made(8 * kBlock);
  auto queue = std::make_unique<ScriptedQueue>([](const auto& call) { return call.DoAll(); });
  const ScriptedQueue& seen = *queue;
  DirectFile file(made.fd(), 8 * kBlock, std::move(queue));
  EXPECT_TRUE(file.Append(Bytes(Content(8 * kBlock))).ok());
  EXPECT_EQ(seen.most(), kWriteSlots);
  EXPECT_TRUE(file.Sync().ok());
  file.Close();
}

TEST(DirectFileAnswersTest, TheDiskBeginsEarlyWithTheFirstBlockAndWithTheLast) {
  constexpr size_t kFirst = 1 << 20;
  const std::string content = Content(kFirst + kBlock + 8192 + 100);
  const NewFile made(content.size());
  std::vector<size_t> sizes;
  DirectFile file(made.fd(), content.size(), std::make_unique<ScriptedQueue>([&](const auto& call) {
                    sizes.push_back(call.data.size());
                    return call.DoAll();
                  }));
  EXPECT_TRUE(file.Append(Bytes(content, 0, kFirst)).ok());
  EXPECT_THAT(sizes, ElementsAre(kFirst));
  EXPECT_TRUE(file.Append(Bytes(content, kFirst)).ok());
  EXPECT_THAT(sizes, ElementsAre(kFirst, kBlock));
  file.EndAppending();
  EXPECT_THAT(sizes, ElementsAre(kFirst, kBlock, 8192U));
  file.EndAppending();
  EXPECT_TRUE(file.Sync().ok());
  EXPECT_EQ(sizes.size(), 3U) << "a block was written twice";
  file.Close();
  EXPECT_TRUE(made.Read() == content);
}

TEST(WriteBlocksTest, FilesTakeTheBlocksOfTheTwoBefore) {
  WriteBlocks blocks;
  std::vector<const std::byte*> first;
  {
    std::vector<WriteBlocks::Block> taken;
    for (size_t i = 0; i <= 2 * kWriteSlots; ++i) {
      taken.push_back(blocks.Take());
      taken.back().get()[kWriteBlockBytes - 1] = std::byte{1};
      first.push_back(taken.back().get());
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first.back()) % kHeldAlignment, 0U);
  }  // One of them is more than is kept.
  std::vector<WriteBlocks::Block> taken;
  for (size_t i = 0; i < 2 * kWriteSlots; ++i) {
    taken.push_back(blocks.Take());
    EXPECT_THAT(first, ::testing::Contains(taken.back().get()));
  }
}

TEST(DirectFileAnswersTest, WritesHeldMemoryFromWhereItIs) {
  const NewFile made(3 * kBlock);
  const Held memory(Content(2 * kBlock + 4096 + 5));
  std::vector<const std::byte*> from;
  DirectFile file(made.fd(), 3 * kBlock, std::make_unique<ScriptedQueue>([&](const auto& call) {
                    from.push_back(call.data.data());
                    return call.DoAll();
                  }));
  if (!file.is_direct()) {
    GTEST_SKIP() << "the disk of the temporary folder refuses O_DIRECT";
  }
  EXPECT_TRUE(file.Append(Bytes(Content(4096))).ok());
  EXPECT_TRUE(file.AppendHeld(memory.bytes()).ok());
  EXPECT_TRUE(file.Sync().ok());
  ASSERT_EQ(from.size(), 4U);  // What was appended, and three writes of what is held.
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(from[i + 1], memory.bytes().data() + i * kBlock);
  }
  file.Close();
  EXPECT_TRUE(made.Read() == Content(4096) + Content(2 * kBlock + 4096 + 5));
}

TEST(DirectFileAnswersTest, AShortWriteIsGoneOnWith) {
  const std::string content = Content(7 * kBlock + 5000);
  ExpectWritten(
      content,
      [](const auto& call) {
        return call.Do(call.number % 2 == 0 ? std::max<size_t>(4096, call.data.size() / 8192 * 4096)
                                            : call.data.size());
      },
      /*direct=*/true);
  // The writes behind a short one no longer suit O_DIRECT.
  ExpectWritten(
      content,
      [](const auto& call) {
        return call.Do(call.number == 2 ? call.data.size() - 100 : call.data.size());
      },
      /*direct=*/false);
}

TEST(DirectFileAnswersTest, AnInterruptedWriteIsRepeated) {
  ExpectWritten(
      Content(6 * kBlock + 1),
      [](const auto& call) -> int64_t {
        return call.number % 3 == 0 ? (call.number % 2 == 0 ? -EINTR : -EAGAIN) : call.DoAll();
      },
      /*direct=*/true);
}

// Some file systems take the flag and refuse the first write, and some memory cannot be written so;
// several are under way then.
TEST(DirectFileAnswersTest, AWriteThatODirectCannotTakeGoesThroughTheCache) {
  for (const int error : {EINVAL, EFAULT}) {
    int refused = 0;
    ExpectWritten(
        Content(9 * kBlock + 4097),
        [&](const auto& call) -> int64_t {
          refused += call.direct ? 1 : 0;
          return call.direct ? -error : call.DoAll();
        },
        /*direct=*/false);
    EXPECT_LE(refused, static_cast<int>(kWriteSlots));
  }
}

TEST(DirectFileAnswersTest, AnErrorStaysAndNothingIsSyncedAfterIt) {
  constexpr int kCalls = 7;
  const std::string content = Content(kCalls * kBlock - 9000);
  for (int at = 0; at < kCalls; ++at) {
    for (const int error : {ENOSPC, EIO, EFBIG, EINVAL, EINTR, 0}) {
      SCOPED_TRACE(absl::StrCat("call ", at, ", error ", error));
      const uint64_t size = content.size() + 12345;
      const NewFile made(size);
      int after = 0;  // Writes that are begun after the one that failed was seen.
      bool seen = false;
      DirectFile file(made.fd(), size,
                      std::make_unique<ScriptedQueue>([&](const auto& call) -> int64_t {
                        after += seen ? 1 : 0;
                        if (error == EINTR || error == EINVAL) {  // Always, for a bound is needed.
                          return call.number >= at ? -error : call.DoAll();
                        }
                        return call.number == at ? -error : call.DoAll();
                      }));
      absl::Status first = AppendInPieces(file, content);
      seen = !first.ok();
      const absl::Status synced = file.Sync();
      first.Update(synced);
      EXPECT_THAT(std::string(first.message()), HasSubstr("cannot write: "));
      EXPECT_EQ(first.code(), error == ENOSPC || error == EFBIG
                                  ? absl::StatusCode::kResourceExhausted
                              : error == EINVAL ? absl::StatusCode::kInvalidArgument
                                                : absl::StatusCode::kUnavailable);
      EXPECT_EQ(synced, first);
      EXPECT_EQ(file.Append(Bytes(content, 0, 1)), first);
      EXPECT_EQ(file.Sync(), first);
      EXPECT_EQ(after, 0);
      // A Sync that did its work would have set the size.
      EXPECT_EQ(made.size(), size);
      file.Close();
    }
  }
}

// Two writes fail, and the queue gives the later one first: that one says why.
TEST(DirectFileAnswersTest, TheFirstErrorThatIsSeenStays) {
  const std::string content = Content(6 * kBlock);
  for (const auto& [errors, code] :
       {std::pair(std::array{EIO, ENOSPC}, absl::StatusCode::kResourceExhausted),
        std::pair(std::array{ENOSPC, EIO}, absl::StatusCode::kUnavailable)}) {
    const NewFile made(content.size());
    DirectFile file(
        made.fd(), content.size(),
        std::make_unique<ScriptedQueue>([&errors = errors](const auto& call) -> int64_t {
          const auto number = static_cast<size_t>(call.number);
          return number < errors.size() ? -errors[number] : call.DoAll();
        }));
    absl::Status status = AppendInPieces(file, content);
    status.Update(file.Sync());
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(file.Sync(), status);
    file.Close();
  }
}

}  // namespace
}  // namespace dtrain::checkpoint::direct_file_test
