#include "checkpoint/journal/mend_segments.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/device_error.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/work_count.h"
#include "checkpoint/journal/journal.h"
#include "checkpoint/journal/segment_reader.h"

namespace dtrain::checkpoint {
namespace {

// More copies than a file has anywhere.
constexpr size_t kCopiesMax = 8;

// How far the whole records of a copy lead, and why no further; OK: to its end.
struct Reach {
  int64_t step = -1;
  absl::Status end;
};

Reach ReachOf(const absl::StatusOr<std::unique_ptr<SegmentReader>>& reader, int64_t from) {
  if (!reader.ok()) {
    return {.end = reader.status()};
  }
  const SegmentReader& segment = **reader;
  for (int64_t step = std::max(segment.header().id.step, from) + 1; step <= segment.last();
       ++step) {
    if (const absl::Status whole = segment.Verify(step); !whole.ok()) {
      return {step - 1, whole};
    }
  }
  return {segment.last(), segment.end()};
}

// The steps to which the best other copy leads.
int64_t BestOther(Storage& storage, const SegmentFile& file, int64_t from) {
  int64_t best = -1;
  for (size_t copy = 0; copy < kCopiesMax; ++copy) {
    auto other = storage.OpenCopy(SegmentPath(file.id, file.rank, file.world_size), copy);
    if (absl::IsOutOfRange(other.status())) {
      break;
    }
    if (other.ok()) {
      best = std::max(best, ReachOf(SegmentReader::OpenCopy(*std::move(other), file), from).step);
    }
  }
  return best;
}

absl::StatusOr<bool> MendFile(Storage& storage, const SegmentFile& file, int64_t from) {
  for (size_t drops = 0; drops < kCopiesMax; ++drops) {
    const Reach opened = ReachOf(SegmentReader::Open(storage, file), from);
    // Anything else, as a host that cannot be reached, says nothing about this copy.
    if (!absl::IsInvalidArgument(opened.end) && !absl::IsOutOfRange(opened.end) &&
        !IsDeviceError(opened.end)) {
      return drops > 0;
    }
    const int64_t best = BestOther(storage, file, from);
    if (best <= opened.step) {
      return drops > 0;
    }
    DT_ASSIGN_OR_RETURN(const bool dropped,
                        storage.DropDamaged(SegmentPath(file.id, file.rank, file.world_size)));
    if (!dropped) {
      return drops > 0;
    }
    DT_LOG(Warning) << opened.end.message()
                    << "; this copy is removed, and another one, which leads to step " << best
                    << ", is used";
  }
  return true;
}

// Every `parts`-th file from `part` on of each segment.
std::vector<SegmentFile> FilesOf(Storage& storage, const std::vector<StepId>& segments, int part,
                                 int parts) {
  std::vector<SegmentFile> files;
  for (const StepId& id : segments) {
    const absl::StatusOr<int> world_size = SegmentWorldSize(storage, id);
    for (int rank = part; world_size.ok() && rank < *world_size; rank += parts) {
      files.push_back({id, rank, *world_size});
    }
  }
  return files;
}

}  // namespace

absl::StatusOr<bool> MendSegments(Storage& storage, const StepId& from, int part, int parts) {
  DT_ASSIGN_OR_RETURN(std::vector<StepId> segments, ListSegments(storage));
  std::erase_if(segments, [&](const StepId& id) { return id.epoch < from.epoch; });
  bool any = false;
  for (const SegmentFile& file : FilesOf(storage, segments, part, parts)) {
    DT_ASSIGN_OR_RETURN(const bool mended, MendFile(storage, file, from.step));
    any = any || mended;
  }
  return any;
}

uint64_t WholeBytes(FileCopy copy, const SegmentFile& which) {
  const auto reader = SegmentReader::OpenCopy(std::move(copy), which);
  return reader.ok() ? (*reader)->EndOf(ReachOf(reader, which.id.step).step) : 0;
}

void KeepSegments(Storage& storage, const std::vector<StepId>& segments, int part, int parts) {
  for (const SegmentFile& file : FilesOf(storage, segments, part, parts)) {
    const std::string path = SegmentPath(file.id, file.rank, file.world_size);
    if (const absl::Status kept = storage.KeepCopies(path); !kept.ok()) {
      DT_LOG(Warning) << storage.DisplayName(path)
                      << " would not survive the loss of a host: " << kept.message();
    }
    WorkCount::Note();
  }
}

}  // namespace dtrain::checkpoint
