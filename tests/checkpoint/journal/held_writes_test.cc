// The gradient of a journal's step is written from where it lies, around the page cache, several
// blocks at once, into room that was reserved before. Whatever a loss of power or the end of the
// process leaves of that, each step whose append had returned counts, with its bytes, and no other
// step counts with wrong ones.
//
// The writes are those of DirectFile itself: a queue notes them, and each state that a loss may
// leave is put together from what was durable and sectors of what was written since.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "checkpoint/journal/journal.h"
#include "checkpoint/journal/segment_writer.h"
#include "checkpoint/storage/direct_file.h"
#include "checkpoint/storage/faulty_file_system.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/forwarding_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::held_writes_test {
namespace {

constexpr StepId kId = {1, 0};
constexpr int64_t kSteps = 2;
constexpr size_t kSectorBytes = 512;
// A block, a page, and a part of one that O_DIRECT does not take.
constexpr size_t kGradientBytes = kWriteBlockBytes + 4096 + 10;

bool Long() { return std::getenv("DTRAIN_TEST_LONG") != nullptr; }

// The gradient of a step, where it need not be copied.
absl::Span<const std::byte> GradientOf(int64_t step) {
  struct Gradient {
    alignas(kHeldAlignment) std::array<std::byte, kGradientBytes> bytes;
  };
  static const auto* const all = [] {
    auto* const made = new std::array<Gradient, kSteps>;
    SplitMix64 random(11);
    for (Gradient& gradient : *made) {
      for (size_t at = 0; at + sizeof(uint64_t) <= kGradientBytes; at += sizeof(uint64_t)) {
        const uint64_t word = random.Next() | 1;  // No zeros, which a loss leaves.
        std::memcpy(gradient.bytes.data() + at, &word, sizeof(word));
      }
    }
    return made;
  }();
  return (*all)[static_cast<size_t>(step - 1)].bytes;
}

using Durable = std::function<void(int64_t step)>;

// Appends the steps; `durable` is called behind each.
absl::Status AppendSteps(Storage& storage, const Durable& durable) {
  SegmentHeader header{.job = "job",
                       .id = kId,
                       .layout_hash = "0123456789abcdef",
                       .settings = {{"seed", 7}},
                       .ranges = {{0, static_cast<int64_t>(kGradientBytes / 2)}}};
  DT_ASSIGN_OR_RETURN(const auto segment, SegmentWriter::Create(storage, header));
  for (int64_t step = 1; step <= kSteps; ++step) {
    const AfterStep after{.state = {{"tracked", step}}, .blobs = {}};
    DT_RETURN_IF_ERROR(segment->Append(
        {.step = step, .end = {{"count", step}}, .gradient = GradientOf(step), .after = &after}));
    durable(step);
  }
  return absl::OkStatus();
}

// The step to which the journal in `storage` leads.
int64_t LastStep(Storage& storage) {
  const auto journal = Journal::Open(storage, kId);
  if (!journal.ok()) {
    ADD_FAILURE() << journal.status();
    return -1;
  }
  const int64_t last = journal->Verify(0, 1);
  for (int64_t step = 1; step <= last; ++step) {
    std::vector<std::byte> read(kGradientBytes);
    EXPECT_TRUE(journal->FilesOf(step)[0]->ReadGradient(step, 0, absl::MakeSpan(read)).ok());
    EXPECT_TRUE(absl::MakeConstSpan(read) == GradientOf(step)) << "step " << step;
  }
  return last;
}

// A storage whose new files are DirectFiles over queues of the test's.
class DirectStorage final : public ForwardingStorage {
 public:
  using MakeQueue = std::function<std::unique_ptr<WriteQueue>()>;
  DirectStorage(Storage& inner, std::string folder, MakeQueue make_queue,
                std::function<void(int fd)> synced)
      : ForwardingStorage(inner),
        folder_(std::move(folder)),
        make_queue_(std::move(make_queue)),
        synced_(std::move(synced)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> CreateFile(const std::string& path, uint64_t bytes,
                                                           Access /*access*/) override {
    DT_ASSIGN_OR_RETURN(UniqueFd fd, dtrain::OpenFile(absl::StrCat(folder_, "/", path),
                                                      O_WRONLY | O_CREAT | O_EXCL));
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    return std::make_unique<File>(std::move(fd), bytes, make_queue_(), synced_);
  }

 private:
  class File final : public WritableFile {
   public:
    File(UniqueFd fd, uint64_t bytes, std::unique_ptr<WriteQueue> queue,
         std::function<void(int fd)> synced)
        : fd_(std::move(fd)),
          file_(fd_.get(), bytes, std::move(queue)),
          synced_(std::move(synced)) {}
    ~File() override { file_.Close(); }
    absl::Status Append(absl::Span<const std::byte> data) override { return file_.Append(data); }
    absl::Status AppendHeld(absl::Span<const std::byte> data) override {
      return file_.AppendHeld(data);
    }
    absl::Status Sync() override {
      DT_RETURN_IF_ERROR(file_.Sync());
      synced_(fd_.get());
      return absl::OkStatus();
    }
    absl::Status Finish() override { return Sync(); }

   private:
    UniqueFd fd_;
    DirectFile file_;
    const std::function<void(int fd)> synced_;
  };

  const std::string folder_;
  const MakeQueue make_queue_;
  const std::function<void(int fd)> synced_;
};

// What happened to a file, in order.
struct Event {
  bool is_sync = false;
  uint64_t offset = 0;
  std::string bytes;  // What was written; for a sync, the whole file.
  size_t size = 0;    // The file's, when the write began.
};

// Does each write and notes it.
class NotingQueue final : public WriteQueue {
 public:
  explicit NotingQueue(std::vector<Event>& events) : events_(events) {}
  absl::Status Start(size_t slot, int fd, uint64_t offset,
                     absl::Span<const std::byte> data) override {
    struct stat info {};
    EXPECT_EQ(fstat(fd, &info), 0);
    events_.push_back({.offset = offset,
                       .bytes = {reinterpret_cast<const char*>(data.data()), data.size()},
                       .size = static_cast<size_t>(info.st_size)});
    ended_.push_back({slot, pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset))});
    return absl::OkStatus();
  }
  absl::StatusOr<Ended> Wait() override {
    const Ended ended = ended_.back();  // In another order than they began.
    ended_.pop_back();
    return ended;
  }

