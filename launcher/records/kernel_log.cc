#include "launcher/records/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

// Texts of the kernel and of drivers, which have been the same for years.
constexpr std::array<std::pair<const char*, const char*>, 17> kTexts = {{
    {"Out of memory: Kill", "out_of_memory"},
    {"Memory cgroup out of memory", "out_of_memory"},
    {"oom-kill:constraint=", "out_of_memory"},
    {"GPU has fallen off the bus", "gpu_lost"},
    {"RmInitAdapter failed", "gpu_lost"},
    {"segfault at ", "segfault"},
    {"general protection fault", "segfault"},
    {"Kernel panic", "kernel"},
    {"soft lockup - CPU#", "kernel"},
    {"Machine check", "hardware"},
    {"[Hardware Error]", "hardware"},
    {"Buffer I/O error", "disk"},
    {"I/O error, dev ", "disk"},
    {"Remounting filesystem read-only", "disk"},
    {"nfs: server ", "disk"},
    {"blocked for more than ", "blocked_task"},
    {"mlx5_core ", "link"},
}};

// The text behind "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ", "[Sun Feb 23 16:24:18 2025]
// ",
// "<6>[    2.608284] " or "6,3964,206764307,-;".
absl::string_view WithoutPrefix(absl::string_view line) {
  if (!line.empty() && line.front() == '<') {
    line.remove_prefix(std::min(line.size(), line.find('>') + 1));
  }
  if (!line.empty() && line.front() == '[') {
    const size_t end = line.find(']');
    return end == absl::string_view::npos ? line
                                          : absl::StripLeadingAsciiWhitespace(line.substr(end + 1));
  }
  const size_t semicolon = line.find(';');
  if (semicolon != absl::string_view::npos && !line.empty() && absl::ascii_isdigit(line.front()) &&
      std::count(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(semicolon), ',') >= 3) {
    return line.substr(semicolon + 1);
  }
  if (absl::StartsWith(line, "kern ")) {
    const size_t level = line.find(": ", line.find(':') + 1);
    const size_t time = level == absl::string_view::npos ? level : line.find(' ', level + 2);
    return time == absl::string_view::npos ? line : line.substr(time + 1);
  }
  return line;
}

// The number at the start of `text`; 0: there is none.
int LeadingNumber(absl::string_view text) {
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(text[digits])) {
    ++digits;
  }
  int number = 0;
  return absl::SimpleAtoi(text.substr(0, digits), &number) ? number : 0;
}

// "Xid (PCI:0000:9b:00): 119, pid=2024380, name=..." behind `mark`, such as "Xid (".
bool ReadGpuError(absl::string_view text, absl::string_view mark, KernelMessage& message) {
  const size_t begin = text.find(mark);
  const size_t end = begin == absl::string_view::npos ? begin : text.find("): ", begin);
  if (end == absl::string_view::npos) {
    return false;
  }
  message.device = std::string(text.substr(begin + mark.size(), end - begin - mark.size()));
  absl::string_view rest = text.substr(end + 3);
  // Some drivers put the GPU's name between the device and the number.
  while (LeadingNumber(rest) == 0) {
    const size_t next = rest.find(": ");
    if (next == absl::string_view::npos) {
      return false;
    }
    rest = rest.substr(next + 2);
  }
  message.code = LeadingNumber(rest);
  if (const size_t pid = text.find("pid="); pid != absl::string_view::npos) {
    message.pid = LeadingNumber(absl::StripPrefix(text.substr(pid + 4), "'"));
  }
  return true;
}

// "Killed process 123 (python)", "pt_main_thread[2536443]: segfault at ...".
int PidIn(absl::string_view text) {
  for (const absl::string_view mark : {"Killed process ", "Kill process ", "pid="}) {
    if (const size_t at = text.find(mark); at != absl::string_view::npos) {
      return LeadingNumber(text.substr(at + mark.size()));
    }
  }
  const size_t colon = text.find("]: ");
  const size_t bracket =
      colon == absl::string_view::npos ? colon : text.substr(0, colon).rfind('[');
  return bracket == absl::string_view::npos ? 0 : LeadingNumber(text.substr(bracket + 1));
}

