#include "checkpoint/commit/staged_source.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"

namespace dtrain::checkpoint {
namespace {

void CheckDevice(const std::vector<NamedTensor>& tensors, const StagedLayout::PieceOf& piece_of,
                 const StagingPool& pool) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    DT_CHECK(!piece_of[i].has_value() || !tensors[i].on_device || pool.device() != nullptr)
        << tensors[i].spec.name << " lies on a device that does not copy it";
  }
}

}  // namespace

uint64_t StagedBytes(const SpanSource& snapshot) { return LayOut(snapshot).block_bytes(); }

StagedSource::StagedSource(SpanSource snapshot, StagingPool& pool, uint64_t bytes_per_s)
    : snapshot_(std::move(snapshot)),
      pool_(pool),
      layout_(LayOut(snapshot_)),
      segments_(layout_.segment_bytes.size()),
      ungathered_(layout_.step_begin),
      live_(segments_.size() - ungathered_),
      rate_{bytes_per_s} {
  CheckDevice(snapshot_.model, layout_.model_pieces, pool_);
  CheckDevice(snapshot_.state, layout_.state_pieces, pool_);
  for (size_t i = 0; i < segments_.size(); ++i) {
    segments_[i].unread = layout_.segment_bytes[i];
    if (i < layout_.step_begin) {
      segments_[i].stage = Stage::kUngathered;
      segments_[i].ungathered = layout_.segment_bytes[i];
    }
  }
}

StagedSource::~StagedSource() { Close(); }

void StagedSource::CopyAhead() {
  std::unique_lock lock(mutex_);
  while (CopyOne(lock)) {
  }
}

absl::Status StagedSource::AwaitBlock(Segment& segment, bool may_wait,
                                      std::unique_lock<std::mutex>& lock) {
  while (segment.block == nullptr && segment.stage != Stage::kDone) {
    segment.block = pool_.Take();
    // Without any block no wait would end: the writer frees those that hold what was gathered.
    if (segment.block == nullptr && (!may_wait || pool_.bytes() == 0)) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "there is no memory for a copy of the gathered weights: the blocks that could be made "
          "for checkpoint.staging_memory are %d bytes together",
          pool_.bytes()));
    }
    if (segment.block == nullptr) {
      update_waits_ = true;
      changed_.notify_all();
      changed_.wait(lock);
    }
  }
  update_waits_ = false;
  return absl::OkStatus();
}

absl::Status StagedSource::TakeGathered(size_t model, bool may_wait) {
  if (!layout_.model_pieces[model].has_value()) {
    return absl::OkStatus();
  }
  const StagedLayout::Piece& piece = layout_.pieces[*layout_.model_pieces[model]];
  std::unique_lock lock(mutex_);
  for (uint64_t done = 0; done < piece.bytes.size();) {
    const size_t at = (piece.begin + done) % kSegmentBytes;
    const auto bytes = piece.bytes.subspan(done, kSegmentBytes - at);
    Segment& segment = segments_[(piece.begin + done) / kSegmentBytes];
    DT_RETURN_IF_ERROR(AwaitBlock(segment, may_wait, lock));
    if (segment.stage == Stage::kDone) {  // The save has been given up.
      return absl::OkStatus();
    }
    segment.stage = Stage::kCopying;
    ++live_;
    lock.unlock();
    const BlockPart part{at, bytes};
    absl::Status copied =
        piece.on_device ? pool_.device()->CopyInOrder(absl::MakeConstSpan(&part, 1), segment.block)
                        : CopyHostBytes(bytes, at, segment.block);
    lock.lock();
    --live_;
    done += bytes.size();
    segment.copied.Update(std::move(copied));
    segment.ungathered -= bytes.size();
    if (segment.unread == 0) {  // The save has been given up meanwhile.
      Drop(segment);
    } else if (segment.ungathered > 0) {
      segment.stage = Stage::kUngathered;
    } else {
      segment.stage = Stage::kStaged;
      --ungathered_;
    }
    changed_.notify_all();
  }
  return absl::OkStatus();
}

void StagedSource::EndGathers(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  DT_CHECK(!status.ok() || ungathered_ == 0) << "not all tensors were gathered";
  if (!status.ok()) {
    gather_error_ = status;
    DropUngathered();
    changed_.notify_all();
  }
}

void StagedSource::DropUngathered() {
  ungathered_ = 0;
  for (size_t i = 0; i < layout_.step_begin; ++i) {
    Segment& segment = segments_[i];
    if (segment.stage == Stage::kUngathered && segment.block != nullptr) {
      Drop(segment);
    } else if (segment.stage == Stage::kUngathered) {
      segment.stage = Stage::kDone;
    }
  }
}

bool StagedSource::MayWaitAtStart() const {
  return pool_.is_short_for(layout_.step_end * kSegmentBytes);
}

