// The stack of a thread on stderr: when a signal of its own kills the process, and when a signal
// asks for it. Process-wide.
//
// The text begins with a line that starts with kStackBegins and ends with the line kStackEnds, so
// that the launcher finds it in a rank's log. Names are those of exported functions, as
// backtrace_symbols_fd gives them.
#pragma once

namespace dtrain {

inline constexpr char kStackBegins[] = "stack at signal ";
inline constexpr char kStackEnds[] = "end of stack";

// From now on SIGSEGV, SIGABRT, SIGFPE and SIGILL write the stack before they end the process as
// they would without. Does nothing in builds with a sanitizer, which has handlers of its own.
void WriteStackAtCrash();

// From now on `signal` writes the stack of the thread that it interrupts, then calls `then`, which
// has to be async-signal-safe; the process goes on.
void WriteStackAtSignal(int signal, void (*then)(int signal));

}  // namespace dtrain
