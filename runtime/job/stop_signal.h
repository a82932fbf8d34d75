// SIGTERM and SIGINT as a request: the first asks for "save, then stop", the second stops at once.
//
// Async-signal-safe; process-wide.
#pragma once

namespace dtrain {

// Installs the handlers for SIGTERM, SIGINT and SIGHUP. A second signal ends the process with
// _exit(130). Calling it again changes nothing.
void InstallStopSignals();

// The first signal received, 0 when none.
int ReceivedStopSignal();

}  // namespace dtrain
