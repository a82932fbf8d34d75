// Large files in a real folder: what the kernel refuses, as io_uring and O_DIRECT in many
// containers, is known when a run starts and changes no byte; limits, full disks and SIGKILL leave
// no wrong file.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "checkpoint/storage/block_reader.h"
#include "checkpoint/storage/direct_file.h"
#include "checkpoint/storage/faulty_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::direct_storage_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBlock = kWriteBlockBytes;
constexpr size_t kSizes[] = {0,    1,          511,    512,        4095,
                             4096, kBlock - 1, kBlock, kBlock + 1, (13 << 20) + 7};
// Below FakeState's scale of 4096 no file of a save would be large.
constexpr size_t kLarge = 4096;

std::vector<std::byte> Content(size_t size) {
  std::vector<std::byte> content(size);
  SplitMix64 random(size);
  for (std::byte& byte : content) {
    byte = static_cast<std::byte>(random.Next());
  }
  return content;
}

absl::Status WriteOne(Storage& storage, const std::string& path, uint64_t expected,
                      const std::vector<std::byte>& content) {
  DT_ASSIGN_OR_RETURN(const auto file, storage.CreateFile(path, expected, Access::kOwner));
  DT_RETURN_IF_ERROR(file->Append(content));
  return file->Finish();
}

absl::Status ExpectContent(Storage& storage, const std::string& path,
                           const std::vector<std::byte>& content) {
  DT_ASSIGN_OR_RETURN(const auto file, storage.OpenFile(path));
  std::vector<std::byte> read(file->bytes());
  DT_RETURN_IF_ERROR(file->ReadAt(0, absl::MakeSpan(read)));
  return read == content ? absl::OkStatus()
                         : absl::InternalError(absl::StrCat(path, " has other bytes"));
}

// Writes and reads files of all sizes; their ways' note must be `note`.
absl::Status WriteAllSizes(const std::string& folder, const std::string& note) {
  DT_ASSIGN_OR_RETURN(const auto storage, OpenPosixStorage(folder));
  for (const size_t size : kSizes) {
    const std::vector<std::byte> content = Content(size);
    const std::string path = absl::StrCat("file", size);
    DT_RETURN_IF_ERROR(WriteOne(*storage, path, size, content));
    DT_RETURN_IF_ERROR(ExpectContent(*storage, path, content));
  }
  DT_ASSIGN_OR_RETURN(const std::string slower, storage->Probe());
  return slower == note ? absl::OkStatus()
                        : absl::InternalError(absl::StrCat("written \"", slower, "\""));
}

// Runs `body` in a process of its own, which is not to change this one, and gives what it returns.
absl::Status InAnotherProcess(const std::function<absl::Status()>& body) {
  std::array<int, 2> ends = {};
  DT_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0);
  const pid_t child = fork();
  DT_CHECK(child >= 0);
  if (child == 0) {
    const absl::Status status = body();
    const std::string text(status.message());
    _exit(write(ends[1], text.data(), text.size()) < 0 ? 99 : static_cast<int>(status.raw_code()));
  }
  close(ends[1]);
  std::string text(1000, '\0');
  const ssize_t n = read(ends[0], text.data(), text.size());
  close(ends[0]);
  int status = 0;
  DT_CHECK(waitpid(child, &status, 0) == child);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return WIFEXITED(status) ? absl::Status(static_cast<absl::StatusCode>(WEXITSTATUS(status)), text)
                           : absl::UnknownError(absl::StrCat("ended by ", WTERMSIG(status)));
}

enum Refused { kUring = 1, kDirect = 2 };

// From here on the kernel refuses what is named, as the filters of containers do.
absl::Status Refuse(int what) {
  constexpr auto kAt = [](size_t offset) { return static_cast<uint32_t>(offset); };
  const auto load = [](uint32_t offset) {
    return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset);
  };
  const auto unless = [](uint32_t value, uint8_t skip) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip);
  };
  const auto give = [](uint32_t value) { return sock_filter BPF_STMT(BPF_RET | BPF_K, value); };
  std::vector<sock_filter> filter = {load(kAt(offsetof(seccomp_data, nr)))};
  if ((what & kUring) != 0) {
    filter.push_back(unless(SYS_io_uring_setup, 1));
    filter.push_back(give(SECCOMP_RET_ERRNO | EPERM));
  }
  if ((what & kDirect) != 0) {
    filter.push_back(unless(SYS_fcntl, 5));
    filter.push_back(load(kAt(offsetof(seccomp_data, args[1]))));
    filter.push_back(unless(F_SETFL, 3));
    filter.push_back(load(kAt(offsetof(seccomp_data, args[2]))));
    filter.push_back(sock_filter BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1));
    filter.push_back(give(SECCOMP_RET_ERRNO | EINVAL));
  }
  filter.push_back(give(SECCOMP_RET_ALLOW));
  const sock_fprog program = {static_cast<uint16_t>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    return ErrnoStatus(errno, "seccomp");
  }
  return absl::OkStatus();
}

