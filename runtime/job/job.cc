#include "dtrain/job.h"

#include <sys/utsname.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/console/run_console.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system/cgroup.h"
#include "base/system/constant_pages.h"
#include "base/system/crash_stack.h"
#include "base/system/hidden_tiles.h"
#include "base/system/kept_heap.h"
#include "base/system/resource_limits.h"
#include "base/version.h"
#include "comm/call_timeout.h"
#include "runtime/job/error_file.h"
#include "runtime/job/gather_texts.h"
#include "runtime/job/group_options.h"
#include "runtime/job/job_device.h"
#include "runtime/job/job_state.h"
#include "runtime/job/rank_zero.h"
#include "runtime/job/run_directory.h"
#include "runtime/job/start_agreement.h"
#include "runtime/job/stop_signal.h"
#include "runtime/memory/available_memory.h"
#include "runtime/model/torch_pool.h"
#include "torch/version.h"

namespace dtrain {
namespace {

std::string HostName() {
  utsname names{};
  return uname(&names) == 0 ? names.nodename : "localhost";
}

// Ranks with equal text share memory: host name and the kernel's boot id (containers on one kernel
// that share /dev/shm differ in host name and so use TCP, which is always right).
std::string NodeId(const JobEnv& env) {
  if (!env.node_id.empty()) {
    return env.node_id;
  }
  const auto boot = ReadFile("/proc/sys/kernel/random/boot_id", 256);
  return absl::StrCat(HostName(), "/", boot.ok() ? boot->substr(0, 36) : "");
}

std::string DefaultRunDir(const JobOptions& options, const JobEnv& env) {
  if (!options.run_dir.empty()) {
    return options.run_dir;
  }
  if (!env.run_dir.empty()) {
    return env.run_dir;
  }
  return absl::StrCat("runs/", options.program.substr(options.program.rfind('/') + 1));
}

absl::StatusOr<Config> LoadConfig(const JobOptions& options, int world_size) {
  if (options.config_file.empty()) {
    return Config::Parse("{}", "(no file)", options.overrides, world_size);
  }
  return Config::Load(options.config_file, options.overrides, world_size);
}

comm::GroupOptions WorldOptions(const Job::State& state) {
  comm::GroupOptions options = GroupOptionsFrom(*state.config);
  options.rank = state.env.rank;
  options.size = state.env.world_size;
  options.epoch = static_cast<uint64_t>(state.env.attempt);
  options.node_id = NodeId(state.env);
  options.host_address = state.env.host_address;
  if (options.host_interface.empty()) {  // Whoever names an interface chooses the device with it.
    options.rdma.near_device = state.env.rdma_device;
  }
  if (state.rendezvous != nullptr) {
    options.job_key = state.rendezvous->key_bytes;
  }
  return options;
}

// The records of a rank that hangs are asked for from outside. SIGUSR1 is left to schedulers, which
// warn by it before they take a node away.
absl::Status StartFlightDumper(Job::State& state) {
  comm::FlightDumperOptions options;
  options.path = absl::StrFormat("%s/flight/rank-%d.json", state.run_dir, state.env.rank);
  options.about = {{"rank", state.env.rank},
                   {"host_name", HostName()},
                   {"pid", getpid()},
                   {"attempt", state.env.attempt}};
  DT_ASSIGN_OR_RETURN(state.flight, comm::FlightDumper::Start(std::move(options)));
  WriteStackAtSignal(SIGUSR2, comm::FlightDumper::RequestForSignal);
  return absl::OkStatus();
}

Json Versions() { return {{"dtrain", kVersion}, {"commit", kCommit}, {"libtorch", TORCH_VERSION}}; }

void SayWarnings(const Job::State& state) {
  if (state.env.rank == 0) {
    for (const std::string& warning : state.config->warnings()) {
      DT_LOG(Warning) << warning;
    }
  }
}

absl::Status OpenMetrics(Job::State& state) {
  MetricsOptions options;
  options.directory = absl::StrCat(state.run_dir, "/metrics");
  options.run_id = state.run_id;
  options.node = HostName();
  options.attempt = state.env.attempt;
  options.rank = state.env.rank;
  options.samples_per_step = state.config->global_batch();
  options.total_steps = state.config->train_steps();
  options.interval = state.config->metrics_interval();
  options.columns = state.config->metrics_console();
  options.print_progress = !state.agent.connected();
  options.gather = [&state](const std::string& mine) {
    return GatherTexts(*state.group, mine,
                       Deadline::After(absl::Seconds(state.config->comm_timeout_seconds())));
  };
  if (state.env.rank == 0 && !state.agent.connected() && state.config->metrics_tensorboard()) {
    options.tensorboard_run_dir = state.run_dir;  // An agent would write these files itself.
  }
  DT_ASSIGN_OR_RETURN(state.metrics, Metrics::Open(options));
  if (state.env.rank == 0) {
    Json about = ProgressSettings(options.total_steps, options.interval, options.columns);
    about["world_size"] = state.env.world_size;
    about["versions"] = Versions();
    state.metrics->LogEvent(EventKind::kConfig, about);
  }
  return absl::OkStatus();
}

// Bytes, if the ranks of this machine take equal parts of what it and the cgroup have.
int64_t MemoryShare(const JobEnv& env) {
  const plan::RankMemory memory = ReadRankMemory();
  return std::min(memory.machine_available, memory.cgroup_available) / env.ranks_on_node();
}

// Before anything starts the threads that a rank has beside LibTorch's.
absl::Status CheckLimits() {
  constexpr int kOwnThreadsMax = 16;
  DT_RETURN_IF_ERROR(CheckStack());
  return CheckThreads(kOwnThreadsMax);
}

// LibTorch counts the CPUs on which this process may run. Where a cgroup gives less time than they
// have, each of its threads would be stopped for most of the time while the others wait for it.
void KeepThreadsWithinQuota(const JobEnv& env, const Environment& environment) {
  if (ThreadsAreChosen(environment)) {
    return;
  }
  const int ranks = env.ranks_on_node();
  const double quota = CpuQuota();
  const int threads = at::get_num_threads();
  const int within = CpusWithin(quota / ranks, threads);
  if (within == threads) {
    return;
  }
  at::set_num_threads(within);
  if (env.rank == 0) {
    DT_LOG(Info) << absl::StrFormat(
        "each rank of this node computes with %d of %d threads, because its cgroup has a CPU quota "
        "of %.2f CPUs; OMP_NUM_THREADS overrides this",
        within, threads, quota);
  }
}

bool WaitingIsChosen(const Environment& environment) {
  return environment.count("OMP_WAIT_POLICY") != 0 || environment.count("GOMP_SPINCOUNT") != 0;
}

// A rank whose agent does not answer trains without one.
void ConnectAgent(Job::State& state) {
  const JobEnv& env = state.env;
  if (!env.agent_socket.empty()) {
    auto agent = AgentChannel::Connect(env.agent_socket);
    if (agent.ok()) {
      state.agent = *std::move(agent);
    } else {
      DT_LOG(Warning) << agent.status().message() << "; going on without an agent";
    }
  }
  AgentMessage hello{.kind = AgentMessage::Kind::kHello, .rank = env.rank, .pid = getpid()};
  hello.text = state.run_dir;
  state.agent.Send(hello);
  state.heartbeat = std::make_unique<Heartbeat>(state.agent, env.rank);
}

// A link that the hardware rides out, or a pause of the program, is no hang yet: what a collective
// would wait for is waited for here too.
HangLimits HangLimitsOf(const Job::State& state) {
  const Config& config = *state.config;
  comm::CallCarriers carriers{.gpu = !state.device->is_host()};
  if (absl::EndsWith(state.group->transport(), "rdma")) {
    carriers.rdma.emplace();
  }
  std::optional<absl::Duration> least;
  if (const auto seconds = config.comm_timeout_min_seconds(); seconds.has_value()) {
    least = absl::Seconds(*seconds);
  }
  const double patience_s = absl::ToDoubleSeconds(comm::LeastTimeout(least, carriers));
  // A GPU's host runs ahead of it, so its steps' times say little of how long a phase may take.
  const double unless_set = carriers.gpu ? -patience_s : -1;
  return {.fixed_s = config.comm_hang_timeout_seconds().value_or(unless_set),
          .patience_s = patience_s,
          .slow_s = config.comm_timeout_seconds(),
          .data_s = config.comm_hang_data_timeout_seconds().value_or(0)};
}

// All that may fail before a group tells the ranks of each other's end.
absl::Status PrepareRun(Job::State& state, const JobOptions& options, Deadline deadline) {
  const RunDirectoryOptions directory{.path = state.run_dir,
                                      .run_id = state.env.run_id,
                                      .fresh = state.fresh,
                                      .has_agent = state.env.source == LaunchSource::kDtrain,
                                      .is_fresh_job = options.fresh,
                                      .accept_changes = options.accept_changes,
                                      .attempt = state.env.attempt,
                                      .world_size = state.env.world_size,
                                      .versions = Versions()};
  DT_RETURN_IF_ERROR(CompareConfigurations(state, deadline));
  DT_RETURN_IF_ERROR(TakeRunDirectory(state, directory, deadline));
  DT_RETURN_IF_ERROR(StartFlightDumper(state));
  return OpenMetrics(state);
}

absl::Status SetUpLibTorch(const Job::State& state, const Environment& environment) {
  KeepThreadsWithinQuota(state.env, environment);
  if (!WaitingIsChosen(environment)) {
    SleepBetweenOperations(CpuQuota());
  }
  DT_RETURN_IF_ERROR(CheckThreads(at::get_num_threads()));
  MapConstantPages();
  at::globalContext().setDeterministicAlgorithms(state.config->deterministic(), true);
  // Filling each new tensor with NaN would show its reads; it changes no bits of a right program.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::manual_seed(state.config->seed());
  return absl::OkStatus();
}

// From the configuration to a group and a device. Collective.
absl::Status JoinJob(Job::State& state, const JobOptions& options, const Environment& environment) {
  if (const absl::Status limits = CheckLimits(); !limits.ok()) {
    return SayWhyNot(state, limits);
  }
  auto config = LoadConfig(options, state.env.world_size);
  if (!config.ok()) {
    return SayWhyNot(state, config.status());
  }
  state.config = *std::move(config);
  const Deadline deadline = Deadline::After(absl::Seconds(state.config->comm_timeout_seconds()));
  if (state.env.world_size > 1) {
    DT_ASSIGN_OR_RETURN(state.rendezvous, Meet(state.env, state.run_dir, deadline));
    state.store = state.rendezvous->store.get();
  }
  state.fresh = options.fresh && state.env.begins_job;
  const absl::Status mine = PrepareRun(state, options, deadline);
  DT_RETURN_IF_ERROR(
      state.rendezvous == nullptr
          ? mine
          : AgreeToStart(*state.store, state.env.rank, state.env.world_size, mine, deadline));
  const comm::GroupOptions world = WorldOptions(state);
  DT_ASSIGN_OR_RETURN(state.group, comm::CreateHostGroup(state.store, world));
  DT_RETURN_IF_ERROR(OpenDevice(state, world));  // Before LibTorch is asked for anything.
  DT_RETURN_IF_ERROR(SetUpLibTorch(state, environment));
  SayWarnings(state);
  state.heartbeat->Start(HangLimitsOf(state));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Job>> Job::Create(const JobOptions& options) {
  auto state = std::make_unique<State>();
  const Environment environment = ReadEnvironment();
  DT_ASSIGN_OR_RETURN(state->env, ResolveJobEnv(environment));
  const JobEnv& env = state->env;
  KeepFreedMemory(environment, MemoryShare(env));
  SetLogRank(env.world_size > 1 ? env.rank : -1);
  AvoidHiddenTiles(/*tell=*/env.rank == 0);
  state->run_dir = DefaultRunDir(options, env);
  ConnectAgent(*state);
  auto job = FromState(std::move(state));
  State& s = *job->state_;
  if (const absl::Status status = JoinJob(s, options, environment); !status.ok()) {
    s.agent.Send({.kind = AgentMessage::Kind::kError,
                  .rank = s.env.rank,
                  .pid = getpid(),
                  .exit_code = ExitCodeFor(status),
                  .text = std::string(status.message())});
    return status;
  }
  return job;
}

bool Job::State::accepts(absl::string_view key) const {
  return std::any_of(accepted_changes.begin(), accepted_changes.end(),
                     [&](const Json& change) { return change.value("key", std::string()) == key; });
}

std::unique_ptr<Job> Job::FromState(std::unique_ptr<State> state) {
  return std::unique_ptr<Job>(new Job(std::move(state)));
}

Job::Job(std::unique_ptr<State> state) : state_(std::move(state)) {}
Job::~Job() = default;

int Job::rank() const { return state_->env.rank; }
int Job::world_size() const { return state_->env.world_size; }
int Job::local_rank() const { return state_->env.local_rank; }
int Job::attempt() const { return state_->env.attempt; }
const Config& Job::config() const { return *state_->config; }
Metrics& Job::metrics() { return *state_->metrics; }
const std::string& Job::run_dir() const { return state_->run_dir; }
const std::string& Job::run_id() const { return state_->run_id; }
comm::Group& Job::group() { return *state_->group; }
at::Device Job::device() const { return state_->device->tensors(); }

void Job::Beat(const char* phase, int64_t step) {
  if (state_->heartbeat != nullptr) {
    state_->heartbeat->Mark(phase, step);
  }
}

int Job::stop_signal() const {
  const int agreed = state_->stop_signal.load();
  if (agreed != 0) {
    return agreed;
  }
  const int received = ReceivedStopSignal();
  return received != 0 || state_->stop_reason.empty() ? received : kProgramStop;
}
void Job::AgreeToStop(int signal) {
  if (signal == SIGXCPU) {
    state_->cpu_time_ended = true;
    signal = SIGTERM;
  }
  state_->stop_signal = signal;
}
bool Job::stop_agreed() const { return state_->stop_signal.load() != 0; }

void ReportEnd(Job::State* state, const absl::Status& status, int exit_code) {
  const bool stopped = absl::IsCancelled(status);
  if (state != nullptr && state->metrics != nullptr) {
    state->metrics->LeaveProgress();  // How far the run was comes before why it ends.
  }
  if (!status.ok()) {
    LogLine(stopped ? LogLevel::kInfo : LogLevel::kError, status.message());
  }
  const Environment environment = ReadEnvironment();
  const auto torch_file = environment.find("TORCHELASTIC_ERROR_FILE");
  const bool first_hand = IsFirstHand(status);
  if (first_hand && torch_file != environment.end()) {
    WriteFileAtomic(torch_file->second, TorchErrorJson(status, absl::Now())).IgnoreError();
  }
  if (state == nullptr) {
    return;
  }
  AgentMessage message{.kind = first_hand ? AgentMessage::Kind::kError : AgentMessage::Kind::kDone,
                       .rank = state->env.rank,
                       .pid = getpid(),
                       .exit_code = exit_code,
                       .text = std::string(status.message())};
  state->agent.Send(message);
  if (state->flight != nullptr && !status.ok() && !stopped) {
    const absl::Status written = state->flight->Dump("the rank ended with an error");
    if (!written.ok()) {
      DT_LOG(Warning) << "flight record: " << written.message();
    }
  }
}

}  // namespace dtrain
