// What ShmCollectives does for a node's ranks when the parts of a buffer belong to the ranks of
// several nodes.
#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "comm/collectives/shm_collectives.h"

namespace dtrain::comm {
namespace {

// Of a member's parts, one after the other, the piece [start, start + count): calls `piece` with
// where it lies in the whole buffer, how far into the piece, and its bytes, for each part it meets.
template <typename Piece>
void ForEachPiece(const std::vector<int>& parts, size_t part_bytes, Slice range, Piece piece) {
  for (size_t done = 0; done < range.count;) {
    const size_t at = range.start + done;
    const size_t inside = at % part_bytes;
    const size_t bytes = std::min(part_bytes - inside, range.count - done);
    piece(static_cast<size_t>(parts[at / part_bytes]) * part_bytes + inside, done, bytes);
    done += bytes;
  }
}

}  // namespace

absl::Status ShmCollectives::ReduceParts(const Call& call, const Places& places, size_t part_bytes,
                                         char* sums, const WaitContext& context) {
  const Call inner = InsideNode(call);
  const size_t element = DTypeBytes(call.header.dtype);
  const auto self = static_cast<size_t>(self_);
  const size_t total = places[self].size() * part_bytes;
  double unused = 0;
  std::vector<const void*> inputs(places.size());
  if (const std::vector<char*> sources = Sources(call); !sources.empty()) {
    ForEachPiece(places[self], part_bytes, {0, total}, [&](size_t from, size_t to, size_t bytes) {
      for (size_t index = 0; index < sources.size(); ++index) {
        inputs[index] = sources[index] + from;
      }
      void* const output = sums + to;
      ReduceFor(inner, inputs, absl::MakeConstSpan(&output, 1), bytes / element, unused);
    });
    return segment_->Sync(context);  // An output may lie in an input that was still being read.
  }
  const char* const input = static_cast<const char*>(call.input.data);
  const size_t room = kStageBytes / places.size() / 64 * 64;
  for (size_t start = 0; start < total; start += room) {
    const Slice range{start, std::min(room, total - start)};
    const uint64_t turn = turn_++;
    for (size_t index = 0; index < places.size(); ++index) {
      char* const stage = segment_->stage(self_, turn) + index * room;
      ForEachPiece(places[index], part_bytes, range, [&](size_t from, size_t to, size_t bytes) {
        std::memcpy(stage + to, input + from, bytes);
      });
    }
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    for (size_t index = 0; index < places.size(); ++index) {
      inputs[index] = segment_->stage(static_cast<int>(index), turn) + self * room;
    }
    void* const output = sums + start;
    ReduceFor(inner, inputs, absl::MakeConstSpan(&output, 1), range.count / element, unused);
  }
  return absl::OkStatus();
}

absl::Status ShmCollectives::GatherParts(const Call& call, const Places& places, size_t part_bytes,
                                         const char* own, const WaitContext& context) {
  char* const output = static_cast<char*>(call.output.data);
  const size_t total = places[static_cast<size_t>(self_)].size() * part_bytes;
  for (size_t start = 0; start < total; start += kStageBytes) {
    const Slice range{start, std::min(kStageBytes, total - start)};
    const uint64_t turn = turn_++;
    std::memcpy(segment_->stage(self_, turn), own + start, range.count);
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    for (int index = 0; index < size_; ++index) {
      const char* const stage = index == self_ ? own + start : segment_->stage(index, turn);
      ForEachPiece(places[static_cast<size_t>(index)], part_bytes, range,
                   [&](size_t to, size_t from, size_t bytes) {
                     std::memcpy(output + to, stage + from, bytes);
                   });
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
