#include "tests/runtime/testing/job_for_tests.h"

#include <cstdlib>
#include <filesystem>

#include "ATen/Context.h"
#include "base/check.h"
#include "base/status.h"
#include "comm/group.h"
#include "runtime/job/gather_texts.h"
#include "runtime/job/group_options.h"
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
  // Tests count on every save that comes due, which one that is still being written would skip.
  DT_ASSIGN_OR_RETURN(state->config, Config::Parse(R"({"checkpoint": {"async": false}})", "(test)",
                                                   options.overrides, state->env.world_size));
  at::globalContext().setDeterministicAlgorithms(state->config->deterministic(), true);
  comm::GroupOptions group = GroupOptionsFrom(*state->config);
  if (options.rank != nullptr) {
    const comm::GroupOptions cluster = options.rank->group_options();
    group.rank = cluster.rank;
    group.size = cluster.size;
    group.name = options.group;
    group.node_id = cluster.node_id;
    group.host_address = cluster.host_address;
    group.job_key = cluster.job_key;
    if (state->config->OriginOf("comm.timeout_s") == ConfigOrigin::kDefault) {
      group.timeout = group.connect_timeout = cluster.timeout;  // A hang is to end in the test.
    }
  }
  DT_ASSIGN_OR_RETURN(
      state->group,
      comm::CreateHostGroup(options.rank == nullptr ? nullptr : options.rank->store, group));
  state->store = options.rank == nullptr ? nullptr : options.rank->store;
  DT_ASSIGN_OR_RETURN(state->metrics,
                      Metrics::Open({.directory = options.run_dir + "/metrics",
                                     .rank = state->env.rank,
                                     .gather = [&group = *state->group](const std::string& mine) {
                                       return GatherTexts(group, mine, Deadline::Infinite());
                                     }}));
  // Its products would count among those that tests count.
  state->measure_products = [](const Config&) { return ProductRates(); };
  return Job::FromState(std::move(state));
}

}  // namespace dtrain::testing
