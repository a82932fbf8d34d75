#include "launcher/node_session.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/console/terminal.h"
#include "base/file.h"
#include "base/log.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "base/system/move_aside.h"
#include "base/text/text.h"
#include "base/version.h"
#include "launcher/config_check.h"
#include "launcher/jobs/control_socket.h"
#include "launcher/machine.h"
#include "launcher/program.h"
#include "launcher/records/attempt_logs.h"
#include "launcher/records/file_tail.h"

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

// The files of the outputs of an attempt's ranks on this node.
std::vector<std::string> OutputsOf(const Attempt& attempt) {
  std::vector<std::string> paths;
  for (const RankSlot& slot : attempt.slots) {
    paths.push_back(attempt.LogPath(slot.rank, "out"));
    paths.push_back(attempt.LogPath(slot.rank, "err"));
  }
  return paths;
}

// Adds to an error of a folder for the ranks' output what else may be done.
absl::Status WithRemedy(const absl::Status& status) {
  return absl::Status(status.code(),
                      status.ok()
                          ? ""
                          : absl::StrCat("no place for the ranks' output: ", status.message(),
                                         "; make room or give another --log-dir"));
}

absl::Status MakeRunDirectory(const std::string& path) {
  return Annotate(MakeDirectories(path), absl::StrCat("run directory ", path));
}

absl::Status MakeLogFolder(const std::string& path) { return WithRemedy(MakeDirectories(path)); }

// The name of this start of a Slurm step, for a file.
std::string StartOf(const NodePlace& place) {
  return absl::StrCat(absl::StrReplaceAll(place.source, {{" ", "-"}}), ".", place.restarts);
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

}  // namespace

int FirstAttempt(const LaunchOptions& options) {
  return options.place.has_value() ? options.place->restarts : 0;
}

absl::StatusOr<int> NodeSession::ReadyRunDirectory(bool is_first, int world_size) const {
  if (is_first && absl::c_linear_search(options_.arguments, "--fresh")) {
    DT_RETURN_IF_ERROR(CheckConfiguration(options_.arguments, world_size, environment_));
    // Moved here and not by rank 0, because by then the agent has files open in it.
    DT_RETURN_IF_ERROR(MoveRunAside(run_dir_));
    DT_RETURN_IF_ERROR(MakeRunDirectory(run_dir_));
    // The attempt may end before rank 0 has looked there.
    DT_RETURN_IF_ERROR(NoteFreshStart(run_dir_));
  }
  return NewestAttempt(log_dir_).value_or(-1) + 1;
}

absl::Status NodeSession::CheckRoom() const { return WithRemedy(CheckLogRoom(log_dir_)); }

absl::Status NodeSession::OpenRunDirectory(const std::string& run_id) {
  if (reporter_ != nullptr) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(MakeRunDirectory(run_dir_));
  DT_RETURN_IF_ERROR(MakeLogFolder(log_dir_));
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
  return absl::OkStatus();
}

// A job of this host that still runs in the directory would lose its next save to this one. The
// nodes of one job share theirs, and a job that runs on another host is stopped by its epoch.
absl::Status NodeSession::CheckThatNoJobRunsThere() const {
  if (options_.nodes > 1) {
    return absl::OkStatus();
  }
  const absl::StatusOr<std::vector<JobFacts>> jobs = RunningJobs(RegistryFolder(environment_));
  const JobFacts* const job = jobs.ok() ? JobIn(run_dir_, *jobs) : nullptr;
  return job == nullptr
             ? absl::OkStatus()
             : absl::UnavailableError(absl::StrFormat(
                   "a job of %s (process %d) already runs in run directory %s; wait for its end, "
                   "stop it by `dtrain stop %s`, or give this one a --run-dir of its own",
                   job->program, job->pid, run_dir_, run_dir_));
}

