#include "launcher/ranks/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/system/ignored_signal.h"
#include "launcher/ranks/rank_end.h"

namespace dtrain::launcher {
namespace {
constexpr std::array<int, 6> kAllowed = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
}  // namespace

absl::StatusOr<SignalSource> SignalSource::Create(const std::vector<int>& stop_signals) {
  // A closed terminal or pipe then makes write fail and does not end the process.
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : stop_signals) {
    if (signal != SIGHUP ||
        !IsIgnored(SIGHUP)) {  // A signal that is blocked would no longer be ignored.
      sigaddset(&set, signal);
    }
  }
  if (sigprocmask(SIG_BLOCK, &set, nullptr) != 0) {
    return ErrnoStatus(errno, "sigprocmask");
  }
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoStatus(errno, "signalfd");
  }
  return SignalSource(std::move(fd));
}

std::vector<int> SignalSource::Take() {
  std::vector<int> signals;
  signalfd_siginfo info{};
  while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    signals.push_back(static_cast<int>(info.ssi_signo));
  }
  return signals;
}

absl::StatusOr<std::vector<int>> ParseSignals(const std::string& text) {
  std::vector<int> signals;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::string name = absl::AsciiStrToUpper(absl::StripAsciiWhitespace(part));
    int found = 0;
    for (const int signal : kAllowed) {
      found = SignalName(signal) == name ? signal : found;
    }
    if (found == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--signals-to-handle has \"%s\"; allowed: SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, "
          "SIGUSR2, separated by commas",
          part));
    }
    signals.push_back(found);
  }
  return signals;
}

std::vector<int> WithOwnSignals(std::vector<int> signals, bool in_slurm) {
  std::vector<int> own = {SIGTERM, SIGINT};
  if (in_slurm) {
    own.push_back(SIGUSR1);  // It comes ahead of a time limit too.
  }
  for (const int signal : own) {
    if (std::count(signals.begin(), signals.end(), signal) == 0) {
      signals.push_back(signal);
    }
  }
  return signals;
}

int ForwardedSignal(int received) { return received == SIGINT ? SIGINT : SIGTERM; }

}  // namespace dtrain::launcher
