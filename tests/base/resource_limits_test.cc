#include "base/system/resource_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "base/status.h"

namespace dtrain::resource_limits_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A soft limit of this process while the object lives.
class SoftLimit {
 public:
  SoftLimit(__rlimit_resource which, rlim_t value) : which_(which) {
    getrlimit(which_, &before_);
    const rlimit lower{value, before_.rlim_max};
    EXPECT_EQ(setrlimit(which_, &lower), 0);
  }
  ~SoftLimit() { setrlimit(which_, &before_); }
  SoftLimit(const SoftLimit&) = delete;
  SoftLimit& operator=(const SoftLimit&) = delete;

 private:
  const __rlimit_resource which_;
  rlimit before_{};
};

// Called in a child process: makes it a user that may have one thread, because the limit does not
// hold for root.
void AllowOneThread() {
  constexpr uid_t kNobody = 65534;
  const rlimit one{1, 1};
  if (setrlimit(RLIMIT_NPROC, &one) != 0 || (geteuid() == 0 && setuid(kNobody) != 0)) {
    _exit(1);
  }
}

TEST(LimitsBehind, NamesTheLimitItsValueAndItsFlag) {
  {
    const SoftLimit files(RLIMIT_NOFILE, 100);
    EXPECT_EQ(LimitsBehind(EMFILE), "; raise the limit of open files, which is 100 (ulimit -n)");
  }
  {
    const SoftLimit size(RLIMIT_FSIZE, 1 << 20);
    EXPECT_EQ(LimitsBehind(EFBIG),
              "; raise the limit of a file's size, which is 1048576 bytes (ulimit -f)");
  }
  {
    const SoftLimit size(RLIMIT_NPROC, 5000);
    EXPECT_THAT(LimitsBehind(EAGAIN),
                HasSubstr("the user's processes and threads, which is 5000 (ulimit -u)"));
  }
  EXPECT_EQ(LimitsBehind(ENOENT), "");
}

TEST(LimitsBehind, OfMemoryAreThoseOfAddressesAndOfData) {
  const SoftLimit data(RLIMIT_DATA, uint64_t{1} << 59);
  EXPECT_EQ(LimitsBehind(ENOMEM),
            "; raise the limit of data, which is 576460752303423488 bytes (ulimit -d)");
  const SoftLimit addresses(RLIMIT_AS, uint64_t{1} << 60);
  const std::string of_addresses =
      "the limit of address space, which is 1152921504606846976 bytes (ulimit -v)";
  EXPECT_EQ(LimitsBehind(ENOMEM),
            "; raise " + of_addresses +
                ", or the limit of data, which is 576460752303423488 bytes (ulimit -d)");
  EXPECT_THAT(LimitsBehind(EAGAIN), HasSubstr(of_addresses)) << "a thread needs a stack";
}

TEST(LimitsBehind, OfThreadsAreThoseOfTheContainerToo) {
  char name[] = "/tmp/dtrain-limits-XXXXXX";
  const std::string root = mkdtemp(name);
  const SystemRoots roots = {.proc = root, .cgroup = root + "/cgroup"};
  std::filesystem::create_directories(root + "/self");
  std::filesystem::create_directories(root + "/cgroup/pod");
  std::ofstream(root + "/self/cgroup") << "0::/pod\n";
  std::ofstream(root + "/cgroup/pod/pids.max") << "77\n";
  const SoftLimit processes(RLIMIT_NPROC, 5000);
  EXPECT_THAT(LimitsBehind(EAGAIN, roots),
              HasSubstr("(ulimit -u), or pids.max of the cgroup or container, which is 77"));
  EXPECT_THAT(LimitsBehind(EMFILE, roots), Not(HasSubstr("pids.max")));
  std::filesystem::remove_all(root);
}

TEST(LimitsBehind, AreInTheErrorsOfSystemCalls) {
  const SoftLimit size(RLIMIT_FSIZE, 4096);
  const absl::Status status = ErrnoStatus(EFBIG, "cannot write");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << "as a full disk";
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot write: File too large; raise"));
}

TEST(FromLimitException, TakesThreadsAndMemoryAndNothingElse) {
  const auto thread =
      FromLimitException(std::system_error(EAGAIN, std::generic_category(), "thread"));
  ASSERT_TRUE(thread.has_value());
  EXPECT_THAT(std::string(thread->message()), HasSubstr("cannot start a thread: Resource temp"));
  EXPECT_TRUE(FromLimitException(std::bad_alloc()).has_value());
  EXPECT_FALSE(FromLimitException(std::runtime_error("x")).has_value());
}

TEST(CheckThreads, PassesWhereTheyStart) { EXPECT_TRUE(CheckThreads(8).ok()); }

TEST(CheckThreads, NamesTheLimitOfTheUser) {
  EXPECT_EXIT(
      {
        AllowOneThread();
        const absl::Status status = CheckThreads(4);
        std::fputs(std::string(status.message()).c_str(), stderr);
        _exit(ExitCodeFor(status));
      },
      ::testing::ExitedWithCode(kExitTemporary),
      "cannot start 4 threads \\(0 did start\\).*which is 1 \\(ulimit -u\\)");
}

