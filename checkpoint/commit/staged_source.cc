#include "checkpoint/commit/staged_source.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"

namespace dtrain::checkpoint {

uint64_t LiveBytes(const SpanSource& snapshot) {
  uint64_t bytes = 0;
  for (const auto* const tensors : {&snapshot.model, &snapshot.state}) {
    for (const NamedTensor& tensor : *tensors) {
      bytes += tensor.stay == BytesStay::kUntilUpdate ? tensor.bytes.size() : 0;
    }
  }
  return bytes;
}

StagedSource::StagedSource(SpanSource snapshot, StagingPool& pool, uint64_t bytes_per_s)
    : snapshot_(std::move(snapshot)), pool_(pool), bytes_per_s_(bytes_per_s) {
  for (NamedTensor& tensor : snapshot_.model) {
    AddTensor(tensor, model_pieces_);
  }
  for (NamedTensor& tensor : snapshot_.state) {
    AddTensor(tensor, state_pieces_);
  }
  for (uint64_t begin = 0; begin < stream_bytes_; begin += kSegmentBytes) {
    segments_.push_back({.unread = std::min(kSegmentBytes, stream_bytes_ - begin)});
  }
  live_ = segments_.size();
}

StagedSource::~StagedSource() { Close(); }

void StagedSource::AddTensor(NamedTensor& tensor, std::vector<int64_t>& piece_of) {
  DT_CHECK(!tensor.on_device ||
           (tensor.stay == BytesStay::kUntilUpdate && pool_.device() != nullptr))
      << tensor.spec.name << " lies on a device that does not copy it";
  piece_of.push_back(-1);
  if (tensor.bytes.empty()) {
    return;
  }
  if (tensor.stay == BytesStay::kUntilStep) {
    copies_.emplace_back(tensor.bytes.begin(), tensor.bytes.end());
    tensor.bytes = copies_.back();
  } else if (tensor.stay == BytesStay::kUntilUpdate) {
    piece_of.back() = static_cast<int64_t>(pieces_.size());
    pieces_.push_back({stream_bytes_, tensor.bytes, tensor.on_device});
    stream_bytes_ += tensor.bytes.size();
  }
}

void StagedSource::CopyAhead() {
  std::unique_lock lock(mutex_);
  while (CopyOne(lock)) {
  }
}

bool StagedSource::HoldsUpdate() {
  const std::lock_guard lock(mutex_);
  return live_ > 0 || writes_live_;
}

bool StagedSource::MayWait() {
  const std::lock_guard lock(mutex_);
  return live_ > 0 && pool_.is_short_for(stream_bytes_);
}

void StagedSource::LetUpdate() {
  std::unique_lock lock(mutex_);
  while (live_ > 0 || writes_live_) {
    if (!CopyOne(lock) && (live_ > 0 || writes_live_)) {
      update_waits_ = true;
      changed_.notify_all();
      changed_.wait(lock);
    }
  }
  update_waits_ = false;
}

void StagedSource::LiftRate() {
  const std::lock_guard lock(mutex_);
  rate_lifted_ = true;
  changed_.notify_all();
}

void StagedSource::AwaitTurn(uint64_t bytes) {
  if (bytes_per_s_ == 0) {
    return;
  }
  using Steady = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  // Time in which the writer took less is not made up for, nor are bytes that nobody held back.
  turn_ = std::max(turn_, Steady::now());
  if (changed_.wait_until(lock, turn_, [this] { return update_waits_ || rate_lifted_; })) {
    turn_ = Steady::now();
  }
  const std::chrono::duration<double> due(static_cast<double>(bytes) /
                                          static_cast<double>(bytes_per_s_));
  turn_ += std::chrono::duration_cast<Steady::duration>(due);
}

void StagedSource::Close() {
  std::unique_lock lock(mutex_);
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
  writes_live_ = false;  // A sink that threw an exception has not returned.
  changed_.notify_all();
  changed_.wait(lock, [this] { return live_ == 0; });
  copies_.clear();
}

bool StagedSource::FindLive() {
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

absl::Status StagedSource::CopyBytes(size_t segment, std::byte* block) const {
  StagingDevice* const device = pool_.device();
  std::vector<BlockPart> on_device;
  const uint64_t begin = segment * kSegmentBytes;
  const uint64_t end = std::min(begin + kSegmentBytes, stream_bytes_);
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                                [](uint64_t at, const Piece& other) { return at < other.begin; });
  --piece;  // The first one begins at 0, and none is empty.
  for (uint64_t at = begin; at < end; ++piece) {
    const uint64_t from = at - piece->begin;
    const uint64_t bytes = std::min<uint64_t>(piece->bytes.size() - from, end - at);
    if (piece->on_device) {
      on_device.push_back({at - begin, piece->bytes.subspan(from, bytes)});
    } else {
      if (device != nullptr) {  // A save that was given up may have left copies to it under way.
        DT_RETURN_IF_ERROR(device->Await(block));
      }
      std::memcpy(block + (at - begin), piece->bytes.data() + from, bytes);
    }
    at += bytes;
  }
  return on_device.empty() ? absl::OkStatus() : device->Copy(on_device, block);
}

void StagedSource::Drop(Segment& segment) {
  pool_.Return(segment.block);
  segment.block = nullptr;
  segment.stage = Stage::kDone;
}

absl::Status StagedSource::Give(const NamedTensor& tensor, int64_t piece, ByteSink sink) {
  absl::Span<const std::byte> rest = tensor.bytes;
  while (piece < 0 && !rest.empty()) {
    const auto bytes = rest.subspan(0, kSegmentBytes);
    AwaitTurn(bytes.size());
    DT_RETURN_IF_ERROR(sink(bytes));
    rest.remove_prefix(bytes.size());
  }
  uint64_t begin = piece < 0 ? 0 : pieces_[static_cast<size_t>(piece)].begin;
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
  const Segment& segment = segments_[begin / kSegmentBytes];
  changed_.wait(lock, [&] { return segment.stage != Stage::kCopying; });
  if (segment.stage != Stage::kStaged) {
    writes_live_ = true;
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
  writes_live_ = false;
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
  return Give(snapshot_.model[index], model_pieces_[index], sink);
}
absl::StatusOr<std::vector<TensorSpec>> StagedSource::StateTensors() {
  return snapshot_.StateTensors();
}
absl::Status StagedSource::GiveState(size_t index, ByteSink sink) {
  return Give(snapshot_.state[index], state_pieces_[index], sink);
}
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> StagedSource::ModelFiles() {
  return snapshot_.ModelFiles();
}
absl::StatusOr<JobState> StagedSource::Job() { return snapshot_.Job(); }
absl::StatusOr<Json> StagedSource::Rank() { return snapshot_.Rank(); }

}  // namespace dtrain::checkpoint
