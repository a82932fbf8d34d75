#include "tests/launcher/launched_job.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "gtest/gtest.h"

namespace dtrain::launcher {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);

template <typename Condition>
bool Await(absl::Duration timeout, Condition condition) {
  for (const Deadline deadline = Deadline::After(timeout); !deadline.Expired();) {
    if (condition()) {
      return true;
    }
    Clock::Real().Sleep(kPoll);
  }
  return condition();
}

}  // namespace

LaunchedJob::LaunchedJob(const std::vector<std::string>& arguments,
                         const std::vector<std::string>& prefix)
    : folder_(*TempDir::Create("/tmp")) {
  std::vector<std::string> words = prefix;
  words.emplace_back(DTRAIN_PROGRAM);
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    setenv("TMPDIR", folder_.path().c_str(), 1);
    if (chdir(folder_.path().c_str()) == 0 &&
        dup2(open("stdout", O_CREAT | O_WRONLY | O_APPEND, 0600), 1) == 1 &&
        dup2(open("stderr", O_CREAT | O_WRONLY | O_APPEND, 0600), 2) == 2) {
      execvp(argv[0], argv.data());
    }
    _exit(126);
  }
}

LaunchedJob::~LaunchedJob() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const pid_t rank : Ranks()) {
    kill(rank, SIGKILL);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_.path(), ignored);
}

int LaunchedJob::Wait(absl::Duration timeout) {
  int status = 0;
  if (!Await(timeout, [&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) {
    return -1;
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void LaunchedJob::Signal(int signal) const { EXPECT_EQ(kill(pid_, signal), 0); }

std::string LaunchedJob::File(const std::string& path) const {
  return ReadFile(absl::StrCat(folder_.path(), "/", path)).value_or("");
}

bool LaunchedJob::AwaitText(const std::string& path, const std::string& text) const {
  return Await(absl::Minutes(1), [&] { return absl::StrContains(File(path), text); });
}

std::vector<pid_t> LaunchedJob::Ranks() const {
  std::vector<pid_t> ranks;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) {
      continue;
    }
    const std::string environment = ReadFile(entry.path() / "environ").value_or("");
    if (absl::StrContains(environment, absl::StrCat("TMPDIR=", folder_.path()) + '\0') &&
        absl::StrContains(environment, "LOCAL_RANK=")) {
      ranks.push_back(pid);
    }
  }
  return ranks;
}

bool LaunchedJob::AwaitRanks(size_t count) const {
  return Await(absl::Seconds(30), [this, count] { return Ranks().size() == count; });
}

bool LaunchedJob::AwaitNothingLeft() const {
  return Await(absl::Seconds(30), [this] {
    bool agent_folder = false;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path(), ignored)) {
      agent_folder = agent_folder || absl::StartsWith(entry.path().filename().string(), "dtrain-");
    }
    return !agent_folder && Ranks().empty();
  });
}

}  // namespace dtrain::launcher