TEST(CheckStack, RefusesOneThatARankWouldOutgrow) {
  EXPECT_TRUE(CheckStack().ok());
  {
    const SoftLimit enough(RLIMIT_STACK, 1 << 20);
    EXPECT_TRUE(CheckStack().ok());
  }
  const SoftLimit small(RLIMIT_STACK, (1 << 20) - 4096);
  EXPECT_EQ(ExitCodeFor(CheckStack()), kExitUsage);
  EXPECT_THAT(std::string(CheckStack().message()), HasSubstr("1044480 bytes"));
}

// In a child process: the text for a limit of CPU time, and what the soft limit then is.
void SayReserve(rlim_t soft, rlim_t hard) {
  const rlimit given{soft, hard};
  setrlimit(RLIMIT_CPU, &given);
  std::fputs(ReserveCpuTime().c_str(), stderr);
  rlimit now{};
  getrlimit(RLIMIT_CPU, &now);
  std::fprintf(stderr, " soft %d", static_cast<int>(now.rlim_cur));
  _exit(0);
}

TEST(ReserveCpuTime, LeavesATenthOfAHardLimitAndASoftOneAsItIs) {
  const auto ended = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(SayReserve(1000, 1000), ended,
              "which is 1000 s, is used up but for 100 s, in which a save may end; raise it "
              "\\(ulimit -t\\) soft 900");
  EXPECT_EXIT(SayReserve(36000, 36000), ended, "but for 300 s, .* soft 35700");
  EXPECT_EXIT(SayReserve(5, 5), ended, "which is 5 s, is used up but for 1 s, .* soft 4");
  EXPECT_EXIT(SayReserve(1, 1), ended, "which is 1 s, is used up; raise it .* soft 1");
  EXPECT_EXIT(SayReserve(500, 1000), ended, "which is 1000 s, is used up but for 500 s.* soft 500");
  EXPECT_EXIT(SayReserve(500, RLIM_INFINITY), ended,
              "^the limit of CPU time, which is 500 s, is used up; raise it .* soft 500");
  EXPECT_EXIT(SayReserve(RLIM_INFINITY, RLIM_INFINITY), ended, "^ soft -1");
}

TEST(AllowOpenFiles, RaisesTheSoftLimitUpToTheHardOne) {
  const SoftLimit files(RLIMIT_NOFILE, 100);
  const auto after = [](uint64_t more) {
    AllowOpenFiles(more);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit;
  };
  EXPECT_EQ(after(0).rlim_cur, 100);
  EXPECT_EQ(after(7).rlim_cur, 107);
  const rlimit most = after(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(most.rlim_cur, most.rlim_max);
}

// Separate from the noexcept function, because g++ drops the exception if both are one function.
__attribute__((noinline)) void StartAThread() {
  std::thread([] {}).join();
}

__attribute__((noinline)) void ThrowAnother() { throw std::runtime_error("another"); }

TEST(EndWithALineAtLimits, AThreadThatDoesNotStartEndsTheProcessWithALine) {
  EXPECT_EXIT(
      {
        EndWithALineAtLimits();
        AllowOneThread();
        []() noexcept { StartAThread(); }();  // No function above catches the exception.
      },
      ::testing::ExitedWithCode(kExitTemporary), "cannot start a thread.*\\(ulimit -u\\)");
}

// Called in a child process: exits with 0 when the second write beyond the limit is an error.
[[noreturn]] void WriteBeyondTheLimit() {
  EndWithALineAtLimits();
  const rlimit small{16, RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &small);
  std::FILE* const file = std::tmpfile();
  const std::string text(100, 'x');
  // The first call writes as much as fits, the second one nothing.
  const bool first = write(fileno(file), text.data(), text.size()) == 16;
  const bool second = write(fileno(file), text.data(), text.size()) < 0 && errno == EFBIG;
  _exit(first && second ? 0 : 1);
}

TEST(EndWithALineAtLimits, AFileThatMayNotGrowIsAnErrorOfItsWrite) {
  EXPECT_EXIT(WriteBeyondTheLimit(), ::testing::ExitedWithCode(0), "");
}

TEST(EndWithALineAtLimits, AProgramsOwnHandlersStay) {
  EXPECT_EXIT(
      {
        std::signal(SIGXFSZ, [](int) { _exit(5); });
        EndWithALineAtLimits();
        std::raise(SIGXFSZ);
      },
      ::testing::ExitedWithCode(5), "");
  // An exception that has nothing to do with limits goes the way that it went before.
  EXPECT_EXIT(
      {
        std::set_terminate([] { _exit(6); });
        EndWithALineAtLimits();
        EndWithALineAtLimits();  // A second call must not make its handler its own successor.
        []() noexcept { ThrowAnother(); }();
      },
      ::testing::ExitedWithCode(6), "");
}

}  // namespace
}  // namespace dtrain::resource_limits_test
