// Says which part of one tensor's storage LibTorch's operations are about to read, and when they
// are over: how weights come when they are needed without hooks in the user's module.
//
// It listens to LibTorch's record functions, as profilers do: they see the inputs of every
// operation, in forward and in backward, views of the storage included, on every thread. Code that
// reads memory without an operation is not seen unless it announces itself with RECORD_FUNCTION and
// its inputs, as dtrain's fused operations do. About 0.2 us an operation.
//
// It also keeps, by thread, what an operation read last of all watched storages and whether that
// operation threw: how an error names the parameters that it came from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"

namespace dtrain {

class StorageObserver {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    // An operation is about to read elements [begin, end) of the storage. May block; any thread.
    virtual void BeforeRead(int64_t begin, int64_t end) = 0;
    // It is over; once for each BeforeRead.
    virtual void AfterRead(int64_t begin, int64_t end) = 0;
  };

  // Listens until destroyed, which BeforeRead may do. REQUIRES: `listener` outlives it, and the
  // operations on the storage that are under way then: it hears of their end.
  StorageObserver(const at::Tensor& tensor, Listener& listener);
  // Calls nobody: for the LastRead of the storages of `tensors`.
  explicit StorageObserver(const std::vector<at::Tensor>& tensors);
  ~StorageObserver();
  StorageObserver(const StorageObserver&) = delete;
  StorageObserver& operator=(const StorageObserver&) = delete;
};

// The read of that operation of a thread which ended last among those that read watched storages:
// the outer one of nested operations, or the innermost one that threw.
struct LastRead {
  struct Range {
    const c10::StorageImpl* storage = nullptr;  // An address to compare with: it may be freed.
    int64_t begin = 0;                          // Bytes.
    int64_t end = 0;
  };
  static constexpr size_t kRangesMax = 4;

  std::array<Range, kRangesMax> ranges = {};
  size_t count = 0;            // Ranges; 0: nothing was read since ForgetLastRead.
  size_t more = 0;             // Tensors beyond those.
  const char* thrown_by = "";  // The operation, if it threw and none began after it.
};

// The last read of the calling thread.
const LastRead& LastReadOfThread();
void ForgetLastRead();

}  // namespace dtrain
