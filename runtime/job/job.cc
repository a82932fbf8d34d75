#include "dtrain/job.h"

#include <sys/utsname.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/cgroup.h"
#include "base/console/run_console.h"
#include "base/file.h"
#include "base/hidden_tiles.h"
#include "base/kept_heap.h"
#include "base/log.h"
#include "base/resource_limits.h"
#include "base/status.h"
#include "base/version.h"
#include "base/wait_notice.h"
#include "runtime/engine/available_memory.h"
#include "runtime/job/error_file.h"
#include "runtime/job/group_options.h"
#include "runtime/job/job_device.h"
#include "runtime/job/job_state.h"
#include "runtime/job/run_directory.h"
#include "runtime/job/start_agreement.h"
#include "runtime/job/stop_signal.h"
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

// Another learning rate on one rank would let weights drift apart without a word.
absl::Status CheckSameConfig(const Json& rank_zero, const Job::State& state) {
  const Json mine = state.config->values_in_force();
  for (const auto& [key, value] : rank_zero.items()) {
    const auto found = mine.find(key);
    if (key != "origins" && (found == mine.end() || *found != value)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the configuration differs between ranks: %s is %s on rank 0 and %s on rank %d; give all "
          "ranks the same file and --set",
          key, DumpJson(value), found == mine.end() ? "absent" : DumpJson(*found), state.env.rank));
    }
  }
  return absl::OkStatus();
}

// Rank 0's answers, in the store.
constexpr char kConfiguration[] = "configuration";
constexpr char kRunDirectory[] = "run_directory";
// For the others to come and hear why this rank ends.
constexpr absl::Duration kSayWhyNot = absl::Seconds(20);

Json AnswerOf(const absl::Status& error) {
  return {{"code", static_cast<int>(error.code())}, {"message", std::string(error.message())}};
}

// Where the ranks agree that a fresh start may move the old run aside.
std::unique_ptr<comm::Store> FreshStart(const Rendezvous& meeting) {
  return comm::NewPrefixStore(meeting.store, "fresh");
}

// What rank 0 gives under `key`, on every rank; its error, if that is what it gives. Alone it is
// `mine` itself.
absl::StatusOr<Json> AnswerOfRankZero(const Job::State& state, const char* key, const Json& mine,
                                      Deadline deadline) {
  Json answer = mine;
  if (state.rendezvous != nullptr && state.env.rank == 0) {
    DT_RETURN_IF_ERROR(state.rendezvous->store->Set(key, DumpJson(answer), deadline));
  } else if (state.rendezvous != nullptr) {
    const WaitNotice notice(absl::StrFormat("rank %d of %d waits for rank 0 to prepare %s",
                                            state.env.rank, state.env.world_size, state.run_dir));
    DT_ASSIGN_OR_RETURN(const std::string text, state.rendezvous->store->Get(key, deadline));
    DT_ASSIGN_OR_RETURN(answer, ParseJson(text, "rank 0's answer"));
  }
  if (const int code = answer["code"].get<int>(); code != 0) {
    const char* const whose = state.env.rank == 0 ? "" : "rank 0 cannot start: ";
    return absl::Status(static_cast<absl::StatusCode>(code),
                        absl::StrCat(whose, answer["message"].get<std::string>()));
  }
  return answer;
}

// Compares the configuration with rank 0's. Where the start is a fresh one, no rank goes on before
// all are sure: a run that is moved aside for a job that does not start is gone from its place.
absl::Status CompareConfigurations(Job::State& state, Deadline deadline) {
  DT_ASSIGN_OR_RETURN(
      const Json answer,
      AnswerOfRankZero(
          state, kConfiguration,
          {{"code", 0}, {"fresh", state.fresh}, {"config", state.config->values_in_force()}},
          deadline));
  const absl::Status same = CheckSameConfig(answer["config"], state);
  return state.rendezvous != nullptr && answer["fresh"].get<bool>()
             ? AgreeToStart(*FreshStart(*state.rendezvous), state.env.rank, state.env.world_size,
                            same, deadline)
             : same;
}

// Rank 0 prepares; the others take its answer.
absl::Status TakeRunDirectory(Job::State& state, const RunDirectoryOptions& options,
                              Deadline deadline) {
  Json mine;
  if (state.env.rank == 0) {
    const auto directory = PrepareRunDirectory(options, *state.config);
    mine = directory.ok() ? Json{{"code", 0}, {"run_id", directory->run_id}}
                          : AnswerOf(directory.status());
  }
  DT_ASSIGN_OR_RETURN(const Json answer, AnswerOfRankZero(state, kRunDirectory, mine, deadline));
  state.run_id = answer["run_id"].get<std::string>();
  return absl::OkStatus();
}

// A rank that cannot even read its configuration tells the others, which would wait for it until
// their timeout. Under dtrain's launcher its end alone ends them, and may come before they begin.
absl::Status SayWhyNot(Job::State& state, const absl::Status& reason) {
  if (state.env.world_size == 1 || state.agent.connected()) {
    return reason;
  }
  const Deadline deadline = Deadline::After(kSayWhyNot);
  auto meeting = Meet(state.env, state.run_dir, deadline);
  if (!meeting.ok()) {
    return reason;
  }
  state.rendezvous = *std::move(meeting);
  comm::Store& store = *state.rendezvous->store;
  if (state.env.rank == 0) {  // What the others ask for first.
    store.Set(kConfiguration, DumpJson(AnswerOf(reason)), deadline).IgnoreError();
  } else if (const auto answer = AnswerOfRankZero(state, kConfiguration, {}, deadline);
             answer.ok() && (*answer)["fresh"].get<bool>()) {
    AgreeToStart(*FreshStart(*state.rendezvous), state.env.rank, state.env.world_size, reason, deadline)
        .IgnoreError();
  }
  AgreeToStart(store, state.env.rank, state.env.world_size, reason, deadline).IgnoreError();
  return reason;
}

