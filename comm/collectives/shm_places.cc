// ShmCollectives where the parts of a buffer belong to the ranks of several nodes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/status.h"
#include "comm/collectives/shm_collectives.h"

namespace dtrain::comm {
namespace {

// Splits the range [start, start + count) of a member's own memory by the parts that it covers.
// Calls `piece` for each with its place in the whole buffer, its place in the range, and its bytes.
template <typename Piece>
void ForEachPiece(const ShmCollectives::Share& share, Slice range, Piece piece) {
  const size_t end = std::min(range.start + range.count, share.bytes());
  for (size_t at = range.start; at < end;) {
    const Slice& part = share.parts[at / share.room];
    const size_t inside = at % share.room;
    const size_t rest = std::min(share.room - inside, end - at);
    if (inside < part.count) {
      piece(part.start + inside, at - range.start, std::min(rest, part.count - inside));
    }
    at += rest;
  }
}

size_t LongestOf(const ShmCollectives::Shares& shares) {
  size_t longest = 0;
  for (const ShmCollectives::Share& share : shares) {
    longest = std::max(longest, share.bytes());
  }
  return longest;
}

}  // namespace

absl::Status ShmCollectives::ReduceParts(const Call& call, const Shares& shares, char* sums,
                                         const WaitContext& context) {
  const Call inner = InsideNode(call);
  const size_t element = DTypeBytes(call.header.dtype);
  const auto self = static_cast<size_t>(self_);
  const char* const input = static_cast<const char*>(call.input.data);
  const Slice everything{0, shares[self].bytes()};
  if (size_ == 1) {
    ForEachPiece(shares[self], everything, [&](size_t from, size_t to, size_t bytes) {
      std::memcpy(sums + to, input + from, bytes);
    });
    return absl::OkStatus();
  }
  double unused = 0;
  std::vector<const void*> inputs(shares.size());
  if (const std::vector<char*> sources = Sources(call); !sources.empty()) {
    ForEachPiece(shares[self], everything, [&](size_t from, size_t to, size_t bytes) {
      for (size_t index = 0; index < sources.size(); ++index) {
        inputs[index] = sources[index] + from;
      }
      void* const output = sums + to;
      ReduceFor(inner, inputs, absl::MakeConstSpan(&output, 1), bytes / element, unused);
    });
    return segment_->Sync(context);  // An output may lie in an input that was still being read.
  }
  const size_t room = kStageBytes / shares.size() / 64 * 64;
  for (size_t start = 0; start < LongestOf(shares); start += room) {
    const Slice range{start, room};
    const uint64_t turn = turn_++;
    for (size_t index = 0; index < shares.size(); ++index) {
      char* const stage = segment_->stage(self_, turn) + index * room;
      ForEachPiece(shares[index], range, [&](size_t from, size_t to, size_t bytes) {
        std::memcpy(stage + to, input + from, bytes);
      });
    }
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    ForEachPiece(shares[self], range, [&](size_t /*from*/, size_t to, size_t bytes) {
      for (size_t index = 0; index < shares.size(); ++index) {
        inputs[index] = segment_->stage(static_cast<int>(index), turn) + self * room + to;
      }
      void* const output = sums + start + to;
      ReduceFor(inner, inputs, absl::MakeConstSpan(&output, 1), bytes / element, unused);
    });
  }
  return absl::OkStatus();
}

absl::Status ShmCollectives::GatherParts(const Shares& shares, const char* own, Slice window,
                                         char* output, const WaitContext& context) {
  // The bytes of a piece at `at` of the buffer that lie in the window.
  const auto copy = [&](const char* piece, size_t at, size_t bytes) {
    const size_t begin = std::max(at, window.start);
    const size_t end = std::min(at + bytes, window.start + window.count);
    if (begin < end) {
      std::memcpy(output + (begin - window.start), piece + (begin - at), end - begin);
    }
  };
  const auto copy_from = [&](size_t index, Slice range, const char* from) {
    ForEachPiece(shares[index], range,
                 [&](size_t at, size_t to, size_t bytes) { copy(from + to, at, bytes); });
  };
  const auto self = static_cast<size_t>(self_);
  const size_t mine = shares[self].bytes();
  if (size_ == 1) {
    copy_from(self, {0, mine}, own);
    return absl::OkStatus();
  }
  for (size_t start = 0; start < LongestOf(shares); start += kStageBytes) {
    const Slice range{start, kStageBytes};
    const uint64_t turn = turn_++;
    if (start < mine) {
      std::memcpy(segment_->stage(self_, turn), own + start, std::min(kStageBytes, mine - start));
    }
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    for (size_t index = 0; index < shares.size(); ++index) {
      // Without bytes to copy, `own` may be null.
      copy_from(index, range,
                index == self ? own + std::min(start, mine)
                              : segment_->stage(static_cast<int>(index), turn));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> ShmCollectives::SumSquares(const Call& call, double squares,
                                                  const WaitContext& context) {
  segment_->partial(self_, call.header.sequence) = squares;
  DT_RETURN_IF_ERROR(segment_->Sync(context));
  double sum = 0;
  for (int index = 0; index < size_; ++index) {
    sum += segment_->partial(index, call.header.sequence);
  }
  return sum;
}

}  // namespace dtrain::comm