 private:
  std::vector<Event>& events_;
  std::vector<Ended> ended_;
};

// A state that a loss of power may leave before events[count].
std::string LostAt(const std::vector<Event>& events, size_t count, SplitMix64& random) {
  size_t begin = count;  // The writes since the last sync.
  while (begin > 0 && !events[begin - 1].is_sync) {
    --begin;
  }
  std::string left = begin > 0 ? events[begin - 1].bytes : "";
  size_t size = left.size();
  for (size_t i = begin; i < count; ++i) {
    size = std::max({size, events[i].size, events[i].offset + events[i].bytes.size()});
  }
  // The room alone may be there, or any shorter file.
  left.resize(random.Below(2) == 0 ? size : left.size() + random.Below(size - left.size() + 1));
  const uint64_t kept = random.Below(5);  // So many of four sectors.
  for (size_t i = begin; i < count; ++i) {
    const Event& event = events[i];
    for (size_t at = 0; at < event.bytes.size(); at += kSectorBytes) {
      const size_t to = event.offset + at;
      if (to < left.size() && random.Below(4) < kept) {
        const size_t n = std::min({kSectorBytes, event.bytes.size() - at, left.size() - to});
        left.replace(to, n, event.bytes, at, n);
      }
    }
  }
  return left;
}

TEST(HeldWritesTest, NoLossOfPowerLosesADurableStep) {
  SetLogLevel(LogLevel::kError);
  const TemporaryFolder folder;
  const auto disk = *OpenPosixStorage(folder.path());
  const std::string path = SegmentPath(kId, 0, 1);
  std::vector<Event> events;
  std::vector<size_t> durable_at;  // By step: the events before its append had returned.
  bool is_direct = false;
  DirectStorage storage(
      *disk, folder.path(), [&] { return std::make_unique<NotingQueue>(events); },
      [&](int fd) {
        is_direct = (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
        events.push_back({.is_sync = true, .bytes = *ReadFile(folder.path() + "/" + path)});
      });
  const absl::Status appended =
      AppendSteps(storage, [&](int64_t) { durable_at.push_back(events.size()); });
  ASSERT_TRUE(appended.ok()) << appended;
  if (!is_direct) {
    GTEST_SKIP() << "the disk of the temporary folder refuses O_DIRECT";
  }
  ASSERT_GE(events.size(),
            8U);  // In each step what precedes the gradient, a block, a page, a sync.
  int zeros = 0;
  int lost = 0;
  for (size_t count = 0; count <= events.size(); ++count) {
    const auto durable =
        std::count_if(durable_at.begin(), durable_at.end(), [&](size_t at) { return at <= count; });
    for (uint64_t seed = 0; seed < (Long() ? 400U : 10U); ++seed) {
      SCOPED_TRACE(absl::StrCat("event ", count, " of ", events.size(), ", seed ", seed));
      SplitMix64 random(MixBits(count * 1000 + seed));
      const std::string left = LostAt(events, count, random);
      MemoryFileSystem memory;
      const auto after = MakePosixStorage(memory);
      ASSERT_TRUE(after->MakeDirectory(SegmentFolder(kId)).ok());
      ASSERT_TRUE(after->Replace(path, left).ok());
      const int64_t last = LastStep(*after);
      ASSERT_GE(last, durable) << "a durable step is gone";
      ASSERT_LE(last, durable + 1);
      lost += last == durable ? 1 : 0;
      zeros += !left.empty() && left.back() == '\0' ? 1 : 0;
    }
  }
  EXPECT_GT(lost, 20);
  EXPECT_GT(zeros, 10);
}

// A queue whose owner is killed at a call of it.
class KillingQueue final : public WriteQueue {
 public:
  KillingQueue(int& calls, int at) : calls_(calls), at_(at), inner_(MakeThreadQueue()) {}
  absl::Status Start(size_t slot, int fd, uint64_t offset,
                     absl::Span<const std::byte> data) override {
    Count();
    return inner_->Start(slot, fd, offset, data);
  }
  absl::StatusOr<Ended> Wait() override {
    Count();
    return inner_->Wait();
  }

 private:
  void Count() {
    if (calls_++ == at_) {
      std::raise(SIGKILL);
    }
  }
  int& calls_;
  const int at_;
  const std::unique_ptr<WriteQueue> inner_;
};

// Runs `child` in a process of its own, which is killed or ends with 0, and checks what it leaves
// in `folder` against the steps that it told to be durable. Gives whether it was killed.
bool EndsWithEveryDurableStep(const std::string& folder,
                              const std::function<absl::Status(const Durable& durable)>& child) {
  int ends[2];
  DT_CHECK_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  DT_CHECK_GE(pid, 0);
  if (pid == 0) {
    const absl::Status status = child([&](int64_t) { DT_CHECK_EQ(write(ends[1], "s", 1), 1); });
    _exit(status.ok() ? 0 : 1);
  }
  close(ends[1]);
  int64_t durable = 0;
  for (char byte = 0; read(ends[0], &byte, 1) == 1;) {
    ++durable;
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  const auto storage = *OpenPosixStorage(folder);
  const int64_t last = LastStep(*storage);
  EXPECT_GE(last, durable);
  EXPECT_LE(last, durable + 1);
  return WIFSIGNALED(status);
}

// Runs `append` in a folder of its own, killed at call 0, at call 1 and so on, until it ends by
// itself. Gives how many runs that took.
int RunsUntilItEnds(const std::function<absl::Status(const std::string& folder, int at,
                                                     const Durable& durable)>& append) {
  SetLogLevel(LogLevel::kError);
  int at = 0;
  for (bool killed = true; killed && !::testing::Test::HasFailure(); ++at) {
    SCOPED_TRACE(absl::StrCat("call ", at));
    const TemporaryFolder folder;
    killed = EndsWithEveryDurableStep(
        folder.path(), [&](const Durable& durable) { return append(folder.path(), at, durable); });
  }
  return at;
}

TEST(HeldWritesTest, SigkillAtAnyWriteOfABlockKeepsEveryDurableStep) {
  const auto append = [](const std::string& folder, int at,
                         const Durable& durable) -> absl::Status {
    int calls = 0;
    DT_ASSIGN_OR_RETURN(const auto disk, OpenPosixStorage(folder));
    DirectStorage storage(
        *disk, folder, [&] { return std::make_unique<KillingQueue>(calls, at); }, [](int) {});
    return AppendSteps(storage, durable);
  };
  EXPECT_GT(RunsUntilItEnds(append), 8);
}

TEST(HeldWritesTest, SigkillAtAnyCallOfTheFileSystemKeepsEveryDurableStep) {
  const auto append = [](const std::string& folder, int at,
                         const Durable& durable) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto files, OpenRealFileSystem(folder));
    FaultyFileSystem faulty(*files, {.at = at, .kind = FaultKind::kSigkill});
    return AppendSteps(*MakePosixStorage(faulty), durable);
  };
  EXPECT_GT(RunsUntilItEnds(append), 15);
}

