// Trainings whose ranks are on several hosts, each a folder with a disk and a memory of its own
// (checkpoint.local_dir and checkpoint.replicas): what tests of lost hosts share.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain::testing::hosts {

struct Training {
  std::vector<int> hosts = {0, 1};  // By rank.
  std::vector<std::string> overrides = {"checkpoint.replicas=1"};
  int64_t until = 6;
  bool ends = true;  // False: the ranks are gone behind the last step, as if they were killed.
};

// Who loses what.
struct LostHost {
  const char* name;
  std::vector<int> hosts;
  int lost;
};

// Trains, saving every second step unless overridden; gives the ranks' ends.
std::vector<absl::Status> Train(const std::string& folder, const Training& training);

// Folders of a run in `folder`.
std::string HostFolder(const std::string& folder, int host);
std::string Disk(const std::string& folder, int host);
std::string Memory(const std::string& folder, int host);
std::string Shared(const std::string& folder);

// Every file of the checkpoint of `step` in the shared folder, but for its manifest.
std::map<std::string, std::string> LastFiles(const std::string& folder, int64_t step);
// Trains 8 steps without a loss, and gives the files that are left.
std::map<std::string, std::string> Straight(const std::vector<int>& hosts,
                                            const std::vector<std::string>& overrides = {
                                                "checkpoint.replicas=1"});

// The records of rank 0's metrics that hold `text`.
std::vector<Json> Records(const std::string& folder, absl::string_view text);
// The step behind which the last training began.
int64_t Resumed(const std::string& folder);
// Names below a folder, those of folders too.
std::vector<std::string> Below(const std::string& folder);
void LoseSharedStep(const std::string& folder, int64_t step);
// The path of the one file whose name ends so.
std::string FileBelow(const std::string& folder, absl::string_view end);
// Near the file's end.
void FlipAByte(const std::string& path);

}  // namespace dtrain::testing::hosts
