#include "launcher/cluster/place.h"

#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr int kPlaceNodesMax = 65536;
constexpr int kKubernetesPort = 29500;  // The default of torchrun and of Kubeflow Trainer.
// Slurm's numbers for a batch script, the shell of salloc and their like; steps of srun count from
// 0.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

class PlaceVariables {
 public:
  explicit PlaceVariables(const Environment& environment) : environment_(environment) {}
  bool Has(const char* name) const { return !Text(name).empty(); }
  std::string Text(const char* name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }
  absl::StatusOr<PlaceNumber> Number(const char* name, int low, int high) const {
    PlaceNumber number;
    number.variable = name;
    if (!absl::SimpleAtoi(Text(name), &number.value) || number.value < low || number.value > high) {
      return absl::InvalidArgumentError(
          absl::StrFormat("environment variable %s is \"%s\"; allowed: an integer in [%d, %d]",
                          name, Text(name), low, high));
    }
    return number;
  }

 private:
  const Environment& environment_;
};

using MaybePlace = absl::StatusOr<std::optional<NodePlace>>;

std::string JoinEndpoint(const std::string& host, int port) {
  const bool is_bare_v6 = absl::StrContains(host, ':') && host.front() != '[';
  return is_bare_v6 ? absl::StrFormat("[%s]:%d", host, port) : absl::StrCat(host, ":", port);
}

// `host` and `port`, unless MASTER_ADDR and MASTER_PORT give others; "" without any host.
absl::StatusOr<std::string> EndpointAt(const PlaceVariables& variables, const std::string& host,
                                       int port) {
  if (variables.Has("MASTER_PORT")) {
    DT_ASSIGN_OR_RETURN(const PlaceNumber chosen, variables.Number("MASTER_PORT", 1, 65535));
    port = chosen.value;
  }
  const std::string at = variables.Has("MASTER_ADDR") ? variables.Text("MASTER_ADDR") : host;
  return at.empty() ? "" : JoinEndpoint(at, port);
}

// Whether mpirun started this process: its daemons leak variables of Slurm steps of their own.
bool IsUnderMpi(const PlaceVariables& variables) {
  return variables.Has("OMPI_COMM_WORLD_RANK") ||
         (variables.Has("PMI_RANK") && variables.Has("MPI_LOCALRANKID"));
}

bool IsInStep(const PlaceVariables& variables) {
  int64_t step = 0;
  return absl::SimpleAtoi(variables.Text("SLURM_STEP_ID"), &step) && step >= 0 &&
         step < kFirstSpecialStep;
}

absl::Status CheckOneTaskANode(const PlaceVariables& variables, int nodes) {
  if (!variables.Has("SLURM_STEP_NUM_TASKS")) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const PlaceNumber tasks,
                      variables.Number("SLURM_STEP_NUM_TASKS", 1, 1 << 20));
  if (tasks.value <= nodes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "srun started %d launchers on %d node%s (SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES), but "
      "one a node starts all of its ranks; use: srun --ntasks=%d --ntasks-per-node=1 dtrain launch "
      "--nproc-per-node N ..., or leave srun out",
      tasks.value, nodes, nodes == 1 ? "" : "s", nodes));
}

