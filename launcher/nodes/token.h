// Hands the job token on: to ranks in an anonymous, sealed file in memory; to this launcher through
// its standard input; and between the launchers of a Slurm step that has no other way, in a file of
// the run directory. The token is in no argument list and no environment value. Thread-safe; the
// caller owns descriptors.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/unique_fd.h"
#include "comm/net/job_key.h"

namespace dtrain::launcher {

// The value of --token-file that names the standard input.
inline constexpr char kTokenOnInput[] = "-";

// A descriptor with the token's 32 bytes that nobody can change any more; close-on-exec.
absl::StatusOr<UniqueFd> TokenDescriptor(const comm::JobKey& key);

// Reads the 32 bytes of the token from the standard input; blocks until `deadline` at most.
// FailedPrecondition: it is a terminal, or has fewer bytes.
absl::StatusOr<comm::JobKey> TokenFromInput(Deadline deadline);

// The token of a job whose launchers were started without one: node 0 makes it and leaves it in a
// file of mode 0600 in the run directory, which all nodes share, until all have joined.
class SharedToken {
 public:
  // `unique` tells this start of the job from others in the same run directory.
  SharedToken(const std::string& run_dir, const std::string& unique);
  // Removes the file, on the node that made it.
  ~SharedToken();
  SharedToken(const SharedToken&) = delete;
  SharedToken& operator=(const SharedToken&) = delete;

  absl::StatusOr<comm::JobKey> Create();
  // Blocks until node 0 has created it, until `deadline` at most. FailedPrecondition says where it
  // was looked for and what to do.
  absl::StatusOr<comm::JobKey> Await(Deadline deadline) const;

 private:
  std::string path_;
  bool created_ = false;
};

}  // namespace dtrain::launcher
