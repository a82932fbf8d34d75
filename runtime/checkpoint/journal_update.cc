#include "runtime/checkpoint/journal_update.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/crc32c.h"
#include "base/numeric/float16.h"
#include "base/numeric/prng.h"
#include "base/threads/parallel_for.h"
#include "kernels/flat.h"
#include "runtime/model/torch_pool.h"

namespace dtrain {
namespace {

// Elements of a part: with weights, states and both forms of the gradient it fits into a core's
// second cache.
constexpr int64_t kPart = 8 << 10;

}  // namespace

void JournalUpdate::Begin(absl::Span<std::byte> into) {
  into_ = into;
  before_ = 0;
  after_ = 0;
}

void JournalUpdate::Update(const UpdatePiece& piece, const float* gradient,
                           StepHooks::PartUpdate update) {
  const plan::FlatRange whole = {piece.flat, piece.flat + piece.elements};
  plan::FlatRange left = whole;
  std::byte* to = into_.data();
  for (const plan::OwnedRange& range : stored_) {
    const plan::FlatRange shared = plan::Intersect(range.flat, whole);
    if (!into_.empty() && shared.elements() > 0) {
      UpdateRange(piece, gradient, {left.begin, shared.begin}, nullptr, update);
      const auto offset = static_cast<size_t>(shared.begin - range.flat.begin);
      UpdateRange(piece, gradient, shared, to + offset * DTypeBytes(dtype_), update);
      left.begin = shared.end;
    }
    to += into_.empty() ? 0 : static_cast<size_t>(range.flat.elements()) * DTypeBytes(dtype_);
  }
  UpdateRange(piece, gradient, left, nullptr, update);
}

void JournalUpdate::UpdateRange(const UpdatePiece& piece, const float* gradient,
                                plan::FlatRange range, std::byte* kept,
                                StepHooks::PartUpdate update) {
  if (kept == nullptr && dtype_ == DType::kFloat32) {  // Nothing is to be done on the way.
    if (range.elements() > 0) {
      update(range.begin - piece.flat, range.elements(), gradient + (range.begin - piece.flat));
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
          kept == nullptr ? nullptr : kept + static_cast<size_t>(begin) * DTypeBytes(dtype_);
      const float* const taken = Keep(gradient + place, count, to, rounded.data());
      if (kept != nullptr) {
        before_ += Fingerprint(flat, local, count);
      }
      update(place, count, taken);
      if (kept != nullptr) {
        after_ += Fingerprint(flat, local, count);
      }
    }
  });
}

const float* JournalUpdate::Keep(const float* from, int64_t count, std::byte* kept,
                                 float* rounded) const {
  if (dtype_ == DType::kFloat32) {
    std::memcpy(kept, from, static_cast<size_t>(count) * sizeof(float));
    return from;
  }
  std::array<BFloat16, kPart> narrow;
  void* const to = kept == nullptr ? static_cast<void*>(narrow.data()) : kept;
  kernels::CopyCpu(count, {from}, {to, DType::kBFloat16}, SerialFor);
  kernels::CopyCpu(count, {to, DType::kBFloat16}, {rounded}, SerialFor);
  return rounded;
}

uint64_t JournalUpdate::Fingerprint(int64_t flat, int64_t local, int64_t count) const {
  const size_t bytes = static_cast<size_t>(count) * DTypeBytes(engine_.flat->dtype());
  // Sums of these do not depend on the order in which threads add.
  return MixBits(MixBits(static_cast<uint64_t>(flat)) +
                 Crc32c(engine_.value_at(flat, local), bytes));
}

bool JournalUpdate::FindsWritten() {
  const bool looked = !into_.empty();
  const bool is_written = looked && left_.has_value() && *left_ != before_;
  left_ = looked ? std::optional(after_.load()) : std::nullopt;
  return is_written;
}

}  // namespace dtrain
