// SIGTERM, SIGINT, SIGUSR1 and SIGXCPU as a request: the first asks for "save, then stop" once
// there is something to save, a second Ctrl-C stops at once. SIGUSR1, by which schedulers warn
// ahead of a time limit, counts as SIGTERM.
//
// Launchers forward a signal that the terminal or the scheduler already delivered, so only a SIGINT
// that comes more than a second after the first signal counts as a person's second Ctrl-C.
//
// Async-signal-safe; process-wide.
#pragma once

namespace dtrain {

// Installs the handlers for SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGXCPU. The last one comes when
// the process has used its CPU time (ulimit -t), but for what a save needs: it counts as SIGTERM
// does, and a line on stderr names the limit. Until DeferStopSignals() the first signal ends the
// process at once with a line on stderr: with 75 on SIGTERM and SIGXCPU, else 130. Nothing can be
// lost before training has begun, and who waits for other ranks, makes a model or reads a
// checkpoint shall not go on with it.
void InstallStopSignals();

// From now on the first signal is only noted (ReceivedStopSignal), for a save before the stop, and
// a second Ctrl-C ends the process with _exit(130). The engine says so when its first step or
// evaluation begins.
void DeferStopSignals();

// Between two jobs of a process: until DeferStopSignals() a signal ends the process at once, as
// before its first job, and so does one that has come already.
void ForgetStopSignals();

// Between a job that a signal has ended with a save and the next one, for which that signal is not
// meant: until DeferStopSignals() another one ends the process at once, as before its first job.
void ForgetObeyedSignals();

// The first signal received, 0 when none.
int ReceivedStopSignal();

}  // namespace dtrain