absl::Status NodeSession::TakeKey() {
  constexpr absl::Duration kInputTime = absl::Minutes(1);
  if (start_ != nullptr) {
    key_ = start_->key;
  } else if (options_.token_file == kTokenOnInput) {
    DT_ASSIGN_OR_RETURN(key_, TokenFromInput(Deadline::After(kInputTime)));
  } else if (!options_.token_file.empty()) {
    absl::StatusOr<comm::JobKey> key = comm::JobKey::FromFile(options_.token_file);
    if (absl::IsNotFound(key.status())) {
      return absl::NotFoundError(absl::StrFormat(
          "--token-file: %s; make one by: (umask 077; head -c 32 /dev/urandom > FILE), and copy it "
          "to all nodes",
          key.status().message()));
    }
    DT_ASSIGN_OR_RETURN(key_, std::move(key));
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

absl::Status NodeSession::Prepare() {
  DT_RETURN_IF_ERROR(LogBytesMax(Lookup(environment_, env::kLogBytesMax)).status());
  DT_ASSIGN_OR_RETURN(program_, FindProgram(options_.program, Lookup(environment_, "PATH")));
  DT_ASSIGN_OR_RETURN(local_ranks_, RanksHere(options_));
  // Nodes may have different numbers of ranks. Whoever started this one has looked at all.
  const absl::Status named = CheckLocalRanks(options_, local_ranks_);
  if (!named.ok() && start_ == nullptr && !options_.quiet) {
    Say(absl::StrCat("no effect on this node: ", named.message()));
  }
  run_dir_ = RunDirOf(options_);
  DT_RETURN_IF_ERROR(CheckThatNoJobRunsThere());
  DT_RETURN_IF_ERROR(TakeKey());
  log_dir_ = options_.log_dir.empty() ? absl::StrCat(run_dir_, "/logs") : options_.log_dir;
  run_id_ = options_.rendezvous_id.empty() ? RandomRunId() : options_.rendezvous_id;
  DT_ASSIGN_OR_RETURN(signals_, SignalSource::Create(options_.signals));
  DT_ASSIGN_OR_RETURN(folder_, TempDir::Create(Lookup(environment_, "TMPDIR")));
  DT_ASSIGN_OR_RETURN(guard_, Guard::Start(folder_->path()));
  DT_ASSIGN_OR_RETURN(socket_, AgentSocket::Listen(absl::StrCat(folder_->path(), "/agent")));
  if (options_.reuse && (options_.restarts_max > 0 || options_.nodes_min < options_.nodes)) {
    survivors_.emplace(*guard_);
  }
  DT_ASSIGN_OR_RETURN(token_, TokenDescriptor(*key_));
  // Last, because the name service is asked in another thread.
  return options_.local_address.empty() ? absl::OkStatus()
                                        : CheckOwnAddress("--local-addr", options_.local_address);
}

// Shows rank 0's outputs and those that --tee names.
void NodeSession::ShowOutputs(Attempt& attempt) {
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
        const std::string path = attempt.LogPath(slot.rank, suffix);
        files.push_back({path, FileEnd(path), prefix, stream == kErr});
      }
    }
    if ((streams & kErr) != 0) {
      attempt.err_shown.push_back(slot.rank);
    }
  }
  reporter_->Show(files);
}