MaybePlace SlurmPlace(const PlaceVariables& variables) {
  const bool in_step = IsInStep(variables);
  const bool is_counted =
      in_step ? variables.Has("SLURM_STEP_NUM_NODES") : variables.Has("SLURM_JOB_NUM_NODES");
  if (!variables.Has("SLURM_JOB_ID") || !is_counted || IsUnderMpi(variables)) {
    return std::nullopt;
  }
  NodePlace place;
  place.is_slurm = true;
  DT_ASSIGN_OR_RETURN(const PlaceNumber job, variables.Number("SLURM_JOB_ID", 0, INT32_MAX));
  DT_ASSIGN_OR_RETURN(place.nodes,
                      in_step ? variables.Number("SLURM_STEP_NUM_NODES", 1, kPlaceNodesMax)
                              : variables.Number("SLURM_JOB_NUM_NODES", 1, kPlaceNodesMax));
  if (in_step) {
    DT_RETURN_IF_ERROR(CheckOneTaskANode(variables, place.nodes.value));
    DT_ASSIGN_OR_RETURN(place.node_rank,
                        variables.Number("SLURM_NODEID", 0, place.nodes.value - 1));
    place.source = absl::StrFormat("Slurm step %d.%s", job.value, variables.Text("SLURM_STEP_ID"));
  } else {
    place.starts_step = place.nodes.value > 1;
    place.source = absl::StrFormat("Slurm job %d", job.value);
  }
  if (place.nodes.value > 1) {
    DT_ASSIGN_OR_RETURN(const auto hosts,
                        ExpandHostList(in_step ? variables.Text("SLURM_STEP_NODELIST")
                                               : variables.Text("SLURM_JOB_NODELIST")));
    DT_ASSIGN_OR_RETURN(place.endpoint, EndpointAt(variables, hosts.empty() ? "" : hosts.front(),
                                                   20000 + job.value % 10000));
  }
  if (variables.Has("SLURM_GPUS_ON_NODE")) {
    DT_ASSIGN_OR_RETURN(const PlaceNumber gpus,
                        variables.Number("SLURM_GPUS_ON_NODE", 0, kPlaceNodesMax));
    place.gpus = gpus.value;
  }
  if (variables.Has("SLURM_RESTART_COUNT")) {
    DT_ASSIGN_OR_RETURN(const PlaceNumber restarts,
                        variables.Number("SLURM_RESTART_COUNT", 0, 1 << 20));
    place.restarts = restarts.value;
  }
  return place;
}

MaybePlace LeaderWorkerSetPlace(const PlaceVariables& variables) {
  if (!variables.Has("LWS_GROUP_SIZE") || !variables.Has("LWS_WORKER_INDEX")) {
    return std::nullopt;
  }
  NodePlace place;
  place.source = "LeaderWorkerSet";
  DT_ASSIGN_OR_RETURN(place.nodes, variables.Number("LWS_GROUP_SIZE", 1, kPlaceNodesMax));
  DT_ASSIGN_OR_RETURN(place.node_rank,
                      variables.Number("LWS_WORKER_INDEX", 0, place.nodes.value - 1));
  DT_ASSIGN_OR_RETURN(place.endpoint,
                      EndpointAt(variables, variables.Text("LWS_LEADER_ADDRESS"), kKubernetesPort));
  return place;
}

// The pod names of an Indexed Job are JOB-INDEX, and those of a JobSet's jobs
// JOBSET-REPLICATEDJOB-JOBINDEX-INDEX. Gives the part before "-INDEX"; "" for another scheme.
std::string JobOfPod(const std::string& host_name, int index) {
  absl::string_view rest = host_name;
  return absl::ConsumeSuffix(&rest, absl::StrCat("-", index)) ? std::string(rest) : "";
}

// Kubernetes does not tell a pod how many others there are: --nnodes does. A service of the name of
// the Job or JobSet makes pods known to each other as JOB-0.SERVICE.
MaybePlace IndexedJobPlace(const PlaceVariables& variables) {
  if (!variables.Has("JOB_COMPLETION_INDEX")) {
    return std::nullopt;
  }
  NodePlace place;
  place.source = "Indexed Job";
  DT_ASSIGN_OR_RETURN(place.node_rank,
                      variables.Number("JOB_COMPLETION_INDEX", 0, kPlaceNodesMax - 1));
  const std::string job = JobOfPod(variables.Text("HOSTNAME"), place.node_rank.value);
  const std::string job_set = variables.Text("JOBSET_NAME");
  const std::string service = job_set.empty() ? job : job_set;
  DT_ASSIGN_OR_RETURN(
      place.endpoint,
      EndpointAt(variables, job.empty() ? "" : absl::StrCat(job, "-0.", service), kKubernetesPort));
  if (!job_set.empty()) {
    place.source = absl::StrCat("JobSet ", job_set);
    if (!job.empty() && !absl::EndsWith(job, "-0")) {
      place.node_rank.refusal = absl::StrFormat(
          "pod %s belongs to a further job of JobSet %s, whose JOB_COMPLETION_INDEX counts from 0 "
          "again; use one replicated job with replicas: 1 and parallelism: NODES, or give "
          "--node-rank",
          variables.Text("HOSTNAME"), job_set);
    }
  }
  return place;
}

