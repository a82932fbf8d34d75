#include "runtime/checkpoint/journal/host_update.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/numeric/float16.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "base/threads/parallel_for.h"
#include "kernels/flat.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/checkpoint/restore/shared_ranges.h"
#include "runtime/memory/state_memory.h"
#include "runtime/model/torch_pool.h"

namespace dtrain {
namespace {

// Elements of a part: with weights, states and both forms of the gradient it fits into a core's
// second cache.
constexpr int64_t kPart = 8 << 10;
// Elements of a part that is updated in one pass: enough that a call's own work does not show.
constexpr int64_t kPassPart = 64 << 10;
// A gradient from this size on is written past the caches, which could not hold it until the
// journal's thread reads it.
constexpr size_t kPastCachesBytesMin = 16 << 20;

}  // namespace

HostJournalUpdate::HostJournalUpdate(const EngineState& engine,
                                     std::vector<plan::OwnedRange> stored,
                                     const JournalUpdateOptions& options)
    : engine_(engine), stored_(std::move(stored)), options_(options) {}

absl::Status HostJournalUpdate::Allocate() {
  const auto type = options_.dtype == DType::kBFloat16 ? at::kBFloat16 : at::kFloat;
  for (at::Tensor& gradient : gradients_) {
    DT_ASSIGN_OR_RETURN(gradient, MakeState(ElementsOf(stored_), type, 0));
  }
  return absl::OkStatus();
}

void HostJournalUpdate::Listen(StepHooks& hooks) {
  hooks.update_piece = [weak = weak_from_this()](const UpdatePiece& piece, const float* gradient,
                                                 const PartUpdate& update) {
    if (const auto self = weak.lock(); self != nullptr) {
      self->Update(piece, gradient, update);
    } else {
      update.by(0, piece.elements, gradient);
    }
  };
}

bool HostJournalUpdate::FindsWritten() {
  const bool is_written = weights_.has_value() && *weights_ != WeightsChecksum();
  weights_.reset();
  return is_written;
}

void HostJournalUpdate::Begin(const StepEnd& end, bool keeps) {
  end_ = end;
  keeps_ = keeps;
  into_ = keeps && end.updates() ? BytesOf(gradients_[next_]) : absl::Span<std::byte>();
  next_ = 1 - next_;
  before_ = 0;
  after_ = 0;
}

bool HostJournalUpdate::End() {
  if (keeps_ && options_.leaves_out) {
    weights_ = WeightsChecksum();
  }
  if (!end_.updates()) {
    return false;
  }
  const bool looked = !into_.empty();
  const bool is_written = looked && left_.has_value() && *left_ != before_;
  left_ = looked ? std::optional(after_.load()) : std::nullopt;
  return is_written && !options_.leaves_out;
}

LateUpdate HostJournalUpdate::Take() {
  return [kept = KeptUpdate{end_, into_}]() -> absl::StatusOr<KeptUpdate> { return kept; };
}

void HostJournalUpdate::Update(const UpdatePiece& piece, const float* gradient,
                               const PartUpdate& update) {
  const plan::FlatRange whole = {piece.flat, piece.flat + piece.elements};
  if (into_.empty()) {
    UpdateRange(piece, gradient, whole, nullptr, update);
    return;
  }
  const auto width = static_cast<int64_t>(DTypeBytes(options_.dtype));
  ForStoredParts(stored_, whole, [&](plan::FlatRange part, int64_t kept) {
    UpdateRange(piece, gradient, part, kept < 0 ? nullptr : into_.data() + kept * width, update);
  });
}

void HostJournalUpdate::UpdateRange(const UpdatePiece& piece, const float* gradient,
                                    plan::FlatRange range, std::byte* kept,
                                    const PartUpdate& update) {
  const DType dtype = options_.dtype;
  if (dtype == DType::kBFloat16 && update.rounds) {
    UpdateRounded(piece, range, kept, update);
    return;
  }
  if (kept == nullptr && dtype == DType::kFloat32) {  // Nothing is to be done on the way.
    if (range.elements() > 0) {
      update.by(range.begin - piece.flat, range.elements(), gradient + (range.begin - piece.flat));
    }
    return;
  }
  TorchParallelFor(range.elements(), kPart, [&](int64_t begin, int64_t end) {
    std::array<float, kPart> rounded;
    for (; begin < end; begin += kPart) {
      const int64_t count = std::min(kPart, end - begin);
      const int64_t flat = range.begin + begin;
      const int64_t place = flat - piece.flat;
      const int64_t local = piece.local + place;
      std::byte* const to =
          kept == nullptr ? nullptr : kept + static_cast<size_t>(begin) * DTypeBytes(dtype);
      const float* const taken = Keep(gradient + place, count, to, rounded.data());
      if (kept != nullptr) {
        before_ += Fingerprint(flat, local, count);
      }
      update.by(place, count, taken);
      if (kept != nullptr) {
        after_ += Fingerprint(flat, local, count);
      }
    }
  });
}

void HostJournalUpdate::UpdateRounded(const UpdatePiece& piece, plan::FlatRange range,
                                      std::byte* kept, const PartUpdate& update) {
  // The pass takes sums of the weights in fp32, which others are only rounded from.
  const bool by_sums = engine_.flat->dtype() == DType::kFloat32;
  const bool by_parts = kept != nullptr && !by_sums;
  const int64_t part = by_parts ? kPart : kPassPart;
  const bool past_caches = into_.size() >= kPastCachesBytesMin;
  TorchParallelFor(range.elements(), part, [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += part) {
      const int64_t count = std::min(part, end - begin);
      const int64_t flat = range.begin + begin;
      const int64_t place = flat - piece.flat;
      const int64_t local = piece.local + place;
      auto* const to = kept == nullptr ? nullptr : reinterpret_cast<BFloat16*>(kept) + begin;
      before_ += by_parts ? Fingerprint(flat, local, count) : 0;
      const kernels::WeightSums sums = update.rounded(place, count, {to, past_caches});
      before_ += by_sums ? sums.before : 0;
      after_ += by_sums ? sums.after : by_parts ? Fingerprint(flat, local, count) : 0;
    }
  });
}

const float* HostJournalUpdate::Keep(const float* from, int64_t count, std::byte* kept,
                                     float* rounded) const {
  if (options_.dtype == DType::kFloat32) {
    std::memcpy(kept, from, static_cast<size_t>(count) * sizeof(float));
    return from;
  }
  kernels::RoundToBf16Cpu(count, from, rounded, reinterpret_cast<BFloat16*>(kept), SerialFor);
  return rounded;
}

uint64_t HostJournalUpdate::Fingerprint(int64_t flat, int64_t local, int64_t count) const {
  const size_t bytes = static_cast<size_t>(count) * DTypeBytes(engine_.flat->dtype());
  // Sums of these do not depend on the order in which threads add.
  return MixBits(MixBits(static_cast<uint64_t>(flat)) +
                 Crc32c(engine_.value_at(flat, local), bytes));
}

uint32_t HostJournalUpdate::WeightsChecksum() const {
  uint32_t crc = 0;
  for (const plan::OwnedRange& range : stored_) {
    const auto bytes =
        static_cast<size_t>(range.flat.elements()) * DTypeBytes(engine_.flat->dtype());
    crc = Crc32c(engine_.value_at(range.flat.begin, range.local), bytes, crc);
  }
  return crc;
}

}  // namespace dtrain
