#include "launcher/ranks/rank_end.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "launcher/exit_table.h"

namespace dtrain::launcher {
namespace {

constexpr std::array<std::pair<int, const char*>, 18> kSignalNames = {{
    {SIGHUP, "SIGHUP"},
    {SIGINT, "SIGINT"},
    {SIGQUIT, "SIGQUIT"},
    {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"},
    {SIGABRT, "SIGABRT"},
    {SIGBUS, "SIGBUS"},
    {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"},
    {SIGUSR1, "SIGUSR1"},
    {SIGSEGV, "SIGSEGV"},
    {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"},
    {SIGALRM, "SIGALRM"},
    {SIGTERM, "SIGTERM"},
    {SIGXCPU, "SIGXCPU"},
    {SIGXFSZ, "SIGXFSZ"},
    {SIGSYS, "SIGSYS"},
}};

// Whether a forwarded stop signal explains the exit code.
bool IsStopCode(int code) {
  return code == kExitInterrupted || code == kExitTerminated || code == kExitOk;
}

}  // namespace

int CodeOf(const RankEnd& end) { return end.signal != 0 ? 128 + end.signal : end.exit_code; }

bool FailedByItself(const RankEnd& end) { return !end.stopped && CodeOf(end) != kExitOk; }

bool MayBeVictim(const RankEnd& end) {
  return FailedByItself(end) && CodeOf(end) == kExitTemporary && end.hang.empty();
}

StopEffect NoteStopSignal(int signal, bool from_peer, bool job_goes_on, StopRequest& stop) {
  const bool is_first = stop.signal == 0;
  stop.signal = is_first ? signal : stop.signal;
  stop.job_goes_on = job_goes_on && (is_first || stop.job_goes_on);
  stop.interrupted = stop.interrupted || signal == SIGINT;
  stop.here = stop.here || !from_peer;
  // Slurm sends a stop signal to the agents of all nodes, and one may hear of it from another agent
  // first. SIGUSR1 comes ahead of a time limit, at which SIGTERM must not cut a save off.
  const bool counts = !from_peer && signal != SIGUSR1;
  const bool forces = counts && stop.may_force;
  stop.may_force = stop.may_force || counts;
  return is_first ? StopEffect::kStop : forces ? StopEffect::kForce : StopEffect::kNone;
}

const RankEnd* RootCause(const std::vector<RankEnd>& ends, const StopRequest& stop) {
  const auto weight = [](const RankEnd& end) {
    return std::pair(MayBeVictim(end) ? 1 : 0, end.order);
  };
  const RankEnd* cause = nullptr;
  for (const RankEnd& end : ends) {
    const bool asked = stop.signal != 0 && IsStopCode(CodeOf(end));
    if (FailedByItself(end) && !asked && (cause == nullptr || weight(end) < weight(*cause))) {
      cause = &end;
    }
  }
  return cause;
}

const RankEnd* EarlyLeaver(const std::vector<RankEnd>& ends, const RankEnd& cause) {
  const RankEnd* leaver = nullptr;
  for (const RankEnd& end : ends) {
    if (MayBeVictim(cause) && CodeOf(end) == kExitOk && !end.stopped && end.order < cause.order &&
        (leaver == nullptr || end.order < leaver->order)) {
      leaver = &end;
    }
  }
  return leaver;
}

absl::Status ExitBarrierError(const std::vector<RankEnd>& ends, const std::vector<int>& alive,
                              absl::Duration waited) {
  if (alive.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(
        "the ranks of this node ended with exit code 0, but ranks of other nodes still run ",
        absl::FormatDuration(waited), " later"));
  }
  const auto leaver = std::find_if(ends.begin(), ends.end(),
                                   [](const RankEnd& end) { return CodeOf(end) == kExitOk; });
  return absl::DeadlineExceededError(
      absl::StrFormat("rank %d ended with exit code 0, but rank %s still runs %s later",
                      leaver->rank, absl::StrJoin(alive, ", "), absl::FormatDuration(waited)));
}

int JobExitCode(const std::vector<RankEnd>& ends, const StopRequest& stop) {
  if (stop.forced) {
    return stop.interrupted ? kExitInterrupted : kExitTemporary;
  }
  if (const RankEnd* const cause = RootCause(ends, stop)) {
    return CodeOf(*cause);
  }
  int code = kExitOk;
  for (const RankEnd& end : ends) {
    code = end.stopped ? code : std::max(code, CodeOf(end));
  }
  return code != kExitOk && stop.interrupted ? static_cast<int>(kExitInterrupted) : code;
}

std::string SignalName(int signal) {
  for (const auto& [number, name] : kSignalNames) {
    if (number == signal) {
      return name;
    }
  }
  return absl::StrCat("signal ", signal);
}

absl::string_view ExitCodeMeaning(int code) {
  for (const ExitRow& row : kExitTable) {
    if (row.code == code) {
      return row.meaning;
    }
  }
  return "";
}

std::string DescribeEnd(const RankEnd& end) {
  if (end.signal != 0) {
    return absl::StrFormat("killed by signal %d (%s)", end.signal, SignalName(end.signal));
  }
  const absl::string_view meaning = ExitCodeMeaning(end.exit_code);
  return meaning.empty() ? absl::StrFormat("ended with exit code %d", end.exit_code)
                         : absl::StrFormat("ended with exit code %d (%s)", end.exit_code, meaning);
}

std::string DescribeFailure(const RankEnd& end) {
  if (!end.hang.empty()) {
    return absl::StrCat("the job hangs: ", end.error);
  }
  if (end.pid == 0) {
    return absl::StrFormat("rank %d cannot be started on host %s", end.rank, end.host);
  }
  std::string text = absl::StrFormat("rank %d %s, pid %d on host %s", end.rank, DescribeEnd(end),
                                     end.pid, end.host);
  if (end.step >= 0) {
    absl::StrAppendFormat(&text, ", after step %d", end.step);
  }
  if (!end.phase.empty()) {
    absl::StrAppendFormat(&text, " (%s)", end.phase);
  }
  return text;
}

std::vector<std::string> LinesWithout(const std::vector<std::string>& lines,
                                      const std::string& error) {
  const size_t begin = error.empty() ? std::string::npos : absl::StrJoin(lines, "?").find(error);
  if (begin == std::string::npos) {
    return lines;
  }
  std::vector<std::string> others;
  size_t at = 0;  // Offset of the line's first byte in the joined text.
  for (const std::string& line : lines) {
    if (at + line.size() <= begin || at >= begin + error.size()) {
      others.push_back(line);
    }
    at += line.size() + 1;
  }
  return others;
}

std::string EncodeEnd(const RankEnd& end) {
  return DumpJson(Json{{"rank", end.rank},
                       {"node", end.node},
                       {"host", end.host},
                       {"pid", end.pid},
                       {"exit_code", end.exit_code},
                       {"signal", end.signal},
                       {"step", end.step},
                       {"phase", end.phase},
                       {"words", end.error},
                       {"hang", end.hang},
                       {"log", end.log}});
}

absl::StatusOr<RankEnd> DecodeEnd(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "failure report of a node"));
  const auto integer = [&json](const char* key) -> int64_t {
    const auto found = json.find(key);
    return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
  };
  const auto string = [&json](const char* key) -> std::string {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : "";
  };
  if (!json.is_object() || !json.contains("rank")) {
    return absl::InvalidArgumentError("failure report of a node has no \"rank\"");
  }
  RankEnd end;
  end.rank = static_cast<int>(integer("rank"));
  end.node = static_cast<int>(integer("node"));
  end.host = string("host");
  end.pid = static_cast<int>(integer("pid"));
  end.exit_code = static_cast<int>(integer("exit_code"));
  end.signal = static_cast<int>(integer("signal"));
  end.step = integer("step");
  end.phase = string("phase");
  end.error = string("words");
  end.log = string("log");
  end.hang = string("hang");
  return end;
}

}  // namespace dtrain::launcher
