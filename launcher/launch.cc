#include "launcher/launch.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/console/terminal.h"
#include "base/file.h"
#include "base/log.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "base/system/move_aside.h"
#include "base/version.h"
#include "launcher/cluster/slurm_step.h"
#include "launcher/config_check.h"
#include "launcher/hosts/starter.h"
#include "launcher/jobs/job_registry.h"
#include "launcher/machine.h"
#include "launcher/nodes/rendezvous.h"
#include "launcher/nodes/token.h"
#include "launcher/program.h"
#include "launcher/ranks/supervisor.h"
#include "launcher/records/attempt_logs.h"
#include "launcher/records/file_tail.h"
#include "launcher/restart.h"
#include "launcher/temp_dir.h"
#include "launcher/topology/bind_ranks.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {
namespace {

std::string Lookup(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

std::string RandomRunId() {
  std::array<uint8_t, 6> bytes{};
  if (!comm::RandomBytes(absl::MakeSpan(bytes)).ok()) {
    return absl::StrCat("pid-", getpid());
  }
  std::string id;
  for (const uint8_t byte : bytes) {
    absl::StrAppendFormat(&id, "%02x", byte);
  }
  return id;
}

absl::StatusOr<int> RanksHere(const LaunchOptions& options) {
  if (options.ranks_by_gpus) {
    return std::max(1, options.place->gpus >= 0 ? options.place->gpus : GpuCount());
  }
  return RanksOnNode(options.ranks_per_node, CpuCount(), GpuCount());
}

// A job that Slurm has started again goes on where it was: --fresh was for its first start.
int FirstAttempt(const LaunchOptions& options) {
  return options.place.has_value() ? options.place->restarts : 0;
}

// The name of this start of a Slurm step, for a file.
std::string StartOf(const NodePlace& place) {
  return absl::StrCat(absl::StrReplaceAll(place.source, {{" ", "-"}}), ".", place.restarts);
}

// Says where the numbers come from, unless the launcher that started this step has said it.
void SayPlace(const LaunchOptions& options) {
  if (!options.place.has_value() || options.nodes == 1 || options.quiet) {
    return;
  }
  const NodePlace& place = *options.place;
  const bool in_step = place.is_slurm && !place.starts_step;
  if (!in_step || (options.node_rank == 0 && options.token_file != kTokenOnInput)) {
    const std::string line =
        DescribePlace(place, options.nodes, options.node_rank, options.rendezvous);
    std::fprintf(stderr, "dtrain: %s\n", line.c_str());
  }
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "dtrain launch: %s\n", std::string(status.message()).c_str());
  return ExitCodeFor(status);
}

// Tells the other nodes that this one starts no ranks, so that they do not wait for them.
void TellOthers(const Rendezvous& meeting, const absl::Status& reason) {
  if (meeting.peers() == nullptr) {
    return;
  }
  Order failed;
  failed.kind = Order::Kind::kFail;
  failed.end.rank = meeting.shape().first_rank();
  failed.end.node = meeting.shape().node_rank;
  failed.end.host = HostName();
  failed.end.exit_code = ExitCodeFor(reason);
  failed.end.error = std::string(reason.message());
  meeting.peers()->Publish(failed);
  meeting.peers()->Publish(Order{});
}

// ", of which 3 checkpoints held training up for 12.0 ms"; "" without any.
std::string SavesText(const Reporter::Saves& saves) {
  if (saves.count == 0) {
    return "";
  }
  const std::string time = saves.held_up_s < 1 ? absl::StrFormat("%.1f ms", saves.held_up_s * 1e3)
                                               : absl::StrFormat("%.1f s", saves.held_up_s);
  return absl::StrFormat(", of which %d checkpoint%s held training up for %s", saves.count,
                         saves.count == 1 ? "" : "s", time);
}

// All objects that live as long as the launch, in the order in which they must be created: those
// that fork or block signals come before those that start threads.
class Launch {
 public:
  Launch(const LaunchOptions& options, const Environment& environment, const NodeStart* start)
      : options_(options), environment_(environment), start_(start) {}

