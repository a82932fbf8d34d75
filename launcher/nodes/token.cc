#include "launcher/nodes/token.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/file.h"
#include "base/status.h"

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

}  // namespace dtrain::launcher