// PyTorchJob counts pods in RANK and WORLD_SIZE, and ranks in WORLD_SIZE where it sets PET_NNODES.
MaybePlace PyTorchJobPlace(const PlaceVariables& variables) {
  if (!variables.Has("MASTER_ADDR") || !variables.Has("RANK") || !variables.Has("WORLD_SIZE") ||
      variables.Has("PET_NNODES")) {
    return std::nullopt;
  }
  NodePlace place;
  place.source = "PyTorchJob";
  DT_ASSIGN_OR_RETURN(place.nodes, variables.Number("WORLD_SIZE", 1, kPlaceNodesMax));
  DT_ASSIGN_OR_RETURN(place.node_rank, variables.Number("RANK", 0, place.nodes.value - 1));
  DT_ASSIGN_OR_RETURN(place.endpoint,
                      EndpointAt(variables, variables.Text("MASTER_ADDR"), kKubernetesPort));
  return place;
}

std::string Contradiction(const char* what, const std::string& one, const std::string& other,
                          const char* remedy) {
  return absl::StrFormat("%s: %s contradicts %s; %s", what, one, other, remedy);
}

std::string Assignment(const PlaceNumber& number) {
  return absl::StrFormat("%s=%d", number.variable, number.value);
}

// Takes from `other` what `number` lacks.
void MergeNumber(const char* what, const char* remedy, const PlaceNumber& other,
                 PlaceNumber& number) {
  if (number.value < 0) {
    number = other;
  } else if (other.value >= 0 && other.value != number.value && number.refusal.empty()) {
    number.refusal = Contradiction(what, Assignment(number), Assignment(other), remedy);
  }
}

// The host of "host:port" up to its first dot: a host may be named with and without its domain.
std::string ShortHost(const std::string& endpoint) {
  const std::string host = endpoint.substr(0, endpoint.rfind(':'));
  return host.substr(0, host.find('.'));
}

// Whether `host` is an address, which may belong to a host of any name.
bool IsAddress(const std::string& endpoint) {
  return absl::StartsWith(endpoint, "[") ||
         endpoint.find_first_not_of("0123456789.:") == std::string::npos;
}

bool MayBeOneHost(const std::string& a, const std::string& b) {
  return IsAddress(a) || IsAddress(b) || ShortHost(a) == ShortHost(b);
}

// The bounds of "N" or "LOW:HIGH"; false for other texts, which the check of the flags refuses.
bool ParseBounds(const std::string& text, int& low, int& high) {
  const std::vector<std::string> ends = absl::StrSplit(text, ':');
  return ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &low) &&
         absl::SimpleAtoi(ends.back(), &high);
}

std::string Spelt(const char* flag, const char* variable, const NodeFlags::Flag& given) {
  return given.is_typed ? absl::StrCat(flag, " ", given.value)
                        : absl::StrCat(variable, "=", given.value);
}

absl::Status RefusalOf(const std::string& message) {
  return message.empty() ? absl::OkStatus() : absl::InvalidArgumentError(message);
}

absl::Status FillNodes(const NodePlace& place, NodeFlags::Flag& nodes) {
  int low = 0;
  int high = 0;
  if (place.nodes.value < 0) {
    return absl::OkStatus();
  }
  if (nodes.value.empty()) {
    nodes.value = absl::StrCat(place.nodes.value);
    return RefusalOf(place.nodes.refusal);
  }
  // With MIN:MAX there may be more nodes than MAX: they are spares.
  const bool agrees = !ParseBounds(nodes.value, low, high) ||
                      (low <= place.nodes.value && (place.nodes.value <= high || low < high));
  if (agrees || (nodes.is_typed && !place.is_slurm)) {
    return absl::OkStatus();
  }
  return RefusalOf(Contradiction(
      "number of nodes", Spelt("--nnodes", "PET_NNODES", nodes), Assignment(place.nodes),
      place.is_slurm
          ? "leave it out and ask Slurm for the nodes, or give --standalone to use this node alone"
          : "unset one, or give --nnodes"));
}