  absl::Status Prepare();
  int Run();

 private:
  absl::Status TakeKey();
  absl::StatusOr<int> ReadyRunDirectory(int attempt, int world_size) const;
  absl::Status OpenRunDirectory(const std::string& run_id);
  absl::StatusOr<AttemptResult> RunAttempt(int attempt);
  RankPlan Bindings() const;
  void ShowOutputs(Attempt& attempt);
  void Announce(const Attempt& attempt) const;
  void Register(const Attempt& attempt);
  void Serving(const comm::Endpoint& endpoint);
  std::optional<int> AfterFailure(const AttemptResult& result, int attempt);

  LaunchOptions options_;
  const Environment& environment_;
  const NodeStart* const start_;  // Null: no other host started this node.
  std::string program_;
  std::string run_dir_;  // The path as the user wrote it, for messages.
  std::string log_dir_;
  std::string run_id_;
  int local_ranks_ = 0;
  std::optional<SignalSource> signals_;
  std::optional<TempDir> folder_;
  std::optional<Guard> guard_;
  std::optional<AgentSocket> socket_;
  std::optional<SharedToken> shared_token_;
  std::optional<comm::JobKey> key_;
  UniqueFd token_;
  std::unique_ptr<Reporter> reporter_;
  std::optional<JobEntry> entry_;  // By which `dtrain ps` finds this job.
  int bug_restarts_ = 0;
  int without_progress_ = 0;
  int64_t checkpoint_ = -1;  // The last step of which a checkpoint was committed.
};

// Called on node 0 before any node has a file open in the run directory. Gives the number of the
// attempt's logs.
absl::StatusOr<int> Launch::ReadyRunDirectory(int attempt, int world_size) const {
  if (attempt == 0 && absl::c_linear_search(options_.arguments, "--fresh")) {
    DT_RETURN_IF_ERROR(CheckConfiguration(options_.arguments, world_size, environment_));
    // Moved here and not by rank 0, because by then the agent has files open in it.
    DT_RETURN_IF_ERROR(MoveRunAside(run_dir_));
  }
  return NewestAttempt(log_dir_).value_or(-1) + 1;
}

// Does not wait for other nodes: all have joined, and node 0 has prepared the directory.
absl::Status Launch::OpenRunDirectory(const std::string& run_id) {
  DT_RETURN_IF_ERROR(Annotate(MakeDirectories(run_dir_), absl::StrCat("run directory ", run_dir_)));
  DT_RETURN_IF_ERROR(MakeDirectories(log_dir_));
  if (access(run_dir_.c_str(), W_OK | X_OK) != 0) {
    return ErrnoStatus(errno, absl::StrCat("run directory ", run_dir_, " is not writable"));
  }
  const std::string metrics_path = absl::StrCat(run_dir_, "/metrics/rank-0.jsonl");
  ReporterOptions reporting;
  reporting.console.terminal = IsTerminal(STDOUT_FILENO);
  reporting.events_path = options_.node_rank == 0 ? absl::StrCat(run_dir_, "/events.jsonl")
                                                  : absl::StrCat(run_dir_, "/events-node-",
                                                                 options_.node_rank, ".jsonl");
  reporting.log_dir = log_dir_;
  reporting.show_records = !options_.quiet;
  reporting.identity = {run_id, options_.node_rank};
  if (options_.tensorboard && options_.node_rank == 0) {
    reporting.tensorboard_run_dir = run_dir_;
  }
  DT_ASSIGN_OR_RETURN(reporter_, Reporter::Start(reporting));
  reporter_->FollowMetrics(metrics_path, FileEnd(metrics_path));
  checkpoint_ = reporter_->ReadDurableStep();
  return absl::OkStatus();
}

absl::Status Launch::TakeKey() {
  constexpr absl::Duration kInputTime = absl::Minutes(1);
  if (start_ != nullptr) {
    key_ = start_->key;
  } else if (options_.token_file == kTokenOnInput) {
    DT_ASSIGN_OR_RETURN(key_, TokenFromInput(Deadline::After(kInputTime)));
  } else if (!options_.token_file.empty()) {
    DT_ASSIGN_OR_RETURN(key_, comm::JobKey::FromFile(options_.token_file));
  } else if (options_.nodes == 1) {
    DT_ASSIGN_OR_RETURN(key_, comm::JobKey::Generate());
  } else {
    shared_token_.emplace(run_dir_, StartOf(*options_.place));
    DT_ASSIGN_OR_RETURN(key_, options_.node_rank == 0
                                  ? shared_token_->Create()
                                  : shared_token_->Await(Deadline::After(options_.join_timeout)));
  }
  return absl::OkStatus();
}

absl::Status Launch::Prepare() {
  DT_ASSIGN_OR_RETURN(program_, FindProgram(options_.program, Lookup(environment_, "PATH")));
  DT_ASSIGN_OR_RETURN(local_ranks_, RanksHere(options_));
  run_dir_ = RunDirOf(options_);
  DT_RETURN_IF_ERROR(TakeKey());
  log_dir_ = options_.log_dir.empty() ? absl::StrCat(run_dir_, "/logs") : options_.log_dir;
  run_id_ = options_.rendezvous_id.empty() ? RandomRunId() : options_.rendezvous_id;
  DT_ASSIGN_OR_RETURN(signals_, SignalSource::Create(options_.signals));
  DT_ASSIGN_OR_RETURN(folder_, TempDir::Create(Lookup(environment_, "TMPDIR")));
  DT_ASSIGN_OR_RETURN(guard_, Guard::Start(folder_->path()));
  DT_ASSIGN_OR_RETURN(socket_, AgentSocket::Listen(absl::StrCat(folder_->path(), "/agent")));
  DT_ASSIGN_OR_RETURN(token_, TokenDescriptor(*key_));
  return absl::OkStatus();
}

// Shows rank 0's outputs and those that --tee names.
void Launch::ShowOutputs(Attempt& attempt) {
  constexpr int kOut = 1;
  constexpr int kErr = 2;
  std::vector<ShownFile> files;
  for (const RankSlot& slot : attempt.slots) {
    const std::vector<int>& filter = options_.local_filter;
    if (!filter.empty() &&
        std::find(filter.begin(), filter.end(), slot.local_rank) == filter.end()) {
      continue;
    }
    const int teed = options_.tee.For(slot.local_rank);
    const int of_rank_0 = options_.quiet ? kErr : kOut | kErr;
    const int streams = teed | (slot.rank == 0 ? of_rank_0 : 0);
    const std::string prefix = teed == 0 ? "" : absl::StrFormat("[rank %d] ", slot.rank);
    for (const auto& [stream, suffix] : {std::pair(kOut, "out"), std::pair(kErr, "err")}) {
      if ((streams & stream) != 0) {
        const std::string path = LogPath(attempt.log_dir, slot.rank, suffix);
        files.push_back({path, FileEnd(path), prefix, stream == kErr});
      }
    }
    if ((streams & kErr) != 0) {
      attempt.err_shown.push_back(slot.rank);
    }
  }
  reporter_->Show(files);
}

void Launch::Announce(const Attempt& attempt) const {
  // On rank 0's node its banner says all this, unless the program does not use dtrain.
  if (!options_.quiet && (options_.node_rank > 0 || attempt.shape.attempt > 0)) {
    const std::string node =
        options_.nodes > 1 ? absl::StrFormat(", node %d of %d", options_.node_rank, options_.nodes)
                           : "";
    reporter_->Say(absl::StrFormat(
        "%d rank%s of %s%s%s; run directory %s", attempt.shape.world_size(),
        attempt.shape.world_size() == 1 ? "" : "s", options_.program, node,
        attempt.shape.attempt > 0 ? absl::StrCat(", attempt ", attempt.shape.attempt) : "",
        run_dir_));
  }
  reporter_->Event("start", {{"attempt", attempt.shape.attempt},
                             {"world_size", attempt.shape.world_size()},
                             {"host", attempt.host},
                             {"version", kVersion},
                             {"program", attempt.program}});
}

// A job that cannot be found is trained all the same.
void Launch::Register(const Attempt& attempt) {
  JobFacts facts{.pid = getpid(),
                 .run_dir = attempt.shape.run_dir,
                 .run_id = attempt.shape.run_id,
                 .program = attempt.name,
                 .socket = socket_->path(),
                 .nodes = options_.nodes,
                 .node_rank = options_.node_rank,
                 .ranks = attempt.shape.local_world_size(),
                 .started_at = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())};
  absl::StatusOr<JobEntry> entry = JobEntry::Add(RegistryFolder(environment_), std::move(facts));
  if (entry.ok()) {
    entry_ = *std::move(entry);
  } else {
    DT_LOG(Warning) << "`dtrain ps` does not show this job: " << entry.status().message();
  }
}