bool TellsOfLink(absl::string_view text) {
  for (const absl::string_view sign : {"Link down", "health compromised", "health poll failed",
                                       "insufficient power", "High Temperature"}) {
    if (absl::StrContains(text, sign)) {
      return true;
    }
  }
  return false;
}

struct RingRecord {
  int priority = 0;  // Level and, above 7, a facility other than the kernel.
  int64_t micros = 0;
};

std::optional<RingRecord> HeadOf(absl::string_view record) {
  const std::vector<absl::string_view> head =
      absl::StrSplit(record.substr(0, record.find(';')), ',');
  RingRecord parsed;
  return head.size() >= 3 && absl::SimpleAtoi(head[0], &parsed.priority) &&
                 absl::SimpleAtoi(head[2], &parsed.micros)
             ? std::optional(parsed)
             : std::nullopt;
}

}  // namespace

std::optional<KernelMessage> KernelMessageIn(absl::string_view line) {
  const absl::string_view text = absl::StripAsciiWhitespace(WithoutPrefix(line));
  KernelMessage message;
  message.text = std::string(text);
  if (absl::StrContains(text, "SXid (") && ReadGpuError(text, "SXid (", message)) {
    message.kind = "sxid";
    return message;
  }
  if (absl::StrContains(text, "NVRM: Xid (") && ReadGpuError(text, "NVRM: Xid (", message)) {
    message.kind = "xid";
    return message;
  }
  for (const auto& [sign, kind] : kTexts) {
    if (!absl::StrContains(text, sign)) {
      continue;
    }
    const bool is_quiet = (absl::string_view(kind) == "link" && !TellsOfLink(text)) ||
                          (absl::StartsWith(sign, "nfs: ") && absl::EndsWith(text, " OK"));
    if (is_quiet) {
      return std::nullopt;
    }
    message.kind = kind;
    message.pid = PidIn(text);
    return message;
  }
  return std::nullopt;
}

std::vector<KernelMessage> KernelMessagesIn(absl::string_view text, size_t messages_max) {
  std::vector<KernelMessage> messages;
  std::set<std::tuple<std::string, std::string, int, int>> seen;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    std::optional<KernelMessage> message = KernelMessageIn(line);
    if (message.has_value() &&
        seen.emplace(message->kind, message->device, message->pid, message->code).second) {
      messages.push_back(*std::move(message));
    }
  }
  if (messages.size() > messages_max) {
    messages.erase(messages.begin(), messages.end() - static_cast<std::ptrdiff_t>(messages_max));
  }
  return messages;
}

int64_t RingMicrosBefore(absl::Duration uptime, absl::Duration age) {
  const absl::Duration drift = std::max(absl::Seconds(1), uptime / 500'000);
  return absl::ToInt64Microseconds(uptime - age - drift);
}

absl::StatusOr<std::string> ReadKernelRing(absl::Duration age) {
  constexpr size_t kRecordBytes = 8192;
  constexpr int kRecordsMax = 100'000;
  DT_ASSIGN_OR_RETURN(const UniqueFd ring, OpenFile("/dev/kmsg", O_RDONLY | O_NONBLOCK));
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  const int64_t since = RingMicrosBefore(absl::DurationFromTimespec(now), age);
  std::string text;
  std::vector<char> buffer(kRecordBytes);
  for (int records = 0; records < kRecordsMax; ++records) {
    const ssize_t n = read(ring.get(), buffer.data(), buffer.size());
    if (n < 0 && (errno == EPIPE || errno == EINTR)) {
      continue;  // Records were overwritten before they were read.
    }
    if (n <= 0) {
      return n < 0 && errno != EAGAIN
                 ? absl::StatusOr<std::string>(ErrnoStatus(errno, "cannot read /dev/kmsg"))
                 : std::move(text);
    }
    const absl::string_view record(buffer.data(), static_cast<size_t>(n));
    const std::optional<RingRecord> head = HeadOf(record);
    // Any process of root may write lines here, but not as the kernel.
    if (head.has_value() && head->priority < 8 && head->micros >= since) {
      absl::StrAppend(&text, record.substr(0, record.find('\n')), "\n");
    }
  }
  return text;
}

}  // namespace dtrain::launcher