absl::Status FillNodeRank(const NodePlace& place, NodeFlags::Flag& rank) {
  if (place.starts_step) {
    return rank.value.empty()
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrFormat(
                     "%s has no meaning here: %s has several nodes, and dtrain launch starts "
                     "itself on all of them; leave it out",
                     Spelt("--node-rank", "PET_NODE_RANK", rank), place.source));
  }
  if (rank.value.empty()) {
    rank.value = place.node_rank.value < 0 ? "" : absl::StrCat(place.node_rank.value);
    return RefusalOf(place.node_rank.refusal);
  }
  int value = 0;
  const bool agrees = place.node_rank.value < 0 || !absl::SimpleAtoi(rank.value, &value) ||
                      value == place.node_rank.value;
  return agrees || rank.is_typed
             ? absl::OkStatus()
             : RefusalOf(Contradiction("node rank", Spelt("--node-rank", "PET_NODE_RANK", rank),
                                       Assignment(place.node_rank),
                                       "unset one, or give --node-rank"));
}

absl::Status FillEndpoint(const NodePlace& place, NodeFlags::Flag& endpoint) {
  if (endpoint.value.empty()) {
    endpoint.value = place.endpoint;
    return RefusalOf(place.endpoint_refusal);
  }
  return endpoint.is_typed || place.endpoint.empty() || MayBeOneHost(endpoint.value, place.endpoint)
             ? absl::OkStatus()
             : RefusalOf(Contradiction("host of node 0", absl::StrCat(endpoint.value, " (PET_*)"),
                                       absl::StrFormat("%s (%s)", place.endpoint, place.source),
                                       "unset one, or give --rdzv-endpoint"));
}

// Takes from `other` what `place` lacks, and notes where they contradict each other.
void MergePlace(const NodePlace& other, NodePlace& place) {
  MergeNumber("number of nodes", "unset one, or give --nnodes", other.nodes, place.nodes);
  MergeNumber("node rank", "unset one, or give --node-rank", other.node_rank, place.node_rank);
  if (place.endpoint.empty()) {
    place.endpoint = other.endpoint;
  } else if (!other.endpoint.empty() && !MayBeOneHost(place.endpoint, other.endpoint)) {
    place.endpoint_refusal = Contradiction(
        "host of node 0", absl::StrFormat("%s (%s)", place.endpoint, place.source),
        absl::StrFormat("%s (%s)", other.endpoint, other.source), "give --rdzv-endpoint");
  }
  absl::StrAppend(&place.source, " and ", other.source);
}

}  // namespace

absl::StatusOr<std::optional<NodePlace>> FindNodePlace(const Environment& environment) {
  const PlaceVariables variables(environment);
  if (variables.Has("RANK") && variables.Has("LOCAL_RANK")) {
    return std::nullopt;
  }
  std::optional<NodePlace> place;
  for (const auto read : {SlurmPlace, LeaderWorkerSetPlace, IndexedJobPlace, PyTorchJobPlace}) {
    DT_ASSIGN_OR_RETURN(const std::optional<NodePlace> other, read(variables));
    if (other.has_value() && place.has_value()) {
      MergePlace(*other, *place);
    } else if (other.has_value()) {
      place = other;
    }
  }
  return place;
}

absl::Status FillFromPlace(const NodePlace& place, NodeFlags& flags) {
  DT_RETURN_IF_ERROR(FillNodes(place, flags.nodes));
  int low = 1;
  int high = 1;
  if (!ParseBounds(flags.nodes.value, low, high) || high <= 1) {
    return absl::OkStatus();  // One node, which needs no number and meets nobody.
  }
  DT_RETURN_IF_ERROR(FillNodeRank(place, flags.node_rank));
  return FillEndpoint(place, flags.endpoint);
}

std::string DescribePlace(const NodePlace& place, int nodes, int node_rank,
                          const std::string& endpoint) {
  return place.starts_step
             ? absl::StrFormat("%s: starts itself on its %d nodes by srun; they meet at %s",
                               place.source, place.nodes.value, endpoint)
             : absl::StrFormat("node %d of %d by %s; nodes meet at %s", node_rank, nodes,
                               place.source, endpoint);
}

}  // namespace dtrain::launcher
