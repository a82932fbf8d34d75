// The groups that `dtrain bench comm` measures, by name.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/tools/bench_memory.h"
#include "comm/tools/bench_options.h"

namespace dtrain::comm {

// What a rank has of a backend. Members end in reverse order.
struct BenchBackend {
  std::string name;
  std::string limit_name;          // What Limits measures: "memory copy", "one link"...
  bool limit_is_link = false;      // Else it is a copy within the memory.
  std::shared_ptr<Group> control;  // Over shared memory: barriers and the slowest rank's time.
  std::unique_ptr<Group> group;
  std::unique_ptr<BenchMemory> memory;
};

// OK, or why this host does not have one of the plan's backends, by name. For a process of its own:
// it opens CUDA, which no fork outlives.
absl::Status CheckBackends(const BenchPlan& plan);

// Collective and blocking. `control`: of all ranks; null when there is one.
absl::StatusOr<BenchBackend> OpenBackend(const std::string& name, const BenchPlan& plan,
                                         const GroupOptions& base, Store& store,
                                         std::shared_ptr<Group> control);

}  // namespace dtrain::comm