// The bindings by this node's topology. Empty when ranks are not to be bound, or, with a warning,
// when the topology cannot be read: unbound ranks are slower but correct.
RankPlan Launch::Bindings() const {
  if (!options_.bind_cores) {
    return {};
  }
  TopologyOptions options;
  // If CUDA_VISIBLE_DEVICES is set, its numbers need not be NVML's.
  options.read_gpus = GpuCount() > 0 && environment_.count("CUDA_VISIBLE_DEVICES") == 0;
  const auto topology = ReadTopology(options);
  const auto plan = topology.ok() ? BindRanks(*topology, local_ranks_) : topology.status();
  if (!plan.ok()) {
    DT_LOG(Warning) << "ranks are not bound to cores: " << plan.status().message();
    return {};
  }
  return *plan;
}

// The port may have been chosen just now; later attempts meet there again.
void Launch::Serving(const comm::Endpoint& endpoint) {
  options_.rendezvous = endpoint.ToString();
  if (start_ != nullptr) {
    start_->serving(endpoint);
  }
}

absl::StatusOr<AttemptResult> Launch::RunAttempt(int number) {
  const auto cancelled = [this] {
    for (const int signal : signals_->Take()) {
      if (signal != SIGCHLD) {
        return signal;
      }
    }
    return 0;
  };
  const auto prepare = [this, number](int world_size) {
    shared_token_.reset();  // All nodes have it.
    return ReadyRunDirectory(number, world_size);
  };
  DT_ASSIGN_OR_RETURN(
      Rendezvous meeting,
      Rendezvous::Join({options_, *key_, local_ranks_, number, run_id_, prepare,
                        [this](const comm::Endpoint& endpoint) { Serving(endpoint); }},
                       cancelled));
  if (reporter_ == nullptr) {
    if (const absl::Status opened = OpenRunDirectory(meeting.shape().run_id); !opened.ok()) {
      TellOthers(meeting, opened);
      return opened;
    }
  }
  Attempt attempt;
  attempt.program = program_;
  attempt.name = options_.program;
  attempt.arguments = options_.arguments;
  attempt.environment = environment_;
  attempt.shape = meeting.shape();
  attempt.shape.restarts_max = options_.restarts_max;
  attempt.shape.run_dir = std::filesystem::absolute(run_dir_).lexically_normal();
  attempt.shape.agent_socket = socket_->path();
  attempt.shape.role = options_.role;
  attempt.shape.token_fd = kTokenFdInRank;
  const RankPlan bindings = Bindings();
  attempt.shape.gpu_order = GpuOrder(bindings);
  attempt.slots = PlanRanks(attempt.shape, bindings);
  attempt.log_dir = AttemptFolder(log_dir_, meeting.log_number());
  attempt.host = HostName();
  attempt.token_fd = token_.get();
  DT_RETURN_IF_ERROR(MakeDirectories(attempt.log_dir));
  Announce(attempt);
  if (!entry_.has_value()) {
    Register(attempt);
  }
  ShowOutputs(attempt);
  SupervisorLimits limits;
  limits.stop_grace = options_.stop_grace;
  limits.exit_barrier = options_.exit_barrier;
  Supervisor supervisor({*signals_, *guard_, *socket_, *reporter_, meeting.peers()}, limits,
                        attempt);
  return supervisor.Run();
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
  input.restarts_max = options_.restarts_max;
  input.restarts_used = attempt - FirstAttempt(options_);
  input.bug_restarts_used = bug_restarts_;
  input.without_progress = without_progress_;
  const RestartPlan plan = RestartDecision(input);
  bug_restarts_ += code == kExitBug ? 1 : 0;
  if (!plan.restart) {
    if (options_.restarts_max > 0) {
      reporter_->Say(absl::StrCat("no restart: ", plan.reason));
    }
    return plan.exit_code;
  }
  reporter_->Say(absl::StrCat(plan.reason, " in ", absl::FormatDuration(plan.wait)));
  reporter_->Event("restart", {{"attempt", attempt + 1}, {"reason", plan.reason}});
  for (const Deadline wait = Deadline::After(plan.wait); !wait.Expired();) {
    for (const int signal : signals_->Take()) {
      if (signal != SIGCHLD) {
        return signal == SIGINT ? kExitInterrupted : kExitTerminated;
      }
    }
    Clock::Real().Sleep(absl::Milliseconds(20));
  }
  return std::nullopt;
}

