#include "checkpoint/journal/journal.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/restore/lineage.h"

namespace dtrain::checkpoint {

absl::StatusOr<int> SegmentWorldSize(Storage& storage, const StepId& id) {
  DT_ASSIGN_OR_RETURN(const auto entries, storage.List(SegmentFolder(id)));
  for (const Storage::Entry& entry : entries) {
    const auto file = SegmentFile::FromPath(absl::StrCat(SegmentFolder(id), "/", entry.name));
    if (file.has_value()) {
      return file->world_size;
    }
  }
  return absl::NotFoundError(
      absl::StrCat(storage.DisplayName(SegmentFolder(id)), " holds no file of a rank"));
}

namespace {

absl::StatusOr<Journal::Files> OpenFiles(Storage& storage, const StepId& id) {
  DT_ASSIGN_OR_RETURN(const int world_size, SegmentWorldSize(storage, id));
  Journal::Files files;
  for (int rank = 0; rank < world_size; ++rank) {
    DT_ASSIGN_OR_RETURN(auto file, SegmentReader::Open(storage, {id, rank, world_size}));
    files.push_back(std::move(file));
  }
  return files;
}

SegmentSummary Summary(const StepId& id, const Journal::Files& files) {
  SegmentSummary summary{.id = id,
                         .attempt_base = files[0]->header().attempt_base,
                         .last = std::numeric_limits<int64_t>::max()};
  for (const auto& file : files) {
    summary.last = std::min(summary.last, file->last());
  }
  return summary;
}

}  // namespace

std::vector<ChainLink> ChainFrom(const StepId& from, std::vector<SegmentSummary> segments) {
  std::sort(segments.begin(), segments.end(),
            [](const SegmentSummary& a, const SegmentSummary& b) { return a.id > b.id; });
  std::vector<ChainLink> chain;  // Backwards.
  int64_t limit = kStepMax;      // A newer segment has the steps behind it.
  for (size_t i = 0; i < segments.size() && segments[i].id.epoch >= from.epoch; ++i) {
    const SegmentSummary& segment = segments[i];
    const int64_t first = std::max(segment.id.step, from.step) + 1;
    const int64_t last = std::min(segment.last, limit);
    if (first <= last) {
      chain.push_back({segment.id, first, last});
    }
    // Within an attempt the next segment takes over at its base; the attempt before ends where this
    // one began, whatever is left of this one's segments.
    const bool same_attempt_before =
        i + 1 < segments.size() && segments[i + 1].id.epoch == segment.id.epoch;
    limit = std::min(limit, same_attempt_before ? segment.id.step : segment.attempt_base);
  }
  std::reverse(chain.begin(), chain.end());
  int64_t next = from.step + 1;
  size_t links = 0;
  while (links < chain.size() && chain[links].first == next) {
    next = chain[links].last + 1;
    ++links;
  }
  chain.resize(links);
  return chain;
}

absl::StatusOr<std::vector<StepId>> ListSegments(Storage& storage) {
  const auto entries = storage.List(kJournalFolder);
  std::vector<StepId> ids;
  if (absl::IsNotFound(entries.status())) {
    return ids;
  }
  DT_RETURN_IF_ERROR(entries.status());
  for (const Storage::Entry& entry : *entries) {
    if (const auto id = StepId::FromDirectoryName(entry.name); id && entry.is_directory) {
      ids.push_back(*id);
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

absl::StatusOr<Journal> Journal::Open(Storage& storage, const StepId& from) {
  Journal journal(from);
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> ids, ListSegments(storage));
  std::vector<SegmentSummary> summaries;
  for (const StepId& id : ids) {
    if (id.epoch < from.epoch) {
      continue;
    }
    absl::StatusOr<Files> files = OpenFiles(storage, id);
    if (!files.ok()) {
      DT_LOG(Warning) << "the journal of " << id.ToString()
                      << " is not used: " << files.status().message();
      journal.is_whole_ = false;
      continue;
    }
    journal.is_whole_ =
        journal.is_whole_ && std::all_of(files->begin(), files->end(),
                                         [](const auto& file) { return file->end().ok(); });
    summaries.push_back(Summary(id, *files));
    journal.segments_[id] = *std::move(files);
  }
  journal.chain_ = ChainFrom(from, std::move(summaries));
  return journal;
}

const Journal::Files& Journal::FilesOf(int64_t step) const {
  const auto link = std::find_if(chain_.begin(), chain_.end(),
                                 [&](const ChainLink& part) { return step <= part.last; });
  return segments_.at(link->segment);
}

std::vector<StepId> Journal::segments() const {
  std::vector<StepId> ids;
  for (const ChainLink& link : chain_) {
    ids.push_back(link.segment);
  }
  return ids;
}

int64_t Journal::Verify(int part, int parts) const {
  for (const ChainLink& link : chain_) {
    const Files& files = segments_.at(link.segment);
    for (size_t file = static_cast<size_t>(part); file < files.size();
         file += static_cast<size_t>(parts)) {
      if (const absl::Status durable = files[file]->MakeDurable(); !durable.ok()) {
        DT_LOG(Warning) << "the journal counts up to step " << link.first - 1 << ": "
                        << durable.message();
        return link.first - 1;
      }
    }
  }
  for (int64_t step = from_.step + 1; step <= last(); ++step) {
    const Files& files = FilesOf(step);
    for (size_t file = static_cast<size_t>(part); file < files.size();
         file += static_cast<size_t>(parts)) {
      if (const absl::Status whole = files[file]->Verify(step); !whole.ok()) {
        DT_LOG(Warning) << "the journal counts up to step " << step - 1 << ": " << whole.message();
        return step - 1;
      }
    }
  }
  return last();
}

bool Journal::CanGoOn(int64_t step) const {
  const Files& files = FilesOf(step);
  return std::all_of(files.begin(), files.end(),
                     [&](const auto& file) { return file->has_after(step); });
}

void Journal::CutTo(int64_t step) {
  while (!chain_.empty() && (last() > step || !CanGoOn(last()))) {
    if (--chain_.back().last < chain_.back().first) {
      chain_.pop_back();
    }
  }
}

absl::Status RemoveSegmentsBefore(Storage& storage, const StepId& id) {
  DT_ASSIGN_OR_RETURN(const EpochMap epochs, ReadEpochs(storage));
  // The attempt that began anew; what is older is another run's. One whose record is damaged may be
  // it.
  int64_t fresh = 0;
  for (const auto& [epoch, record] : epochs) {
    if (epoch <= id.epoch && (!record.has_value() || !record->resumed_from.has_value())) {
      fresh = epoch;
    }
  }
  DT_ASSIGN_OR_RETURN(const std::vector<StepId> ids, ListSegments(storage));
  absl::Status first;
  for (const StepId& segment : ids) {
    if (segment.epoch >= fresh && segment < id) {
      first.Update(RemoveTree(storage, SegmentFolder(segment)));
    }
  }
  return first;
}

}  // namespace dtrain::checkpoint
