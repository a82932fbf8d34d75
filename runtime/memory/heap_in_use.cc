#include "runtime/memory/heap_in_use.h"

#include <malloc.h>

namespace dtrain {

int64_t HeapBytesInUse() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

}  // namespace dtrain
