// Runs of dtrain-checkpoint in tests, and checkpoints for it to work on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/json.h"
#include "checkpoint/storage/storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint {

struct ToolRun {
  int code = -1;
  std::string output;  // stdout and stderr, unless stderr is redirected.
  double seconds = 0;
  double cpu_seconds = 0;
  uint64_t memory_bytes = 0;  // The most that it had resident.
};

// Runs the tool with `arguments` as a shell splits them. `user`: the user that it runs as; 0: this
// one.
ToolRun RunTool(const std::string& arguments, const char* stderr_to = "&1", uid_t user = 0);

// The JSON that the tool prints; the run must end with `code`.
Json ToolJson(const std::string& arguments, int code = 0);

// Checks that the tool refuses with `code` after at most a second of a core's time (the machine may
// be busy, and sanitized code is slower), and that one line is all that it prints and holds every
// one of `texts`.
void ExpectRefused(const std::string& arguments, int code, const std::vector<std::string>& texts,
                   uid_t user = 0);

// Names and contents of all files below `folder`, to see that nothing has changed. A link counts as
// its target's path.
std::map<std::string, std::string> Snapshot(const std::string& folder);

// The state of a run whose optimizer states are cut over its ranks, as an engine stores it.
struct ShardedState {
  std::vector<float> weight = std::vector<float>(96);      // Shape [12, 8], in fp32.
  std::vector<uint16_t> bias = std::vector<uint16_t>(40);  // bf16.
  std::vector<float> exp_avg = std::vector<float>(136);    // One an element of the layout.
  Json engine = Json::object();
  std::string layout_hash = "0123456789abcdef";
  std::string config = "{\"model_type\": \"llama\", \"torch_dtype\": \"bfloat16\"}\n";

  // Values that follow from the seed alone.
  static ShardedState Random(uint64_t seed);
};

// Commits `state` as step `step`, written by so many ranks; the cuts differ with their number.
// Gives the path of its folder.
std::string SaveSharded(Storage& storage, const EpochRecord& epoch, int world_size, int64_t step,
                        const ShardedState& state);

// A storage in `path` with one attempt of `job`, and that attempt.
struct RunFolder {
  std::unique_ptr<Storage> storage;
  EpochRecord epoch;
};
RunFolder BeginRun(const std::string& path, const std::string& job = "job");

// A file system of `bytes` bytes. Needs the right to mount, as root in CI has.
class SmallDisk {
 public:
  explicit SmallDisk(size_t bytes);
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk();
  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool mounted_ = false;
};

// Flips a bit of the file's byte at `offset`; counted from its end where it is below 0.
void FlipBit(const std::string& path, int64_t offset);

}  // namespace dtrain::checkpoint
