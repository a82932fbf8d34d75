// Says which part of one tensor's storage LibTorch's operations are about to read, and when they
// are over: how weights come when they are needed without hooks in the user's module.
//
// It listens to LibTorch's record functions, as profilers do: they see the inputs of every
// operation, in forward and in backward, views of the storage included, on every thread. Code that
// reads memory without an operation is not seen unless it announces itself with RECORD_FUNCTION and
// its inputs, as dtrain's fused operations do. About 0.2 us an operation.
#pragma once

#include <cstdint>

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
  ~StorageObserver();
  StorageObserver(const StorageObserver&) = delete;
  StorageObserver& operator=(const StorageObserver&) = delete;

 private:
  const Listener* listener_;
};

}  // namespace dtrain
