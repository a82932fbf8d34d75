#include "base/job_env.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

extern char** environ;

namespace dtrain {
namespace {

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}
  bool Has(const char* name) const { return environment_.count(name) != 0; }
  bool HasAll(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (!Has(name)) {
        return false;
      }
    }
    return true;
  }
  std::string Text(const char* name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }
  // The integer in `name`, in [low, high]; `fallback` when it is unset.
  absl::StatusOr<int> Integer(const char* name, int low, int high, int fallback) const {
    const std::string text = Text(name);
    if (text.empty()) {
      return fallback;
    }
    int value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
      return absl::InvalidArgumentError(
          absl::StrFormat("environment variable %s is \"%s\"; allowed: an integer in [%d, %d]",
                          name, text, low, high));
    }
    return value;
  }

 private:
  const Environment& environment_;
};

struct RankNames {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

absl::Status ReadRanks(const Reader& reader, const RankNames& names, JobEnv& job) {
  constexpr int kRanksMax = 1 << 20;
  job.world_size_name = names.size;
  DT_ASSIGN_OR_RETURN(job.world_size, reader.Integer(names.size, 1, kRanksMax, 1));
  DT_ASSIGN_OR_RETURN(job.rank, reader.Integer(names.rank, 0, job.world_size - 1, 0));
  DT_ASSIGN_OR_RETURN(job.local_world_size,
                      reader.Integer(names.local_size, 1, job.world_size, job.world_size));
  DT_ASSIGN_OR_RETURN(job.local_rank,
                      reader.Integer(names.local_rank, 0, job.local_world_size - 1, 0));
  return absl::OkStatus();
}

// Number `node` of Slurm's form "2(x3),1"; 0 when `text` does not have it.
int TasksOfNode(const std::string& text, int node) {
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> pieces = absl::StrSplit(part, absl::ByAnyChar("(x)"));
    int tasks = 0;
    int repeat = 1;
    if (!absl::SimpleAtoi(pieces[0], &tasks)) {
      return 0;
    }
    for (size_t i = 1; i < pieces.size(); ++i) {
      if (!pieces[i].empty() && !absl::SimpleAtoi(pieces[i], &repeat)) {
        return 0;
      }
    }
    if (node < repeat) {
      return tasks;
    }
    node -= repeat;
  }
  return 0;
}

absl::Status ReadSlurm(const Reader& reader, JobEnv& job) {
  constexpr int kRanksMax = 1 << 20;
  const char* const size_name =
      reader.Has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  job.world_size_name = size_name;
  DT_ASSIGN_OR_RETURN(job.world_size, reader.Integer(size_name, 1, kRanksMax, 1));
  DT_ASSIGN_OR_RETURN(job.rank, reader.Integer("SLURM_PROCID", 0, job.world_size - 1, 0));
  DT_ASSIGN_OR_RETURN(job.local_rank, reader.Integer("SLURM_LOCALID", 0, job.world_size - 1, 0));
  DT_ASSIGN_OR_RETURN(job.node_rank, reader.Integer("SLURM_NODEID", 0, kRanksMax, 0));
  job.local_world_size = TasksOfNode(reader.Text("SLURM_STEP_TASKS_PER_NODE"), job.node_rank);
  if (job.local_world_size <= job.local_rank) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "SLURM_STEP_TASKS_PER_NODE \"%s\" gives %d tasks on node %d, but SLURM_LOCALID is %d",
        reader.Text("SLURM_STEP_TASKS_PER_NODE"), job.local_world_size, job.node_rank,
        job.local_rank));
  }
  if (!reader.Has("MASTER_ADDR")) {
    DT_ASSIGN_OR_RETURN(const auto hosts, ExpandHostList(reader.Text("SLURM_STEP_NODELIST")));
    job.store_host = hosts.empty() ? "127.0.0.1" : hosts.front();
  }
  return absl::OkStatus();
}

// Removes the brackets that an IPv6 address has before a port ("[::1]") and not by itself.
std::string WithoutBrackets(const std::string& host) {
  return host.size() > 2 && host.front() == '[' && host.back() == ']'
             ? host.substr(1, host.size() - 2)
             : host;
}