constexpr char kThroughCache[] = "through the page cache, because the file system refuses O_DIRECT";
constexpr char kByThreads[] =
    "by threads, because the system refuses io_uring: Operation not permitted";

class DirectStorageTest : public ::testing::TestWithParam<TemporaryFolder::Where> {
 protected:
  DirectStorageTest() {
    SetLogLevel(LogLevel::kError);
    reason_ = OpenUringQueue().status();
  }
  const TemporaryFolder folder_{GetParam()};
  absl::Status reason_;  // Why this host has no io_uring.
};
INSTANTIATE_TEST_SUITE_P(Places, DirectStorageTest,
                         ::testing::Values(TemporaryFolder::Where::kDisk,
                                           TemporaryFolder::Where::kMemory),
                         [](const auto& place) {
                           return place.param == TemporaryFolder::Where::kDisk ? "Disk" : "Memory";
                         });

TEST_P(DirectStorageTest, WritesTheSameBytesWithoutIoUring) {
  const absl::Status status = InAnotherProcess([this] {
    DT_RETURN_IF_ERROR(Refuse(kUring));
    return WriteAllSizes(
        folder_.path(),
        reason_.ok() ? kByThreads : absl::StrCat("by threads, because ", reason_.message()));
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(DirectStorageTest, WritesTheSameBytesWithoutODirect) {
  const absl::Status status = InAnotherProcess([this] {
    DT_RETURN_IF_ERROR(Refuse(kDirect));
    return WriteAllSizes(
        folder_.path(),
        absl::StrCat(
            kThroughCache,
            reason_.ok() ? "" : absl::StrCat(", and by threads, because ", reason_.message())));
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(DirectStorageTest, WritesTheSameBytesWithoutBoth) {
  if (!reason_.ok()) {
    GTEST_SKIP() << "io_uring cannot be used here: " << reason_.message();
  }
  const absl::Status status = InAnotherProcess([this] {
    DT_RETURN_IF_ERROR(Refuse(kUring | kDirect));
    return WriteAllSizes(folder_.path(), absl::StrCat(kThroughCache, ", and ", kByThreads));
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(DirectStorageTest, WritesInTheBestWayWhereNothingIsRefused) {
  struct statfs facts {};
  ASSERT_EQ(statfs(folder_.path().c_str(), &facts), 0);
  const int probe = open(folder_.path().c_str(), O_TMPFILE | O_WRONLY | O_DIRECT, 0600);
  close(probe);
  if (!reason_.ok() || probe < 0) {
    GTEST_SKIP() << "io_uring or O_DIRECT cannot be used here";
  }
  const absl::Status status = WriteAllSizes(folder_.path(), "");
  EXPECT_TRUE(status.ok()) << status;
  if (facts.f_type == TMPFS_MAGIC) {
    return;  // There the page cache is the medium.
  }
  // Only the last part of a page is in the page cache.
  const size_t bytes = kSizes[std::size(kSizes) - 1];
  const auto storage = OpenPosixStorage(folder_.path());
  ASSERT_TRUE(storage.ok() && WriteOne(**storage, "unread", bytes, Content(bytes)).ok());
  const int unread = open((folder_.path() + "/unread").c_str(), O_RDONLY);
  ASSERT_GE(unread, 0);
  void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, unread, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  ASSERT_EQ(mincore(mapped, bytes, pages.data()), 0);
  EXPECT_LE(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }),
            1);
  munmap(mapped, bytes);
  close(unread);
}

TEST_P(DirectStorageTest, AProbeLeavesNothing) {
  const auto storage = OpenPosixStorage(folder_.path());
  ASSERT_TRUE(storage.ok());
  EXPECT_TRUE((*storage)->Probe().ok());
  const auto entries = (*storage)->List("");
  ASSERT_TRUE(entries.ok());
  EXPECT_TRUE(entries->empty());
}

TEST_P(DirectStorageTest, AFileThatIsDroppedInTheMiddleIsNoErrorAndHasAnotherSize) {
  const auto storage = OpenPosixStorage(folder_.path());
  ASSERT_TRUE(storage.ok());
  {
    const auto file = (*storage)->CreateFile("dropped", 6 * kBlock, Access::kOwner);
    ASSERT_TRUE(file.ok() && (*file)->Append(Content(3 * kBlock + 1)).ok());
  }
  // Nobody may take it for whole.
  const auto entries = (*storage)->List("");
  ASSERT_TRUE(entries.ok() && entries->size() == 1);
  EXPECT_NE(entries->front().bytes, 6 * kBlock);
  EXPECT_TRUE((*storage)->RemoveFile("dropped").ok());
  EXPECT_TRUE(WriteOne(**storage, "dropped", kBlock, Content(kBlock)).ok());
}

// A limit on files' sizes stands for a device that fails at a place that nothing foretells.
TEST_P(DirectStorageTest, AWriteThatFailsLaterIsAnErrorOfTheFile) {
  const absl::Status status = InAnotherProcess([this]() -> absl::Status {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{.rlim_cur = 6 << 20, .rlim_max = RLIM_INFINITY};
    DT_CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    DT_ASSIGN_OR_RETURN(const auto storage, OpenPosixStorage(folder_.path()));
    // Too little was expected, or the file is refused before its first byte.
    const absl::Status late = WriteOne(*storage, "late", kBlock, Content(10 * kBlock));
    const absl::Status early = WriteOne(*storage, "early", 10 * kBlock, Content(10 * kBlock));
    for (const absl::Status& failed : {late, early}) {
      if (failed.code() != absl::StatusCode::kResourceExhausted) {
        return absl::InternalError(failed.ToString());
      }
    }
    if (!absl::IsNotFound(storage->OpenFile("early").status())) {
      return absl::InternalError("a file was left although there is no room for it");
    }
    return absl::ResourceExhaustedError(absl::StrCat(late.message(), "|", early.message()));
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder_.path() + "/late: cannot write: File too large"),
                    HasSubstr(folder_.path() + "/early: ")));
}

// Whatever the file's size, and the place, length and memory of a read.
TEST(DirectDiskTest, ReadsThatPassTheCacheGiveTheSameBytes) {
  const TemporaryFolder folder;
  const auto storage = *OpenPosixStorage(folder.path());
  for (const size_t size : kSizes) {
    SCOPED_TRACE(size);
    const std::vector<std::byte> content = Content(size);
    const std::string path = absl::StrCat("file", size);
    ASSERT_TRUE(WriteOne(*storage, path, size, content).ok());
    const auto file = storage->OpenFile(path);
    ASSERT_TRUE(file.ok()) << file.status();
    (*file)->PassCache();
    std::vector<std::byte> read;
    BlockReader blocks(**file, size);
    for (size_t at = 0; at < size; at += kBlockBytes) {
      const auto block = blocks.Next();
      ASSERT_TRUE(block.ok()) << block.status();
      read.insert(read.end(), block->begin(), block->end());
    }
    EXPECT_TRUE(read == content);
    std::vector<std::byte> end(std::min<size_t>(size, 1001));
    (*file)->PassCache();
    ASSERT_TRUE((*file)->ReadAt(size - end.size(), absl::MakeSpan(end)).ok());
    EXPECT_TRUE(std::equal(end.rbegin(), end.rend(), content.rbegin()));
  }
}

TEST(DirectDiskTest, AReadBeyondTheEndSaysWhereTheFileEnds) {
  const TemporaryFolder folder;
  const auto storage = OpenPosixStorage(folder.path());
  ASSERT_TRUE(storage.ok()) << storage.status();
  ASSERT_TRUE((*storage)->Replace("file", "0123456789").ok());
  const auto file = (*storage)->OpenFile("file");
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::byte> into(8);
  EXPECT_TRUE((*file)->ReadAt(2, absl::MakeSpan(into)).ok());
  const absl::Status status = (*file)->ReadAt(5, absl::MakeSpan(into));
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/file ends at byte 10; 8 bytes from 5 were wanted"));
}

TEST(DirectDiskTest, AFullDiskIsAnErrorOfTheFileAndOfAProbe) {
  const TemporaryFolder folder;
  if (mount("tmpfs", folder.path().c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "size=9m") != 0) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here: run as root to test a full disk";
  }
  const auto storage = OpenPosixStorage(folder.path());
  ASSERT_TRUE(storage.ok());
  const auto full = [&](const absl::Status& status, const std::string& name) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(folder.path(), "/", name)));
  };
  EXPECT_TRUE((*storage)->Probe().ok());
  full(WriteOne(**storage, "late", kBlock, Content(3 * kBlock)), "late");
  full((*storage)->Probe().status(), ".tmp-probe-");
  EXPECT_TRUE((*storage)->RemoveFile("late").ok());
  const absl::Status early = WriteOne(**storage, "early", 3 * kBlock, Content(3 * kBlock));
  full(early, "early");
  EXPECT_THAT(std::string(early.message()),
              AllOf(::testing::ContainsRegex("/early, where [0-9]+ bytes are free: "),
                    HasSubstr(absl::StrCat("cannot reserve ", 3 * kBlock, " bytes"))));
  EXPECT_TRUE(WriteOne(**storage, "fits", 2 * kBlock, Content(2 * kBlock)).ok());
  umount2(folder.path().c_str(), MNT_DETACH);
}

TEST(DirectDiskTest, AFolderThatMayNotBeWrittenIsKnownFromAProbe) {
  const TemporaryFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0555), 0);
  const absl::Status status = InAnotherProcess([&]() -> absl::Status {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) {
      return ErrnoStatus(errno, "setresuid");
    }
    DT_ASSIGN_OR_RETURN(const auto storage, OpenPosixStorage(folder.path()));
    return storage->Probe().status();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder.path() + "/.tmp-probe-"));
}

