// The groups that `dtrain bench comm` measures, by name. Used by the main thread of each rank.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/tools/bench_memory.h"
#include "comm/tools/bench_options.h"

namespace dtrain::comm {

// One rank's objects of a backend. Members are destroyed in reverse order.
struct BenchBackend {
  std::string name;
  std::string limit_name;          // The limit that is measured: "memory copy", "one link"...
  bool limit_is_link = false;      // False: it is a copy within the memory.
  std::shared_ptr<Group> control;  // Over shared memory: barriers and the slowest rank's time.
  std::unique_ptr<Group> group;
  std::unique_ptr<BenchMemory> memory;
};

// OK, or why this host does not have one of the plan's backends, by name. Run it in a process of
// its own: it opens CUDA, which does not survive a fork.
absl::Status CheckBackends(const BenchPlan& plan);

// Collective and blocking. `control` is a group of all ranks; null if there is only one rank.
absl::StatusOr<BenchBackend> OpenBackend(const std::string& name, const BenchPlan& plan,
                                         const GroupOptions& base, Store& store,
                                         std::shared_ptr<Group> control);

}  // namespace dtrain::comm
