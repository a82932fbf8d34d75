// A mapping of an anonymous shared segment, in huge pages where the kernel grants them.
//
// Move-only; the destructor unmaps. The segment itself lives as long as a descriptor or a mapping
// of it in any process, so nothing stays behind after a kill. The functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/system/available_memory.h"
#include "base/unique_fd.h"

namespace dtrain::comm {

class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        of_pool_(std::exchange(other.of_pool_, false)) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(of_pool_, other.of_pool_);
    return *this;
  }
  ~SharedMapping();

  // Maps the segment `fd` of `bytes` for reading and writing, whole huge pages if it consists of
  // them. `what` appears in errors.
  static absl::StatusOr<SharedMapping> Map(int fd, size_t bytes, absl::string_view what);

  char* data() const { return data_; }
  // Bytes mapped; whole huge pages if the segment consists of them.
  size_t bytes() const { return bytes_; }

 private:
  SharedMapping(char* data, size_t bytes, bool of_pool)
      : data_(data), bytes_(bytes), of_pool_(of_pool) {}
  char* data_ = nullptr;
  size_t bytes_ = 0;
  bool of_pool_ = false;
};

// Bytes of mappings that are in huge pages of the host's pool, which the kernel does not count as
// resident in this process.
int64_t MappedPoolBytes();

// A zeroed memfd of `bytes` whose size nobody can change any more (sealed), so that a mapped peer
// cannot be made to fault by truncation. No memory is reserved yet.
absl::StatusOr<UniqueFd> CreateSharedSegment(size_t bytes, absl::string_view name);

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

struct SharedSegment {
  UniqueFd fd;
  SharedMapping mapping;
};
// Creates such a segment of at least `bytes` in whole huge pages of the host's pool
// (vm.nr_hugepages), mapped and backed by memory. An error, with nothing left behind, when the pool
// has too few pages or this process may not take them. The kernel neither swaps nor splits them.
absl::StatusOr<SharedSegment> CreateHugeSegment(size_t bytes, absl::string_view name);

// Whether `fd`, which `peer` passed, is such a segment of exactly `bytes`, or of as many huge pages
// as they fill.
absl::Status CheckSegment(int fd, size_t bytes, absl::string_view peer);

// ResourceExhausted, naming needed and available bytes, when this host or this process's cgroup has
// less than `bytes` left: beyond a cgroup's limit the kernel would kill without a word.
absl::Status CheckMemory(size_t bytes, absl::string_view name);
// The same for given facts, for tests.
absl::Status CheckMemory(size_t bytes, absl::string_view name, const AvailableMemory& memory);

// Backs every page of `mapping` with memory now. ResourceExhausted names needed and available bytes
// when there is not enough: an error here instead of a SIGBUS at first touch.
absl::Status ReserveMemory(const SharedMapping& mapping, int fd, absl::string_view name);

}  // namespace dtrain::comm
