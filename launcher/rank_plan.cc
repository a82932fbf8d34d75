#include "launcher/rank_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace dtrain::launcher {

int JobShape::world_size() const {
  return std::accumulate(ranks_of_node.begin(), ranks_of_node.end(), 0);
}

int JobShape::first_rank() const {
  return std::accumulate(ranks_of_node.begin(), ranks_of_node.begin() + node_rank, 0);
}

std::vector<std::vector<int>> SplitCpus(const std::vector<int>& cpus, int ranks) {
  const auto blocks = static_cast<size_t>(ranks);
  std::vector<std::vector<int>> split(blocks);
  if (cpus.size() < blocks) {
    return split;
  }
  for (size_t i = 0; i < blocks; ++i) {
    const auto first = cpus.begin() + static_cast<ptrdiff_t>(i * cpus.size() / blocks);
    const auto last = cpus.begin() + static_cast<ptrdiff_t>((i + 1) * cpus.size() / blocks);
    split[i].assign(first, last);
  }
  return split;
}

std::vector<RankSlot> PlanRanks(const JobShape& shape, const std::vector<int>& cpus) {
  const std::vector<std::vector<int>> blocks = SplitCpus(cpus, shape.local_world_size());
  std::vector<RankSlot> slots;
  for (int local = 0; local < shape.local_world_size(); ++local) {
    slots.push_back({shape.first_rank() + local, local, blocks[static_cast<size_t>(local)]});
  }
  return slots;
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
  // Nobody serves a torch store on MASTER_PORT: rank 0 of a torch program opens it itself.
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  if (base.count("OMP_NUM_THREADS") == 0) {
    set("OMP_NUM_THREADS", std::max<size_t>(1, slot.cpus.size()));
  }
  set(env::kRunId, shape.run_id);
  set(env::kRunDir, shape.run_dir);
  set(env::kAttempt, shape.attempt);
  set(env::kStore, shape.store);
  set(env::kTokenFd, shape.token_fd);
  set(env::kAgentSocket, shape.agent_socket);
  set(env::kNodeId, shape.node_id);
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
