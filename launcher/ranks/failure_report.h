// Tells the people who run a job why an attempt failed: on the console, with the last lines that
// the first failed rank wrote, and in a report in the run directory (records/post_mortem.h). Used
// by the supervisor's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/system/cgroup.h"
#include "launcher/ranks/attempt.h"
#include "launcher/ranks/process_sample.h"
#include "launcher/records/post_mortem.h"
#include "launcher/records/reporter.h"
#include "launcher/watch/rank_view.h"

namespace dtrain::launcher {

class FailureReport {
 public:
  // Made when the attempt begins: what is older is not its own. Both outlive this object.
  FailureReport(const Attempt& attempt, Reporter& reporter);

  // A rank of this node is about to be started.
  void RankStarts(int rank);
  // The job hangs: notes where the threads of this node's ranks are, and asks the ranks to write
  // their stacks. `views`: those of this node's ranks.
  void AskStacks(const std::vector<RankView>& views);
  // The attempt has ended as `result` says; nothing is told of one that did not fail. `said`: the
  // failure that the console has shown.
  void Tell(const AttemptResult& result, const std::string& said,
            const std::vector<RankView>& views) const;

 private:
  struct RankTraces {
    uint64_t err_from = 0;  // Offset in the log at which this attempt's stderr begins.
    std::vector<ThreadPlace> threads;
  };

  void SayCause(const AttemptResult& result, const RankEnd& cause, const std::string& said) const;
  void Write(const AttemptResult& result, const RankEnd* cause,
             const std::vector<RankView>& views) const;
  RankRemains RemainsOf(int rank, const std::vector<RankView>& views) const;
  std::vector<std::string> LogLines(int rank, const std::string& path, size_t lines_max) const;
  bool IsShown(const std::string& error) const;

  const Attempt& attempt_;
  Reporter& reporter_;
  std::map<int, RankTraces> ranks_;  // Those of this node.
  const absl::Time started_;
  const int64_t oom_kills_before_ = OomKills().value_or(0);
};

}  // namespace dtrain::launcher
