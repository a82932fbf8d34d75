// A Job made of parts: one rank alone, or one of a test cluster's ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dtrain/job.h"
#include "tests/testing/cluster.h"

namespace dtrain::testing {

// A folder that is removed with everything in it when this object dies.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct TestJobOptions {
  std::string run_dir;
  std::vector<std::string> overrides = {"train_batch_size=1"};
  RankContext* rank = nullptr;  // Null: one rank, alone.
  std::string group = "world";  // The name of its group; jobs that share a store need several.
};

absl::StatusOr<std::unique_ptr<Job>> MakeTestJob(const TestJobOptions& options);

}  // namespace dtrain::testing
