#include "launcher/launch.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "base/text/text.h"
#include "launcher/bind_node.h"
#include "launcher/cluster/slurm_step.h"
#include "launcher/elastic_launch.h"
#include "launcher/hosts/starter.h"
#include "launcher/jobs/ask_nodes.h"
#include "launcher/machine.h"
#include "launcher/node_session.h"
#include "launcher/nodes/rendezvous.h"
#include "launcher/program.h"
#include "launcher/restart.h"

namespace dtrain::launcher {
namespace {

// Whether this process speaks to the user before the nodes meet: not where the launcher that
// started this step has done so.
bool SpeaksFirst(const LaunchOptions& options) {
  const bool in_step =
      options.place.has_value() && options.place->is_slurm && !options.place->starts_step;
  return !options.quiet &&
         (!in_step || (options.node_rank == 0 && options.token_file != kTokenOnInput));
}

void SayFirst(const std::string& text) {
  std::fprintf(stderr, "dtrain: %s\n", Printable(text).c_str());
}

// Says where the numbers come from.
void SayPlace(const LaunchOptions& options) {
  if (options.place.has_value() && options.nodes > 1 && SpeaksFirst(options)) {
    SayFirst(DescribePlace(*options.place, options.nodes, options.node_rank, options.rendezvous));
  }
}

void SayNotes(const ParsedLaunch& parsed) {
  if (SpeaksFirst(parsed.options)) {
    for (const std::string& note : parsed.notes) {
      SayFirst(note);
    }
  }
}

int Fail(const absl::Status& status) { return EndOf("dtrain launch", status); }

// Tells the other nodes that this one starts no ranks, so that they do not wait for them.
void TellOthers(const Rendezvous& meeting, const absl::Status& reason) {
  meeting.peers().Publish(CannotStartOrder(meeting.shape().node_rank, meeting.shape().first_rank(),
                                           HostName(), reason));
  meeting.peers().Publish(Order{});
}

// A job of a fixed number of nodes: each node decides by the same facts whether there is another
// attempt.
class Launch {
 public:
  explicit Launch(NodeSession& session) : session_(session) {}
  ~Launch() { session_.StopServingNodes(); }
  int Run();

 private:
  absl::StatusOr<AttemptResult> RunAttempt(int number);
  void ServeStatus(const JobShape& shape);
  std::optional<int> AfterFailure(const AttemptResult& result, int attempt);