bool StagedSource::HoldsStep() const {
  const auto is_live = [](const Segment& segment) {
    return segment.stage == Stage::kLive || segment.stage == Stage::kCopying;
  };
  return writes_live_.value_or(layout_.step_end) < layout_.step_end ||
         std::any_of(segments_.begin() + static_cast<std::ptrdiff_t>(layout_.step_begin),
                     segments_.begin() + static_cast<std::ptrdiff_t>(layout_.step_end), is_live);
}

void StagedSource::LetStep(bool may_wait) {
  std::unique_lock lock(mutex_);
  while (HoldsStep()) {
    if (CopyOne(lock) || !HoldsStep()) {
      continue;
    }
    if (!may_wait) {
      return;
    }
    update_waits_ = true;
    changed_.notify_all();
    changed_.wait(lock);
  }
  update_waits_ = false;
}

bool StagedSource::HoldsUpdate() {
  const std::lock_guard lock(mutex_);
  return live_ > 0 || writes_live_.has_value();
}

bool StagedSource::MayWait() {
  const std::lock_guard lock(mutex_);
  return live_ > 0 && pool_.is_short_for(layout_.block_bytes());
}

void StagedSource::LetUpdate() {
  std::unique_lock lock(mutex_);
  while (live_ > 0 || writes_live_.has_value()) {
    if (!CopyOne(lock) && (live_ > 0 || writes_live_.has_value())) {
      update_waits_ = true;
      changed_.notify_all();
      changed_.wait(lock);
    }
  }
  update_waits_ = false;
}

void StagedSource::LiftRate() {
  const std::lock_guard lock(mutex_);
  rate_.is_lifted = true;
  changed_.notify_all();
}

void StagedSource::AwaitTurn(uint64_t bytes) {
  if (rate_.bytes_per_s == 0) {
    return;
  }
  using Steady = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  // Time in which the writer took less is not made up for, nor are bytes that nobody held back.
  rate_.turn = std::max(rate_.turn, Steady::now());
  if (changed_.wait_until(lock, rate_.turn, [this] { return update_waits_ || rate_.is_lifted; })) {
    rate_.turn = Steady::now();
  }
  const std::chrono::duration<double> due(static_cast<double>(bytes) /
                                          static_cast<double>(rate_.bytes_per_s));
  rate_.turn += std::chrono::duration_cast<Steady::duration>(due);
}

void StagedSource::Close() {
  std::unique_lock lock(mutex_);
  DropUngathered();
  for (Segment& segment : segments_) {
    if (segment.stage == Stage::kLive) {
      segment.stage = Stage::kDone;
      --live_;
    }
    segment.unread = 0;  // One that is being copied is dropped when that is done.
    if (segment.stage == Stage::kStaged) {
      Drop(segment);
    }
  }
  writes_live_.reset();  // A sink that threw an exception has not returned.
  changed_.notify_all();
  changed_.wait(lock, [this] { return live_ == 0; });
}

bool StagedSource::FindLive() {
  if (ungathered_ > 0) {  // They need the blocks first: nothing else of them can be written yet.
    return false;
  }
  while (first_live_ < segments_.size() && segments_[first_live_].stage != Stage::kLive) {
    ++first_live_;
  }
  return first_live_ < segments_.size();
}

bool StagedSource::CopyOne(std::unique_lock<std::mutex>& lock) {
  if (!FindLive()) {
    return false;
  }
  lock.unlock();  // A device may take a millisecond to make a block: MayWait does not wait for it.
  std::byte* const block = pool_.Take();
  lock.lock();
  if (block == nullptr) {
    return false;
  }
  if (!FindLive()) {  // The last ones were read where they live meanwhile.
    pool_.Return(block);
    return false;
  }
  const size_t index = first_live_;
  Segment& segment = segments_[index];
  segment.stage = Stage::kCopying;
  segment.block = block;
  lock.unlock();
  absl::Status copied = CopyBytes(index, block);
  lock.lock();
  segment.copied = std::move(copied);
  segment.stage = Stage::kStaged;
  --live_;
  if (segment.unread == 0) {  // The writer has read it where it lives meanwhile.
    Drop(segment);
  }
  changed_.notify_all();
  return true;
}