absl::Status ReadMeetingPoint(const Reader& reader, JobEnv& job) {
  if (reader.Has(env::kStore)) {
    const std::string text = reader.Text(env::kStore);
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &job.store_port) ||
        job.store_port < 1 || job.store_port > 65535) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is \"%s\"; allowed: host:port", env::kStore, text));
    }
    job.store_host = WithoutBrackets(text.substr(0, colon));
    job.store_is_served = true;
    return absl::OkStatus();
  }
  if (reader.Has("MASTER_ADDR")) {
    job.store_host = WithoutBrackets(reader.Text("MASTER_ADDR"));
  }
  int job_number = 0;
  (void)absl::SimpleAtoi(reader.Text("SLURM_JOB_ID"), &job_number);
  DT_ASSIGN_OR_RETURN(job.store_port,
                      reader.Integer("MASTER_PORT", 1, 65535, 20000 + job_number % 10000));
  job.torch_agent_store = reader.Text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (job.store_host.empty()) {
    job.store_host = "127.0.0.1";
  }
  return absl::OkStatus();
}

std::string FirstNonEmpty(std::initializer_list<std::string> texts) {
  for (const std::string& text : texts) {
    if (!text.empty()) {
      return text;
    }
  }
  return "";
}

absl::StatusOr<LaunchSource> FindSource(const Reader& reader) {
  if (reader.HasAll({"RANK", "LOCAL_RANK", "WORLD_SIZE"})) {
    return reader.Has(env::kStore) ? LaunchSource::kDtrain : LaunchSource::kTorchrun;
  }
  // Checked before Slurm, because mpirun leaks its daemon's SLURM_*.
  if (reader.Has("OMPI_COMM_WORLD_RANK")) {
    return LaunchSource::kOpenMpi;
  }
  if (reader.HasAll({"PMI_RANK", "MPI_LOCALRANKID"})) {
    return LaunchSource::kMpich;
  }
  if (reader.HasAll({"SLURM_STEP_ID", "SLURM_PROCID"})) {
    return LaunchSource::kSlurm;
  }
  if (reader.HasAll({"PMI_RANK", "PMI_SIZE"})) {
    return LaunchSource::kPmi;
  }
  int tasks = 0;
  if (reader.Has("SLURM_JOB_ID") && !reader.Has("SLURM_STEP_ID") &&
      absl::SimpleAtoi(reader.Text("SLURM_NTASKS"), &tasks) && tasks > 1) {
    return absl::FailedPreconditionError(
        absl::StrFormat("this is a Slurm batch script for %d tasks, not one of its steps; start "
                        "the program with srun or dtrain launch",
                        tasks));
  }
  if (reader.HasAll({"RANK", "WORLD_SIZE"})) {
    return absl::FailedPreconditionError(
        "RANK and WORLD_SIZE are set without LOCAL_RANK, so they may count nodes instead of ranks; "
        "start the program with dtrain launch, or set LOCAL_RANK too");
  }
  return LaunchSource::kAlone;
}

}  // namespace

const char* LaunchSourceName(LaunchSource source) {
  switch (source) {
    case LaunchSource::kAlone:
      return "alone";
    case LaunchSource::kDtrain:
      return "dtrain launch";
    case LaunchSource::kTorchrun:
      return "torchrun";
    case LaunchSource::kOpenMpi:
      return "Open MPI";
    case LaunchSource::kMpich:
      return "MPICH";
    case LaunchSource::kSlurm:
      return "Slurm";
    case LaunchSource::kPmi:
      return "PMI";
  }
  return "?";
}

Environment ReadEnvironment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (const char* const equals = std::strchr(*entry, '=')) {
      environment.emplace(std::string(*entry, static_cast<size_t>(equals - *entry)), equals + 1);
    }
  }
  return environment;
}

std::string PluginDirectory(const Environment& environment) {
  return Reader(environment).Text(env::kPluginDirectory);
}

std::string LogLevelName(const Environment& environment) {
  return Reader(environment).Text(env::kLogLevel);
}

bool WantsBacktrace(const Environment& environment) {
  const std::string text = Reader(environment).Text(env::kBacktrace);
  return !text.empty() && text != "0";
}

