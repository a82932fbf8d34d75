// Tells which signals a process ignores: `nohup` starts programs with SIGHUP ignored, and they must
// go on after the terminal is closed. Async-signal-safe.
#pragma once

#include <csignal>

namespace dtrain {

// Whether this process ignores `signal`.
inline bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace dtrain
