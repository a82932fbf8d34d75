// The report about a failed attempt: which rank was first, why, what the others did, and what is
// left of them. The report's content is a pure function of the facts; docs/FAILURES.md has its
// schema.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/json.h"
#include "launcher/ranks/process_sample.h"
#include "launcher/ranks/rank_end.h"
#include "launcher/records/kernel_log.h"

namespace dtrain::launcher {

// The files and lines that a rank of this node left behind.
struct RankRemains {
  int rank = 0;
  std::vector<std::string> stderr_lines;  // The last ones of this attempt.
  std::vector<std::string> stack;         // stack_text.h.
  std::vector<ThreadPlace> threads;       // When a hang was found.
  Json collectives = Json::array();       // The last ones of its flight record.
  std::vector<GroupProgress> progress;    // By its last beats.
  Json metrics = Json::object();          // Those of its last step.
};

struct PostMortemFacts {
  std::string run_id;
  int attempt = 0;
  int node = 0;
  int world_size = 1;
  int exit_code = 0;
  absl::Time time;
  absl::Status error;              // A rank could not be started, or a node was lost.
  std::vector<RankEnd> ends;       // Those of this node's ranks, and other nodes' failures.
  const RankEnd* cause = nullptr;  // One of them; null: `error` explains it.
  std::vector<RankRemains> ranks;
  std::vector<KernelMessage> kernel;
  std::string kernel_unreadable;  // Why the kernel's messages are not known; "": they are.
  // Processes that the kernel has killed in the memory cgroup of this node's ranks, in the attempt.
  int64_t oom_kills = 0;
};

// What the kernel did to the first rank, if it killed it because memory ran out; "": it did not.
std::string WhyKilled(const PostMortemFacts& facts);

// The whole report.
Json PostMortemJson(const PostMortemFacts& facts);
// The same for people.
std::string PostMortemText(const Json& report);

// The place of the files, and where to look for what ranks left.
struct PostMortemPlace {
  std::string run_dir;
  std::string log_dir;  // The attempt's; it has the reports as well.
  absl::Time started;   // The attempt's start: older remains are not its own.
};

// Fills `collectives`, `metrics` and `stack` of `remains`, whose rank and lines are known.
void ReadRemains(const PostMortemPlace& place, int attempt, RankRemains& remains);

// Writes report.json and report.txt (on other nodes than the first report-node-N.*) into the run
// directory, and the same into the attempt's logs. Gives the path of the JSON file.
absl::StatusOr<std::string> WritePostMortem(const PostMortemPlace& place,
                                            const PostMortemFacts& facts);

}  // namespace dtrain::launcher