bool TerminalIsDumb(const Environment& environment) {
  return Reader(environment).Text("TERM") == "dumb";
}

bool TunesHeap(const Environment& environment) {
  return std::any_of(environment.begin(), environment.end(), [](const auto& variable) {
    return !variable.second.empty() &&
           (absl::StartsWith(variable.first, "MALLOC_") || variable.first == "GLIBC_TUNABLES");
  });
}

bool ThreadsAreChosen(const Environment& environment) {
  return !Reader(environment).Text("OMP_NUM_THREADS").empty();
}

bool AllocatorIsConfigured(const Environment& environment) {
  const Reader reader(environment);
  return !reader.Text("PYTORCH_ALLOC_CONF").empty() ||
         !reader.Text("PYTORCH_CUDA_ALLOC_CONF").empty();
}

bool IsReserve(const Environment& environment) {
  return Reader(environment).Text(env::kReuse) == env::kReserveProcess;
}

absl::StatusOr<JobEnv> ResolveJobEnv(const Environment& environment) {
  const Reader reader(environment);
  JobEnv job;
  if (!IsReserve(environment)) {
    DT_ASSIGN_OR_RETURN(job.source, FindSource(reader));
  }
  switch (job.source) {
    case LaunchSource::kDtrain:
    case LaunchSource::kTorchrun: {
      DT_RETURN_IF_ERROR(
          ReadRanks(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, job));
      DT_ASSIGN_OR_RETURN(job.node_rank, reader.Integer("GROUP_RANK", 0, 1 << 20, 0));
      break;
    }
    case LaunchSource::kOpenMpi:
      DT_RETURN_IF_ERROR(ReadRanks(reader,
                                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                   job));
      job.node_rank = -1;
      break;
    case LaunchSource::kMpich:
      DT_RETURN_IF_ERROR(
          ReadRanks(reader, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, job));
      job.node_rank = -1;
      break;
    case LaunchSource::kSlurm:
      DT_RETURN_IF_ERROR(ReadSlurm(reader, job));
      break;
    case LaunchSource::kPmi:
      DT_RETURN_IF_ERROR(ReadRanks(reader, {"PMI_RANK", "PMI_SIZE", "", ""}, job));
      job.local_world_size = 0;
      job.node_rank = -1;
      break;
    case LaunchSource::kAlone:
      break;
  }
  if (job.source != LaunchSource::kAlone) {
    DT_RETURN_IF_ERROR(ReadMeetingPoint(reader, job));
  }
  DT_ASSIGN_OR_RETURN(job.attempt, reader.Integer(env::kAttempt, 0, 1 << 20, 0));
  if (!reader.Has(env::kAttempt)) {
    const char* const restarts =
        job.source == LaunchSource::kSlurm ? "SLURM_RESTART_COUNT" : "TORCHELASTIC_RESTART_COUNT";
    DT_ASSIGN_OR_RETURN(job.attempt, reader.Integer(restarts, 0, 1 << 20, 0));
  }
  DT_ASSIGN_OR_RETURN(const int begins_job,
                      reader.Integer(env::kBeginsJob, 0, 1, job.attempt == 0 ? 1 : 0));
  job.begins_job = begins_job == 1;
  DT_ASSIGN_OR_RETURN(job.token_fd, reader.Integer(env::kTokenFd, 3, 1 << 20, -1));
  job.token_file = reader.Text(env::kTokenFile);
  // torchrun without --rdzv-id calls every run "none".
  const std::string torch_id = reader.Text("TORCHELASTIC_RUN_ID");
  job.run_id = FirstNonEmpty({reader.Text(env::kRunId), torch_id == "none" ? "" : torch_id,
                              reader.Text("OMPI_MCA_ess_base_jobid"), reader.Text("SLURM_JOB_ID")});
  job.run_dir = reader.Text(env::kRunDir);
  job.agent_socket = reader.Text(env::kAgentSocket);
  job.reuse = IsReserve(environment) || reader.Text(env::kReuse) == "1";
  job.host_address = reader.Text(env::kHost);
  job.node_id = reader.Text(env::kNodeId);
  job.rdma_device = reader.Text(env::kRdmaDevice);
  return job;
}

}  // namespace dtrain
