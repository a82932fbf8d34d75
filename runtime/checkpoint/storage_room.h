// Whether a storage can take checkpoints, asked when a run starts.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/storage/storage.h"

namespace dtrain {

// Logs a warning where the next checkpoint, which takes about `bytes`, would find no room.
void WarnOfLittleRoom(checkpoint::Storage& storage, uint64_t bytes);

// Tries to write as a save does, and logs what makes writes slower than they could be there.
// Without room it logs a warning, since a save first removes what is old; any other failure is an
// error.
absl::Status ProbeStorage(checkpoint::Storage& storage);

}  // namespace dtrain
