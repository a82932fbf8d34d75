// SIGTERM and SIGINT as a request: the first asks for "save, then stop", a second Ctrl-C stops at
// once.
//
// Launchers forward a signal that the terminal or the scheduler already delivered, so only a SIGINT
// that comes more than a second after the first signal counts as a person's second Ctrl-C.
//
// Async-signal-safe; process-wide.
#pragma once

namespace dtrain {

// Installs the handlers for SIGTERM, SIGINT and SIGHUP. A second Ctrl-C ends the process with
// _exit(130). Calling it again changes nothing.
void InstallStopSignals();

// The first signal received, 0 when none.
int ReceivedStopSignal();

}  // namespace dtrain