absl::Status StagedSource::CopyHostBytes(absl::Span<const std::byte> bytes, size_t at,
                                         std::byte* block) const {
  // A save that was given up may have left a device's copies to it under way.
  if (StagingDevice* const device = pool_.device(); device != nullptr) {
    DT_RETURN_IF_ERROR(device->Await(block));
  }
  std::memcpy(block + at, bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status StagedSource::CopyBytes(size_t segment, std::byte* block) const {
  std::vector<BlockPart> on_device;
  for (const StagedLayout::Piece& piece : layout_.PiecesIn(segment)) {
    const size_t at = piece.begin % kSegmentBytes;
    if (piece.on_device) {
      on_device.push_back({at, piece.bytes});
    } else {
      DT_RETURN_IF_ERROR(CopyHostBytes(piece.bytes, at, block));
    }
  }
  if (on_device.empty()) {
    return absl::OkStatus();
  }
  StagingDevice* const device = pool_.device();
  return segment < layout_.step_end ? device->CopyInOrder(on_device, block)
                                    : device->Copy(on_device, block);
}

void StagedSource::Drop(Segment& segment) {
  pool_.Return(segment.block);
  segment.block = nullptr;
  segment.stage = Stage::kDone;
}

absl::Status StagedSource::Give(const NamedTensor& tensor, std::optional<size_t> piece,
                                ByteSink sink) {
  absl::Span<const std::byte> rest = tensor.bytes;
  while (!piece.has_value() && !rest.empty()) {
    const auto bytes = rest.subspan(0, kSegmentBytes);
    AwaitTurn(bytes.size());
    DT_RETURN_IF_ERROR(sink(bytes));
    rest.remove_prefix(bytes.size());
  }
  uint64_t begin = piece.has_value() ? layout_.pieces[*piece].begin : 0;
  while (!rest.empty()) {
    const auto bytes = rest.subspan(0, kSegmentBytes - begin % kSegmentBytes);
    AwaitTurn(bytes.size());
    const auto held = Acquire(begin, bytes, tensor.on_device);
    const absl::Status status = held.ok() ? sink(*held) : held.status();
    Release(begin, bytes.size());
    DT_RETURN_IF_ERROR(status);
    begin += bytes.size();
    rest.remove_prefix(bytes.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const std::byte>> StagedSource::Acquire(uint64_t begin,
                                                                  absl::Span<const std::byte> bytes,
                                                                  bool on_device) {
  std::unique_lock lock(mutex_);
  const size_t index = begin / kSegmentBytes;
  const Segment& segment = segments_[index];
  changed_.wait(lock, [&] {
    return segment.stage != Stage::kCopying && segment.stage != Stage::kUngathered;
  });
  if (index < layout_.step_begin) {
    DT_RETURN_IF_ERROR(gather_error_);
  }
  if (segment.stage != Stage::kStaged) {
    writes_live_ = index;
    lock.unlock();
    if (on_device) {
      return ReadOnDevice(bytes);
    }
    return bytes;
  }
  DT_RETURN_IF_ERROR(segment.copied);
  const std::byte* const block = segment.block;  // This thread alone gives it back.
  lock.unlock();
  if (on_device) {
    DT_RETURN_IF_ERROR(pool_.device()->Await(block));
  }
  return absl::Span<const std::byte>(block + begin % kSegmentBytes, bytes.size());
}

absl::StatusOr<absl::Span<const std::byte>> StagedSource::ReadOnDevice(
    absl::Span<const std::byte> bytes) {
  std::byte* const spare = pool_.Spare();
  if (spare == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "this host has no memory for a block of %d bytes to which a GPU can copy", kSegmentBytes));
  }
  const BlockPart part{0, bytes};
  DT_RETURN_IF_ERROR(pool_.device()->Copy(absl::MakeConstSpan(&part, 1), spare));
  DT_RETURN_IF_ERROR(pool_.device()->Await(spare));
  return absl::Span<const std::byte>(spare, bytes.size());
}

void StagedSource::Release(uint64_t begin, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Segment& segment = segments_[begin / kSegmentBytes];
  writes_live_.reset();
  segment.unread -= bytes;
  if (segment.unread == 0) {
    if (segment.stage == Stage::kStaged) {
      Drop(segment);
    } else if (segment.stage == Stage::kLive) {
      segment.stage = Stage::kDone;
      --live_;
    }
  }
  changed_.notify_all();
}

absl::StatusOr<std::vector<TensorSpec>> StagedSource::ModelTensors() {
  return snapshot_.ModelTensors();
}
absl::Status StagedSource::GiveModel(size_t index, ByteSink sink) {
  return Give(snapshot_.model[index], layout_.model_pieces[index], sink);
}
absl::StatusOr<std::vector<TensorSpec>> StagedSource::StateTensors() {
  return snapshot_.StateTensors();
}
absl::Status StagedSource::GiveState(size_t index, ByteSink sink) {
  return Give(snapshot_.state[index], layout_.state_pieces[index], sink);
}
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> StagedSource::ModelFiles() {
  return snapshot_.ModelFiles();
}
absl::StatusOr<JobState> StagedSource::Job() { return snapshot_.Job(); }
absl::StatusOr<Json> StagedSource::Rank() { return snapshot_.Rank(); }

}  // namespace dtrain::checkpoint
