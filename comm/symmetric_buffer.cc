#include "comm/symmetric_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/shared_mapping.h"

namespace dtrain::comm {

namespace {

absl::StatusOr<SharedSegment> Allocate(size_t bytes, absl::string_view name) {
  if (bytes >= kHugePageBytes) {
    if (auto huge = CreateHugeSegment(bytes, name); huge.ok()) {
      return huge;
    }
  }
  // The pool's pages are not counted as available memory.
  DT_RETURN_IF_ERROR(CheckMemory(bytes, name));
  DT_ASSIGN_OR_RETURN(UniqueFd fd, CreateSharedSegment(bytes, name));
  DT_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::Map(fd.get(), bytes, name));
  DT_RETURN_IF_ERROR(ReserveMemory(mapping, fd.get(), name));
  return SharedSegment{std::move(fd), std::move(mapping)};
}

}  // namespace

absl::StatusOr<std::shared_ptr<SymmetricBuffer>> SymmetricBuffer::Create(size_t bytes,
                                                                         absl::string_view name) {
  // An empty buffer still has an address, so that views of zero elements need no special case.
  DT_ASSIGN_OR_RETURN(SharedSegment segment, Allocate(std::max<size_t>(bytes, 1), name));
  return std::shared_ptr<SymmetricBuffer>(new SymmetricBuffer(
      std::move(segment.fd), std::move(segment.mapping), bytes, std::string(name)));
}

SymmetricBuffer::SymmetricBuffer(UniqueFd fd, SharedMapping mapping, size_t bytes, std::string name)
    : fd_(std::move(fd)), mapping_(std::move(mapping)), bytes_(bytes), name_(std::move(name)) {}

}  // namespace dtrain::comm