  NodeSession& session_;
  int bug_restarts_ = 0;
  int without_progress_ = 0;
  int64_t checkpoint_ = -1;  // The last step of which a checkpoint was committed.
  std::mutex mutex_;
  AskedAttempt asked_;  // The last attempt; guarded by mutex_.
};

// Lets `dtrain status` ask the agents of the attempt.
void Launch::ServeStatus(const JobShape& shape) {
  AskedAttempt attempt{.number = shape.attempt};
  for (size_t node = 0; node < shape.ranks_of_node.size(); ++node) {
    attempt.nodes.push_back(
        {.number = static_cast<int>(node), .host = "", .ranks = shape.ranks_of_node[node]});
  }
  if (const auto store = comm::ParseEndpoint(shape.store); store.ok()) {
    attempt.store = *store;
  }
  {
    const std::lock_guard lock(mutex_);
    asked_ = std::move(attempt);
  }
  session_.ServeNodes([this] {
    const AskedAttempt asked = [this] {
      const std::lock_guard lock(mutex_);
      return asked_;
    }();
    return AskNodes(asked, session_.key());
  });
}

absl::StatusOr<AttemptResult> Launch::RunAttempt(int number) {
  const auto prepare = [this, number](int world_size) {
    session_.DropSharedToken();
    return session_.ReadyRunDirectory(number == 0, world_size);
  };
  DT_ASSIGN_OR_RETURN(
      Rendezvous meeting,
      Rendezvous::Join(
          {session_.options(), session_.key(), session_.local_ranks(), number, session_.run_id(),
           prepare, [this](const comm::Endpoint& endpoint) { session_.Serving(endpoint); }},
          [this] { return session_.TakeStopSignal(); }));
  if (session_.reporter() == nullptr) {
    if (const absl::Status opened = session_.OpenRunDirectory(meeting.shape().run_id);
        !opened.ok()) {
      TellOthers(meeting, opened);
      return opened;
    }
    checkpoint_ = session_.reporter()->ReadDurableStep();
  }
  if (meeting.peers().nodes() > 1) {
    ServeStatus(meeting.shape());
  }
  absl::StatusOr<AttemptResult> result =
      session_.RunAttempt(meeting.shape(), meeting.log_number(), meeting.peers());
  if (result.ok()) {
    return result;
  }
  TellOthers(meeting, result.status());
  session_.Say(std::string(result.status().message()));
  AttemptResult not_started;  // By it the others decide about a restart, and so does this node.
  not_started.error = result.status();
  return not_started;
}

// Decides about a restart. Gives the exit code, or nothing when the job is to be started again.
std::optional<int> Launch::AfterFailure(const AttemptResult& result, int attempt) {
  const int code = ExitCodeOf(result);
  if (code == kExitOk || result.stop.signal != 0) {
    return code;
  }
  RestartInput input;
  const RankEnd* const cause = RootCause(result.ends, result.stop);
  if (cause != nullptr) {
    input.cause = *cause;
  } else {
    input.cause.exit_code = code;
  }
  input.restarts_max = session_.options().restarts_max;
  input.restarts_used = attempt - FirstAttempt(session_.options());
  input.bug_restarts_used = bug_restarts_;
  input.without_progress = without_progress_;
  const RestartPlan plan = RestartDecision(input);
  bug_restarts_ += code == kExitBug ? 1 : 0;
  if (!plan.restart) {
    if (session_.options().restarts_max > 0) {
      session_.Say(absl::StrCat("no restart: ", plan.reason));
    }
    return plan.exit_code;
  }
  session_.Say(absl::StrCat(plan.reason, " in ", absl::FormatDuration(plan.wait)));
  session_.reporter()->Event("restart", {{"attempt", attempt + 1}, {"reason", plan.reason}});
  for (const Deadline wait = Deadline::After(plan.wait); !wait.Expired();) {
    if (const int signal = session_.TakeStopSignal(); signal != 0) {
      return signal == SIGINT ? kExitInterrupted : kExitTerminated;
    }
    Clock::Real().Sleep(absl::Milliseconds(20));
  }
  return std::nullopt;
}

int Launch::Run() {
  const int64_t started = Clock::Real().MonotonicNanos();
  std::optional<int> code;
  for (int attempt = FirstAttempt(session_.options()); !code.has_value(); ++attempt) {
    absl::StatusOr<AttemptResult> result = RunAttempt(attempt);
    if (!result.ok() && session_.reporter() == nullptr) {  // Nothing has been written anywhere yet.
      return Fail(result.status());
    }
    if (!result.ok()) {
      session_.Say(std::string(result.status().message()));
      code = ExitCodeFor(result.status());
      break;
    }
    // An attempt may end before node 0 has told of its step; an earlier one has told then.
    const int64_t reached =
        std::max({checkpoint_, session_.reporter()->ReadDurableStep(), result->durable_step});
    without_progress_ = reached > checkpoint_ ? 0 : without_progress_ + 1;
    checkpoint_ = reached;
    code = AfterFailure(*result, attempt);
  }
  return session_.Finish(*code,
                         static_cast<double>(Clock::Real().MonotonicNanos() - started) * 1e-9);
}

// Checks what needs all flags of the job: those of an agent, which another host has started, lack
// the number of nodes.
absl::Status CheckJob(const LaunchOptions& options) {
  const bool replaces = options.restarts_max > 0 || options.nodes_min < options.nodes;
  return !options.reserve || replaces
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   "--reserve needs --max-restarts or --nnodes MIN:MAX: without them no rank is "
                   "replaced");
}

// The answer to --dry-run in an allocation whose nodes one command starts.
int ShowStep(const StepRequest& request) {
  const absl::StatusOr<std::string> text = PlanSlurmStep(request);
  if (!text.ok()) {
    return Fail(text.status());
  }
  std::fputs(text->c_str(), stdout);
  return kExitOk;
}

// The answer to --dry-run without a hostfile.
int ShowThisNode(const LaunchOptions& options, const Environment& environment) {
  const absl::StatusOr<int> ranks = RanksHere(options);
  if (!ranks.ok()) {
    return Fail(ranks.status());
  }
  LaunchOptions shown = options;
  shown.run_dir = RunDirOf(options);
  const NodeBinding binding = BindNode(options, environment, *ranks);
  std::fputs(DescribeNode(shown, environment, binding, *ranks).c_str(), stdout);
  return kExitOk;
}

}  // namespace

std::string RunDirOf(const LaunchOptions& options) {
  if (!options.run_dir.empty()) {
    return options.run_dir;
  }
  const std::string given = RunDirInArguments(options.arguments);
  return given.empty() ? absl::StrCat("runs/", BaseName(options.program)) : given;
}

int RunLaunch(const LaunchOptions& options, const Environment& environment,
              const NodeStart* start) {
  NodeSession session(options, environment, start);
  if (const absl::Status status = session.Prepare(); !status.ok()) {
    return Fail(status);
  }
  return options.nodes_min < options.nodes ? RunElastic(session) : Launch(session).Run();
}

int LaunchCommand(const std::vector<std::string>& arguments, const Environment& environment) {
  const absl::StatusOr<ParsedLaunch> parsed = ParseLaunch(arguments, environment);
  if (!parsed.ok()) {
    return Fail(parsed.status());
  }
  if (!parsed->help.empty()) {
    std::fputs(parsed->help.c_str(), stdout);
    return kExitOk;
  }
  if (const absl::Status status = CheckJob(parsed->options); !status.ok()) {
    return Fail(status);
  }
  SayNotes(*parsed);
  if (!parsed->options.hosts.hostfile.empty()) {
    return StartOnHosts(parsed->options, environment);
  }
  const StepRequest step{parsed->options, arguments, environment};
  const bool starts_step = parsed->options.place.has_value() && parsed->options.place->starts_step;
  if (parsed->options.hosts.dry_run) {
    return starts_step ? ShowStep(step) : ShowThisNode(parsed->options, environment);
  }
  SayPlace(parsed->options);
  if (starts_step) {
    const absl::StatusOr<int> code = RunSlurmStep(step);
    return code.ok() ? *code : Fail(code.status());
  }
  return RunLaunch(parsed->options, environment);
}

}  // namespace dtrain::launcher