comm::GroupOptions WorldOptions(const Job::State& state) {
  comm::GroupOptions options = GroupOptionsFrom(*state.config);
  options.rank = state.env.rank;
  options.size = state.env.world_size;
  options.epoch = static_cast<uint64_t>(state.env.attempt);
  options.node_id = NodeId(state.env);
  options.host_address = state.env.host_address;
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
  comm::FlightDumper::DumpOnSignal(SIGUSR2);
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
  if (state.env.rank == 0 && !state.agent.connected() && state.config->metrics_tensorboard()) {
    options.tensorboard_run_dir = state.run_dir;  // Else the agent does it.
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
  const int ranks = env.local_world_size > 0 ? env.local_world_size : env.world_size;
  return std::min(memory.machine_available, memory.cgroup_available) / ranks;
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
  const int ranks = env.local_world_size > 0 ? env.local_world_size : env.world_size;
  const double quota = CpuQuota();
  const int threads = at::get_num_threads();
  const int within = CpusWithin(quota / ranks, threads);
  if (within == threads) {
    return;
  }
  at::set_num_threads(within);
  if (env.rank == 0) {
    DT_LOG(Info) << absl::StrFormat(
        "each rank of this node computes with %d of %d threads, because its cgroup has a CPU quota of "
        "%.2f CPUs; OMP_NUM_THREADS overrides this",
        within, threads, quota);
  }
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
  if (!env.agent_socket.empty()) {
    auto agent = AgentChannel::Connect(env.agent_socket);
    if (agent.ok()) {
      state->agent = *std::move(agent);
    } else {
      DT_LOG(Warning) << agent.status().message() << "; going on without an agent";
    }
  }
  auto job = FromState(std::move(state));
  State& s = *job->state_;
  AgentMessage hello{.kind = AgentMessage::Kind::kHello, .rank = env.rank, .pid = getpid()};
  hello.text = s.run_dir;
  s.agent.Send(hello);
  const auto prepare = [&]() -> absl::Status {
    if (const absl::Status limits = CheckLimits(); !limits.ok()) {
      return SayWhyNot(s, limits);
    }
    auto config = LoadConfig(options, s.env.world_size);
    if (!config.ok()) {
      return SayWhyNot(s, config.status());
    }
    s.config = *std::move(config);
    const Deadline deadline = Deadline::After(absl::Seconds(s.config->comm_timeout_seconds()));
    if (s.env.world_size > 1) {
      DT_ASSIGN_OR_RETURN(s.rendezvous, Meet(s.env, s.run_dir, deadline));
      s.store = s.rendezvous->store.get();
    }
    s.fresh = options.fresh && s.env.attempt == 0;
    RunDirectoryOptions directory{.path = s.run_dir,
                                  .run_id = s.env.run_id,
                                  .fresh = s.fresh,
                                  .has_agent = s.env.source == LaunchSource::kDtrain,
                                  .attempt = s.env.attempt,
                                  .world_size = s.env.world_size,
                                  .versions = Versions()};
    // All that may fail before a group tells the ranks of each other's end.
    const auto ready = [&]() -> absl::Status {
      DT_RETURN_IF_ERROR(CompareConfigurations(s, deadline));
      DT_RETURN_IF_ERROR(TakeRunDirectory(s, directory, deadline));
      DT_RETURN_IF_ERROR(StartFlightDumper(s));
      return OpenMetrics(s);
    };
    const absl::Status mine = ready();
    DT_RETURN_IF_ERROR(s.rendezvous == nullptr
                           ? mine
                           : AgreeToStart(*s.store, s.env.rank, s.env.world_size, mine, deadline));
    const comm::GroupOptions world = WorldOptions(s);
    DT_ASSIGN_OR_RETURN(s.group, comm::CreateHostGroup(s.store, world));
    DT_RETURN_IF_ERROR(OpenDevice(s, world));  // Before LibTorch is asked for anything.
    KeepThreadsWithinQuota(s.env, environment);
    DT_RETURN_IF_ERROR(CheckThreads(at::get_num_threads()));
    at::globalContext().setDeterministicAlgorithms(s.config->deterministic(), true);
    at::manual_seed(s.config->seed());
    SayWarnings(s);
    return absl::OkStatus();
  };
  if (const absl::Status status = prepare(); !status.ok()) {
    s.agent.Send({.kind = AgentMessage::Kind::kError,
                  .rank = s.env.rank,
                  .pid = getpid(),
                  .exit_code = ExitCodeFor(status),
                  .text = std::string(status.message())});
    return status;
  }
  return job;
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
  if (!state_->agent.connected()) {
    return;
  }
  state_->agent.Send({.kind = AgentMessage::Kind::kBeat,
                      .rank = state_->env.rank,
                      .pid = getpid(),
                      .step = step,
                      .collective = state_->group == nullptr ? 0 : state_->group->sequence(),
                      .phase = phase});
}

int Job::stop_signal() const {
  const int agreed = state_->stop_signal.load();
  return agreed != 0 ? agreed : ReceivedStopSignal();
}
void Job::AgreeToStop(int signal) { state_->stop_signal = signal; }
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
  // A rank that only noticed another's failure is a victim: it must not claim the root cause.
  const bool first_hand =
      !status.ok() && !stopped && !absl::IsAborted(status) && !absl::IsUnavailable(status);
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