// What a queue and a file system of the tests do, the model of both does too, thousands of times a
// second (long_journal_test): here, that it is effective.
TEST(HeldWritesTest, TheModelLosesWhatNoSyncHasWaitedFor) {
  for (const bool crash : {false, true}) {
    int whole = 0;
    int partly = 0;
    int none = 0;
    for (uint64_t seed = 0; seed < 64; ++seed) {
      MemoryFileSystem memory;
      const auto handle = memory.Create("file", 0600);
      ASSERT_TRUE(handle.ok());
      ASSERT_TRUE(memory.SyncDirectory("").ok());
      const std::string data(64 << 10, 'x');
      const auto bytes =
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data.data()), data.size());
      ASSERT_TRUE(memory.WriteHeld(*handle, bytes).ok());
      crash ? memory.Crash(seed) : memory.EndProcess(seed);
      const std::string left = ReadAll(*MakePosixStorage(memory), "file");
      ASSERT_TRUE(crash || left.size() == data.size());
      const auto kept = std::count(left.begin(), left.end(), 'x');
      ++(kept == static_cast<int64_t>(data.size()) ? whole : kept == 0 ? none : partly);
    }
    EXPECT_TRUE(crash || whole > 4) << whole;
    EXPECT_GT(partly, 16);
    EXPECT_GT(none, 4);
  }
}

}  // namespace
}  // namespace dtrain::checkpoint::held_writes_test
