// Whether a storage has room for a checkpoint, asked when a run starts.
#pragma once

#include <cstdint>

#include "checkpoint/storage/storage.h"

namespace dtrain {

// Logs a warning where the next checkpoint, which takes about `bytes`, would find no room.
void WarnOfLittleRoom(checkpoint::Storage& storage, uint64_t bytes);

}  // namespace dtrain