void NodeSession::Announce(const Attempt& attempt) const {
  // On rank 0's node its banner says all this, unless the program does not use dtrain.
  if (!options_.quiet && (options_.node_rank > 0 || attempt.shape.attempt > 0)) {
    const size_t nodes = attempt.shape.ranks_of_node.size();
    const std::string node =
        nodes > 1 ? absl::StrFormat(", node %d of %d", attempt.shape.node_rank, nodes) : "";
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

void NodeSession::ServeNodes(std::function<JobNodes()> nodes) {
  if (nodes_server_ != nullptr) {
    return;
  }
  auto server = ControlServer::Start(
      AgentPath(kNodesSocket), [nodes = std::move(nodes)](const ControlCall& call) {
        call.reply(call.request == kNodesQuestion ? nodes().Encode() : "no such request");
      });
  if (server.ok()) {
    nodes_server_ = *std::move(server);
  } else {
    DT_LOG(Warning) << "`dtrain status` shows the ranks of this host only: "
                    << server.status().message();
  }
}

// A job that cannot be found is trained all the same.
void NodeSession::Register(const std::string& run_id) {
  if (entry_.has_value() && registered_as_ == run_id) {
    return;
  }
  entry_.reset();  // A spare learns the name of the run in its first attempt.
  registered_as_ = run_id;
  const bool is_elastic = options_.nodes_min < options_.nodes;
  JobFacts facts{.pid = getpid(),
                 .run_dir = std::filesystem::absolute(run_dir_).lexically_normal(),
                 .run_id = run_id,
                 .program = options_.program,
                 .socket = socket_->path(),
                 .control = is_elastic ? AgentPath(kControlSocket) : "",
                 .nodes_socket = nodes_server_ != nullptr ? AgentPath(kNodesSocket) : "",
                 .coordinator = options_.nodes > 1 ? options_.rendezvous : "",
                 .nodes = options_.nodes,
                 .node_rank = options_.node_rank,
                 .ranks = local_ranks_,
                 .started_at = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())};
  absl::StatusOr<JobEntry> entry = JobEntry::Add(RegistryFolder(environment_), std::move(facts));
  if (entry.ok()) {
    entry_ = *std::move(entry);
  } else {
    DT_LOG(Warning) << "`dtrain ps` does not show this job: " << entry.status().message();
  }
}

// The first attempt says what the network profile sets.
NodeBinding NodeSession::Binding(int attempt) const {
  NodeBinding binding = BindNode(options_, environment_, local_ranks_);
  if (!options_.quiet && attempt == FirstAttempt(options_)) {
    for (const std::string& line : DescribeVariables(binding.network)) {
      Say(absl::StrCat("network profile ", options_.network_profile, ": ", line));
    }
  }
  return binding;
}

void NodeSession::Serving(const comm::Endpoint& endpoint) {
  options_.rendezvous = endpoint.ToString();
  if (start_ != nullptr) {
    start_->serving(endpoint);
  }
}

Attempt NodeSession::AttemptOf(JobShape shape, const NodeBinding& binding) const {
  Attempt attempt;
  attempt.program = program_;
  attempt.name = options_.program;
  attempt.arguments = options_.arguments;
  attempt.environment = environment_;
  attempt.shape = std::move(shape);
  attempt.shape.restarts_max = options_.restarts_max;
  attempt.shape.run_dir = std::filesystem::absolute(run_dir_).lexically_normal();
  attempt.shape.agent_socket = socket_->path();
  attempt.shape.reuse = survivors_.has_value();
  attempt.shape.role = options_.role;
  attempt.shape.token_fd = kTokenFdInRank;
  attempt.shape.gpu_order = GpuOrder(binding.plan);
  attempt.shape.network = SettingsOf(binding.network);
  attempt.slots = PlanRanks(attempt.shape, binding.plan);
  attempt.host = HostName();
  attempt.token_fd = token_.get();
  attempt.reserve = options_.reserve;
  return attempt;
}

absl::StatusOr<AttemptResult> NodeSession::RunAttempt(JobShape shape, int log_number,
                                                      Peers& peers) {
  const NodeBinding binding = Binding(shape.attempt);
  Attempt attempt = AttemptOf(std::move(shape), binding);
  attempt.log_dir = AttemptFolder(log_dir_, log_number);
  DT_RETURN_IF_ERROR(MakeLogFolder(attempt.log_dir));
  DT_ASSIGN_OR_RETURN(const uint64_t log_bytes_max,
                      LogBytesMax(Lookup(environment_, env::kLogBytesMax)));
  const LogLimits log_limits(OutputsOf(attempt), log_bytes_max);
  Announce(attempt);
  Register(attempt.shape.run_id);
  ShowOutputs(attempt);
  SupervisorLimits limits;
  limits.stop_grace = options_.stop_grace;
  limits.exit_barrier = options_.exit_barrier;
  Survivors* const survivors = survivors_.has_value() ? &*survivors_ : nullptr;
  Supervisor supervisor({*signals_, *guard_, *socket_, *reporter_, peers, survivors}, limits,
                        attempt);
  return supervisor.Run();
}

int NodeSession::TakeStopSignal() {
  for (const int signal : signals_->Take()) {
    if (signal != SIGCHLD) {
      return signal;
    }
  }
  return 0;
}

void NodeSession::Say(const std::string& text) const {
  if (reporter_ != nullptr) {
    reporter_->Say(text);
  } else {
    std::fprintf(stderr, "dtrain: %s\n", Printable(text).c_str());
  }
}

std::string NodeSession::AgentPath(const char* name) const {
  return absl::StrCat(folder_->path(), "/", name);
}

void NodeSession::DropSurvivors() {
  if (survivors_.has_value()) {
    survivors_->RemoveAll();
  }
}

void NodeSession::DropKept() {
  if (survivors_.has_value()) {
    survivors_->RemoveKept();
  }
}

bool NodeSession::LacksReserve() const {
  return options_.reserve && survivors_.has_value() && survivors_->reserve_pid() < 0 &&
         !reserve_failed_;
}

// The process learns its rank's number, and where ranks meet, when it becomes a rank.
void NodeSession::StartReserve() {
  JobShape shape;
  shape.ranks_of_node = {local_ranks_};
  const NodeBinding binding = BindNode(options_, environment_, local_ranks_);
  const absl::Status started = survivors_->StartReserve(AttemptOf(std::move(shape), binding));
  if (!started.ok()) {
    reserve_failed_ = true;
    Say(std::string(started.message()));
  }
}

int NodeSession::Finish(int code, double seconds) {
  DropSurvivors();
  if (reporter_ == nullptr) {
    return code;  // It never began.
  }
  reporter_->Event("finish", {{"exit_code", code}, {"seconds", seconds}});
  if (code != kExitOk || !options_.quiet) {
    const absl::string_view meaning = ExitCodeMeaning(code);
    reporter_->Show({});  // The ranks' last lines and records come first.
    reporter_->Say(absl::StrFormat("exit code %d%s after %.1f s%s; run directory %s", code,
                                   meaning.empty() ? "" : absl::StrCat(" (", meaning, ")"), seconds,
                                   SavesText(reporter_->ReadSaves()), run_dir_));
  }
  reporter_->Finish(absl::Seconds(1));
  return code;
}

}  // namespace dtrain::launcher