int Launch::Run() {
  const int64_t started = Clock::Real().MonotonicNanos();
  std::optional<int> code;
  for (int attempt = FirstAttempt(options_); !code.has_value(); ++attempt) {
    absl::StatusOr<AttemptResult> result = RunAttempt(attempt);
    if (!result.ok() && reporter_ == nullptr) {  // Nothing has been written anywhere yet.
      return Fail(result.status());
    }
    if (!result.ok()) {
      reporter_->Say(std::string(result.status().message()));
      code = ExitCodeFor(result.status());
      break;
    }
    const int64_t reached = reporter_->ReadDurableStep();
    without_progress_ = reached > checkpoint_ ? 0 : without_progress_ + 1;
    checkpoint_ = reached;
    code = AfterFailure(*result, attempt);
  }
  const double seconds = static_cast<double>(Clock::Real().MonotonicNanos() - started) * 1e-9;
  reporter_->Event("finish", {{"exit_code", *code}, {"seconds", seconds}});
  if (*code != kExitOk || !options_.quiet) {
    const absl::string_view meaning = ExitCodeMeaning(*code);
    reporter_->Show({});  // The ranks' last lines and records come first.
    reporter_->Say(absl::StrFormat("exit code %d%s after %.1f s%s; run directory %s", *code,
                                   meaning.empty() ? "" : absl::StrCat(" (", meaning, ")"), seconds,
                                   SavesText(reporter_->ReadSaves()), run_dir_));
  }
  reporter_->Finish(absl::Seconds(1));
  return *code;
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
  Launch launch(options, environment, start);
  if (const absl::Status status = launch.Prepare(); !status.ok()) {
    return Fail(status);
  }
  return launch.Run();
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
  if (!parsed->options.hosts.hostfile.empty()) {
    return StartOnHosts(parsed->options, environment);
  }
  SayPlace(parsed->options);
  if (parsed->options.place.has_value() && parsed->options.place->starts_step) {
    const absl::StatusOr<int> code = RunSlurmStep({parsed->options, arguments, environment});
    return code.ok() ? *code : Fail(code.status());
  }
  return RunLaunch(parsed->options, environment);
}

}  // namespace dtrain::launcher
