#include "dtrain/main.h"

#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>

#include "absl/strings/str_format.h"
#include "base/job_env.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system/crash_stack.h"
#include "base/system/resource_limits.h"
#include "runtime/job/arguments.h"
#include "runtime/job/exception_status.h"
#include "runtime/job/job_state.h"
#include "runtime/job/stop_signal.h"
#include "runtime/job/survivor.h"

namespace dtrain {
namespace {

// The exit code of a job that ended with `status`, given what it had been asked to do.
int JobExitCode(Job* job, const absl::Status& status) {
  const int signal =
      job != nullptr && job->stop_signal() != 0 ? job->stop_signal() : ReceivedStopSignal();
  const bool was_saved = job != nullptr && job->state().saved_at_stop;
  if (absl::IsCancelled(status) && signal == Job::kProgramStop && was_saved) {
    return kExitOk;  // Stopped as the program asked, with a committed save.
  }
  const bool terminated = signal == SIGTERM || signal == SIGXCPU;
  if (absl::IsCancelled(status) && signal != 0) {  // Stopped as asked, with a committed save.
    return terminated ? kExitTerminated : kExitInterrupted;
  }
  if (terminated && !status.ok() && ExitCodeFor(status) == kExitTemporary) {
    return kExitTemporary;
  }
  return ExitCodeFor(status);
}

// An evaluation or a step that a stop signal ended has to be followed by a save, which ends the
// program with Cancelled.
absl::Status CheckStopWasSaved(Job& job) {
  const char* const ended = job.state().ended_by_stop;
  return ended != nullptr && job.stop_signal() != Job::kProgramStop
             ? absl::UnavailableError(absl::StrFormat(
                   "a stop signal has ended %s, and the program has ended without a "
                   "Checkpointer::MaybeSave behind it; the same command goes on from the last "
                   "checkpoint",
                   ended))
             : absl::OkStatus();
}

absl::Status RunTraining(Job& job, absl::Status (*train)(Job&)) {
  try {
    const absl::Status status = train(job);
    return status.ok() ? CheckStopWasSaved(job) : status;
  } catch (const std::exception& error) {  // From the user's module, LibTorch or std.
    return FromException("in the training program", error);
  }
}

// Says for which limit the ranks have stopped.
absl::Status WithReason(Job& job, const absl::Status& status) {
  return job.state().cpu_time_ended
             ? Annotate(status, "the CPU time of a rank is used up (ulimit -t)")
             : status;
}

// Threads that cannot be started are what throws here.
absl::StatusOr<std::unique_ptr<Job>> CreateJob(const JobOptions& options) {
  try {
    return Job::Create(options);
  } catch (const std::exception& error) {
    return FromException("at the start of the job", error);
  }
}

// How one job of this process ended.
struct Ended {
  int code = 0;
  bool is_recoverable = false;  // Another rank, a node or a connection was lost, and nothing else.
  bool is_saved = false;        // SIGTERM ended it with a save. The agent knows what for.
};

bool LostOthers(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
}

// Runs one job from its start to the end of all that it owns. `trains_on_host`: whether the jobs of
// this process train on the CPU; what a failed job leaves on a GPU may not be usable again.
Ended RunJob(const JobOptions& options, absl::Status (*train)(Job&), bool& trains_on_host) {
  auto job = CreateJob(options);
  const absl::Status status =
      job.ok() ? WithReason(**job, RunTraining(**job, train)) : job.status();
  const int code = JobExitCode(job.ok() ? job->get() : nullptr, status);
  ReportEnd(job.ok() ? &(*job)->state() : nullptr, status, code);
  const int signal = job.ok() ? (*job)->stop_signal() : ReceivedStopSignal();
  if (job.ok()) {
    trains_on_host = (*job)->state().device->is_host();
  }
  const bool is_used_up = job.ok() && (*job)->state().cpu_time_ended;
  return {.code = code,
          .is_recoverable =
              trains_on_host && signal == 0 && code == kExitTemporary && LostOthers(status),
          .is_saved = trains_on_host && signal == SIGTERM && code == kExitTerminated &&
                      absl::IsCancelled(status) && !is_used_up};
}

// Waits for the next attempt behind a job that ended so. An error: this process ends.
absl::Status AwaitNext(Survivor& survivor, const Ended& ended) {
  if (ended.is_recoverable) {
    ForgetStopSignals();  // While it waits, a signal ends this process.
    return survivor.AwaitNextAttempt(ended.code);
  }
  // The ranks have agreed to stop, and the signal for this one may come only now. It asks for no
  // more than has been done; the agent ends a process that it does not need.
  DT_RETURN_IF_ERROR(survivor.AwaitNextAttempt(ended.code));
  ForgetObeyedSignals();
  return absl::OkStatus();
}

}  // namespace

int Main(int argc, char** argv, absl::Status (*train)(Job&), const char* about) {
  auto arguments = ParseProgramArguments(std::vector<std::string>(argv, argv + argc));
  if (!arguments.ok()) {
    absl::FPrintF(stderr, "%s: %s\n", argv[0], arguments.status().message());
    return ExitCodeFor(arguments.status());
  }
  if (arguments->help) {
    absl::PrintF("%s", ProgramHelp(argv[0], about));
    return kExitOk;
  }
  EndWithALineAtLimits();
  WriteStackAtCrash();
  InstallStopSignals();
  Survivor survivor(ReadEnvironment());
  if (survivor.is_reserve() && !survivor.AwaitFirstAttempt().ok()) {
    return kExitTemporary;  // Not 0: the agent may have given it the place of a rank already.
  }
  bool trains_on_host = false;
  while (true) {
    const Ended ended = RunJob(arguments->options, train, trains_on_host);
    if ((!ended.is_recoverable && !ended.is_saved) || !survivor.can_stay()) {
      return ended.code;
    }
    if (const absl::Status next = AwaitNext(survivor, ended); !next.ok()) {
      if (!absl::IsCancelled(next)) {
        DT_LOG(Info) << "this process does not go on: " << next.message();
      }
      return ended.code;
    }
  }
}

}  // namespace dtrain
