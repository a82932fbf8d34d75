#include "launcher/nodes/token.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"
#include "comm/net/await_key.h"

namespace dtrain::launcher {

absl::StatusOr<UniqueFd> TokenDescriptor(const comm::JobKey& key) {
  UniqueFd fd(memfd_create("dtrain-token", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return ErrnoStatus(errno, "memory file for the job token");
  }
  const auto bytes = key.secret_bytes();
  DT_RETURN_IF_ERROR(WriteFully(fd.get(), bytes.data(), bytes.size()));
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    return ErrnoStatus(errno, "sealing the job token");
  }
  return fd;
}

absl::StatusOr<comm::JobKey> TokenFromInput(Deadline deadline) {
  if (isatty(STDIN_FILENO) == 1) {
    return absl::FailedPreconditionError(
        "--token-file - reads 32 bytes from the standard input, which is a terminal; use: dtrain "
        "launch --token-file - ... < FILE");
  }
  comm::SecretKey token;  // It overwrites its bytes when it dies.
  size_t done = 0;
  while (done < comm::SecretKey::kBytes && !deadline.Expired()) {
    pollfd entry = {STDIN_FILENO, POLLIN, 0};
    if (poll(&entry, 1, deadline.PollTimeoutMs()) <= 0) {
      continue;
    }
    const ssize_t got = read(STDIN_FILENO, token.data() + done, comm::SecretKey::kBytes - done);
    if (got == 0 || (got < 0 && errno != EINTR)) {
      break;
    }
    done += got > 0 ? static_cast<size_t>(got) : 0;
  }
  if (done < comm::SecretKey::kBytes) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "--token-file - found %d bytes on the standard input; a job token has 32", done));
  }
  return comm::JobKey::FromBytes(token.bytes());
}

SharedToken::SharedToken(const std::string& run_dir, const std::string& unique)
    : path_(absl::StrCat(run_dir, "/.launch-token-", unique)) {}

SharedToken::~SharedToken() {
  if (created_) {
    unlink(path_.c_str());
  }
}

absl::StatusOr<comm::JobKey> SharedToken::Create() {
  DT_RETURN_IF_ERROR(MakeDirectories(path_.substr(0, path_.rfind('/'))));
  DT_ASSIGN_OR_RETURN(const comm::JobKey key, comm::JobKey::Generate());
  DT_RETURN_IF_ERROR(key.WriteFile(path_));
  created_ = true;
  return key;
}

absl::StatusOr<comm::JobKey> SharedToken::Await(Deadline deadline) const {
  return comm::AwaitKeyFile(
      path_, deadline,
      absl::FailedPreconditionError(absl::StrFormat(
          "no job token: node 0 left none in %s; give a --run-dir that all nodes share, or "
          "--token-file FILE, or leave srun out: dtrain launch starts itself on all nodes of a "
          "Slurm job",
          path_)));
}

}  // namespace dtrain::launcher
