#include "launcher/ranks/process_sample.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kProcBytesMax = 4096;

std::string ReadProc(const std::string& path) { return ReadFile(path, kProcBytesMax).value_or(""); }

// The letter behind the name in parentheses, which may itself hold anything.
char StateIn(const std::string& stat) {
  const size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? '?' : stat[end + 2];
}

std::vector<int> ThreadsOf(int pid) {
  std::vector<int> threads;
  std::error_code ignored;
  const std::string folder = absl::StrCat("/proc/", pid, "/task");
  for (std::filesystem::directory_iterator entry(folder, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    int thread = 0;
    if (absl::SimpleAtoi(entry->path().filename().string(), &thread)) {
      threads.push_back(thread);
    }
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

// The second of the numbers of a schedstat file.
uint64_t WaitNanosIn(const std::string& schedstat) {
  unsigned long long run = 0;
  unsigned long long wait = 0;
  return std::sscanf(schedstat.c_str(), "%llu %llu", &run, &wait) == 2 ? wait : 0;
}

}  // namespace

ProcessSample SampleProcess(int pid) {
  ProcessSample sample;
  for (const int thread : ThreadsOf(pid)) {
    const std::string folder = absl::StrCat("/proc/", pid, "/task/", thread);
    const char state = StateIn(ReadProc(absl::StrCat(folder, "/stat")));
    sample.is_stopped = sample.is_stopped || (thread == pid && state == 'T');
    sample.is_debugged = sample.is_debugged || (thread == pid && state == 't');
    sample.waits_for_disk = sample.waits_for_disk || state == 'D';
    sample.cpu_wait_nanos[thread] = WaitNanosIn(ReadProc(absl::StrCat(folder, "/schedstat")));
  }
  // Whoever writes its core is on its way to its own end.
  sample.is_debugged =
      sample.is_debugged ||
      absl::StrContains(ReadProc(absl::StrCat("/proc/", pid, "/status")), "CoreDumping:\t1");
  return sample;
}

uint64_t MainThreadWaitNanos(int pid) {
  return WaitNanosIn(ReadProc(absl::StrCat("/proc/", pid, "/schedstat")));
}

std::vector<ThreadPlace> PlacesOfThreads(int pid, size_t threads_max) {
  std::vector<ThreadPlace> places;
  for (const int thread : ThreadsOf(pid)) {
    if (places.size() == threads_max) {
      break;
    }
    const std::string folder = absl::StrCat("/proc/", pid, "/task/", thread);
    ThreadPlace place{.thread = thread,
                      .name = ReadProc(absl::StrCat(folder, "/comm")),
                      .state = StateIn(ReadProc(absl::StrCat(folder, "/stat"))),
                      .waits_in = ReadProc(absl::StrCat(folder, "/wchan"))};
    absl::StripAsciiWhitespace(&place.name);
    if (place.waits_in == "0") {
      place.waits_in.clear();
    }
    places.push_back(std::move(place));
  }
  return places;
}

}  // namespace dtrain::launcher
