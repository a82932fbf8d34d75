#include "comm/symmetric_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/shared_mapping.h"

namespace dtrain::comm {

absl::StatusOr<std::shared_ptr<SymmetricBuffer>> SymmetricBuffer::Create(size_t bytes,
                                                                         absl::string_view name) {
  // An empty buffer still has an address, so that views of zero elements need no special case.
  const size_t mapped = std::max<size_t>(bytes, 1);
  DT_RETURN_IF_ERROR(CheckMemory(mapped, name));
  DT_ASSIGN_OR_RETURN(UniqueFd fd, CreateSharedSegment(mapped, name));
  DT_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::Map(fd.get(), mapped, name));
  DT_RETURN_IF_ERROR(ReserveMemory(mapping, fd.get(), name));
  return std::shared_ptr<SymmetricBuffer>(
      new SymmetricBuffer(std::move(fd), std::move(mapping), bytes, std::string(name)));
}

SymmetricBuffer::SymmetricBuffer(UniqueFd fd, SharedMapping mapping, size_t bytes, std::string name)
    : fd_(std::move(fd)), mapping_(std::move(mapping)), bytes_(bytes), name_(std::move(name)) {}

}  // namespace dtrain::comm
