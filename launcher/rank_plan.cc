#include "launcher/rank_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtrain::launcher {

int JobShape::world_size() const {
  return std::accumulate(ranks_of_node.begin(), ranks_of_node.end(), 0);
}

int JobShape::first_rank() const {
  return std::accumulate(ranks_of_node.begin(), ranks_of_node.begin() + node_rank, 0);
}

std::vector<RankSlot> PlanRanks(const JobShape& shape, const RankPlan& bindings) {
  std::vector<RankSlot> slots;
  for (int local = 0; local < shape.local_world_size(); ++local) {
    RankSlot& slot = slots.emplace_back();
    slot.rank = shape.first_rank() + local;
    slot.local_rank = local;
    if (bindings.ranks.empty()) {
      continue;
    }
    const RankBinding& binding = bindings.ranks.at(static_cast<size_t>(local));
    slot.nic = binding.nic;
    if (!bindings.cores_shared) {
      slot.cpus = binding.cpus;
      slot.cores = binding.cores;
      slot.memory_node = binding.memory_node;
    }
  }
  return slots;
}

std::vector<int> GpuOrder(const RankPlan& bindings) {
  std::vector<int> order;
  for (const RankBinding& rank : bindings.ranks) {
    order.push_back(rank.gpu);
  }
  std::vector<int> own(order.size());
  std::iota(own.begin(), own.end(), 0);
  const bool told = !order.empty() && order.front() >= 0 && !bindings.gpus_shared && order != own;
  return told ? order : std::vector<int>();
}

Environment RankEnvironment(Environment base, const JobShape& shape, const RankSlot& slot) {
  const auto set = [&base](const char* name, const auto& value) {
    base[name] = absl::StrCat(value);
  };
  set("RANK", slot.rank);
  set("WORLD_SIZE", shape.world_size());
  set("LOCAL_RANK", slot.local_rank);
  set("LOCAL_WORLD_SIZE", shape.local_world_size());
  set("GROUP_RANK", shape.node_rank);
  set("GROUP_WORLD_SIZE", shape.ranks_of_node.size());
  set("ROLE_RANK", slot.rank);
  set("ROLE_WORLD_SIZE", shape.world_size());
  set("ROLE_NAME", shape.role);
  set("MASTER_ADDR", shape.master_address);
  set("MASTER_PORT", shape.master_port);
  set("TORCHELASTIC_RUN_ID", shape.run_id);
  set("TORCHELASTIC_RESTART_COUNT", shape.attempt);
  set("TORCHELASTIC_MAX_RESTARTS", shape.restarts_max);
  // The agent serves no torch store on MASTER_PORT: rank 0 of a torch program opens it itself.
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  if (base.count("OMP_NUM_THREADS") == 0) {
    set("OMP_NUM_THREADS", std::max(1, slot.cores));
  }
  if (!slot.nic.empty() && base.count(env::kRdmaDevice) == 0) {
    set(env::kRdmaDevice, slot.nic);
  }
  base.insert(shape.network.begin(), shape.network.end());  // Only what is not set yet.
  if (!shape.gpu_order.empty() && base.count("CUDA_VISIBLE_DEVICES") == 0) {
    set("CUDA_VISIBLE_DEVICES", absl::StrJoin(shape.gpu_order, ","));
    set("CUDA_DEVICE_ORDER", "PCI_BUS_ID");  // NVML's order, in which the plan numbers GPUs.
  }
  set(env::kRunId, shape.run_id);
  set(env::kRunDir, shape.run_dir);
  set(env::kAttempt, shape.attempt);
  set(env::kBeginsJob, shape.begins_job ? 1 : 0);
  set(env::kStore, shape.store);
  set(env::kTokenFd, shape.token_fd);
  set(env::kAgentSocket, shape.agent_socket);
  set(env::kNodeId, shape.node_id);
  base.erase(env::kReuse);
  if (shape.reuse) {
    set(env::kReuse, 1);
  }
  base.erase(env::kTokenFile);  // Ranks get the token by descriptor alone.
  if (!shape.host_address.empty()) {
    set(env::kHost, shape.host_address);
  }
  return base;
}

std::vector<std::string> EnvironmentEntries(const Environment& environment) {
  std::vector<std::string> entries;
  entries.reserve(environment.size());
  for (const auto& [name, value] : environment) {
    entries.push_back(absl::StrCat(name, "=", value));
  }
  return entries;
}

std::string FormatCpus(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) {
      ++last;
    }
    absl::StrAppend(&text, text.empty() ? "" : ",", cpus[i]);
    if (last > i) {
      absl::StrAppend(&text, "-", cpus[last]);
    }
    i = last + 1;
  }
  return text;
}

}  // namespace dtrain::launcher
