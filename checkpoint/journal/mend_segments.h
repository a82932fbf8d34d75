// Repairs the step journal where a storage holds several copies of its files, as on the hosts of a
// run: a copy with a damaged record gives way to one that leads further.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/journal/segment_reader.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// Reads every `parts`-th file from `part` on, of the segments that may hold steps behind `from`.
// Where one is damaged or cut short and another copy has more whole steps, the first is logged with
// file and place and removed (Storage::DropDamaged), so that OpenFile gives the other. True: one
// was; who has files of the journal open opens them anew.
absl::StatusOr<bool> MendSegments(Storage& storage, const StepId& from, int part, int parts);

// Reads a copy of a journal's file and gives the bytes up to the end of its last whole record, up
// to which it counts. 0: its header is damaged, or it is another file's.
uint64_t WholeBytes(FileCopy copy, const SegmentFile& which);

// Has the storage copy every `parts`-th file from `part` on of `segments`, where one machine has
// all copies of it, so that the loss of that machine takes no step away. What cannot be copied is
// logged.
void KeepSegments(Storage& storage, const std::vector<StepId>& segments, int part, int parts);

}  // namespace dtrain::checkpoint
