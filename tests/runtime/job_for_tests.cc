#include "tests/runtime/job_for_tests.h"

#include <cstdlib>
#include <filesystem>

#include "base/check.h"
#include "base/status.h"
#include "comm/group.h"
#include "runtime/job/job_state.h"

namespace dtrain::testing {

TempFolder::TempFolder() {
  char name[] = "/tmp/dtrain-test-XXXXXX";
  DT_CHECK(mkdtemp(name) != nullptr);
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<std::unique_ptr<Job>> MakeTestJob(const TestJobOptions& options) {
  auto state = std::make_unique<Job::State>();
  if (options.rank != nullptr) {
    state->env.rank = options.rank->rank;
    state->env.world_size = options.rank->size;
    state->env.local_world_size = options.rank->size;
  }
  state->run_dir = options.run_dir;
  state->run_id = "test";
  DT_ASSIGN_OR_RETURN(state->config,
                      Config::Parse("{}", "(test)", options.overrides, state->env.world_size));
  comm::GroupOptions group;
  if (options.rank != nullptr) {
    group = options.rank->group_options();
    group.name = options.group;
    group.deterministic = state->config->deterministic();
    group.allow_shared_memory = state->config->comm_network().transport != "tcp";
    group.network = comm::Network::kTcp;
  }
  DT_ASSIGN_OR_RETURN(
      state->group,
      comm::CreateHostGroup(options.rank == nullptr ? nullptr : options.rank->store, group));
  state->store = options.rank == nullptr ? nullptr : options.rank->store;
  DT_ASSIGN_OR_RETURN(state->metrics, Metrics::Open({.directory = options.run_dir + "/metrics",
                                                     .rank = state->env.rank}));
  return Job::FromState(std::move(state));
}

}  // namespace dtrain::testing