// A process is killed while blocks are on their way to the disk.
TEST(DirectDiskTest, SigkillInALargeSaveLeavesTheOldOrTheNew) {
  SetLogLevel(LogLevel::kError);
  int64_t calls = 1;
  int killed = 0;
  for (int64_t at = -1; at < calls; at += at < 0 ? 1 : 7) {  // -1: an undisturbed save.
    SCOPED_TRACE(absl::StrCat("call ", at));
    const TemporaryFolder folder;
    auto files = OpenRealFileSystem(folder.path());
    ASSERT_TRUE(files.ok()) << files.status();
    const auto calm = MakePosixStorage(**files);
    const auto epoch = BeginEpoch(*calm, "job", 1, std::nullopt);
    ASSERT_TRUE(epoch.ok()) << epoch.status();
    const WriterOptions options = OptionsFor(*epoch);
    ASSERT_TRUE(SaveOnRanks(*calm, options, 1, 1, kLarge)[0].durable());
    if (at < 0) {
      FaultyFileSystem counted(**files, {});
      ASSERT_TRUE(SaveOnRanks(*MakePosixStorage(counted), options, 1, 2, kLarge)[0].durable());
      calls = counted.calls();
      continue;
    }
    const absl::Status status = InAnotherProcess([&] {
      FaultyFileSystem faulty(**files, {at, FaultKind::kSigkill});
      const auto storage = MakePosixStorage(faulty);
      FakeState state(2, 0, 1, kLarge);
      AloneExchange alone;
      Writer writer(*storage, options);
      return writer.Save(2, state.source(), alone).status;
    });
    killed += status.code() == absl::StatusCode::kUnknown ? 1 : 0;
    auto latest = FindLatest(*calm);
    ASSERT_TRUE(latest.ok()) << latest.status();
    const int64_t step = (*latest)->manifest().id.step;
    EXPECT_TRUE(step == 1 || step == 2) << step;
    const absl::Status same = FakeState(step, 0, 1, kLarge).Compare(**latest);
    EXPECT_TRUE(same.ok()) << same;
    const auto next = BeginEpoch(*calm, "job", 1, (*latest)->manifest().id);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_TRUE(SaveOnRanks(*calm, OptionsFor(*next), 1, 3, kLarge)[0].durable());
  }
  EXPECT_GT(killed, 5);
}

}  // namespace
}  // namespace dtrain::checkpoint::direct_storage_test
