// Tells which signals a process ignores: `nohup` starts programs that ignore SIGHUP, and they are
// to go on after the terminal is gone. Async-signal-safe.
#pragma once

#include <csignal>

namespace dtrain {

// Whether this process ignores `signal`.
inline bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace dtrain
