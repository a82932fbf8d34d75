#include "comm/collectives/schedule.h"

#include <algorithm>

#include "absl/numeric/bits.h"
#include "base/check.h"
#include "comm/collectives/algorithm.h"

namespace dtrain::comm {
namespace {

// Elements of a chunk: a multiple of a slice's unit, so that chunks of aligned buffers are aligned
// too.
size_t ChunkElements(size_t bytes, const ScheduleOptions& options, size_t divisor) {
  return std::max<size_t>(bytes / options.element_bytes / divisor / kSliceElements, 1) *
         kSliceElements;
}

size_t DirectChunkBytes(const ScheduleOptions& options) {
  return std::min(kDirectChunkBytes, options.slice_bytes * static_cast<size_t>(options.size));
}

Range Part(Area area, const Slice& slice, size_t offset = 0) {
  return {area, offset + slice.start, slice.count};
}

}  // namespace

bool Schedule::HasForm(CallKind kind, Algorithm algorithm, int size) {
  const bool power_of_two = (size & (size - 1)) == 0;
  switch (algorithm) {
    case Algorithm::kRing:
      return kind == CallKind::kAllReduce || kind == CallKind::kReduceScatter ||
             kind == CallKind::kAllGather;
    case Algorithm::kDoubling:
      return power_of_two && (kind == CallKind::kAllReduce || kind == CallKind::kAllGather);
    case Algorithm::kHalving:
      // With two ranks this is the direct algorithm.
      return power_of_two && size > 2 && kind == CallKind::kAllReduce;
    default:
      return true;
  }
}

Schedule::Schedule(const ScheduleOptions& options) : options_(options) {
  DT_CHECK(options.size >= 2 && options.rank >= 0 && options.rank < options.size);
  DT_CHECK(HasForm(options.kind, options.algorithm, options.size));
  const auto size = static_cast<size_t>(options.size);
  const size_t count = options.count;
  const bool ring = options.algorithm == Algorithm::kRing;
  chunk_ = ring ? ChunkElements(kRingChunkBytes, options, 1)
                : ChunkElements(DirectChunkBytes(options), options, 1);
  if (options.algorithm == Algorithm::kDoubling || options.algorithm == Algorithm::kHalving) {
    const auto rounds = static_cast<size_t>(absl::bit_width(static_cast<unsigned>(size)) - 1);
    const bool halving = options.algorithm == Algorithm::kHalving;
    steps_ = halving ? 2 * rounds : rounds;
    scratch_ = options.kind == CallKind::kAllReduce ? count : 0;
  } else if (ring) {
    PlanRing();
  } else {
    PlanDirect();
  }
  if (count == 0) {
    steps_ = 0;
  }
}

bool MayBeginDuring(const Step& now, const Step& next, bool in_place) {
  const auto overlap = [in_place](const Range& a, const Range& b) {
    const auto area = [in_place](const Range& range) {
      return in_place && range.area == Area::kInput ? Area::kOutput : range.area;
    };
    return area(a) == area(b) && a.start < b.start + b.count && b.start < a.start + a.count;
  };
  // Whether `range` overlaps memory that `now` writes or, if `range` is written, reads.
  const auto clashes = [&](const Range& range, bool written) {
    bool any = overlap(range, now.output) && !now.inputs.empty();
    for (const Message& message : now.receives) {
      any = any || overlap(range, message.range);
    }
    if (written) {
      for (const Message& message : now.sends) {
        any = any || overlap(range, message.range);
      }
      for (const Range& input : now.inputs) {
        any = any || overlap(range, input);
      }
    }
    // Pairwise sums write partial sums into their inputs.
    for (const Range& input : now.inputs) {
      any = any || (now.pairwise && overlap(range, input));
    }
    return any;
  };
  for (const Message& message : next.sends) {
    if (clashes(message.range, /*written=*/false)) {
      return false;
    }
  }
  for (const Message& message : next.receives) {
    if (clashes(message.range, /*written=*/true)) {
      return false;
    }
  }
  return true;
}

void Schedule::PlanRing() {
  const auto size = static_cast<size_t>(options_.size);
  const size_t count = options_.count;
  if (options_.kind == CallKind::kAllReduce) {
    // The first slice may be shorter than others, never longer than count / size + one unit.
    size_t longest = 0;
    for (int rank = 0; rank < options_.size; ++rank) {
      longest = std::max(longest, SliceOf(count, options_.size, rank).count);
    }
    chunks_ = ChunkCount(longest, chunk_);
    steps_ = 2 * (size - 1) * chunks_;
    scratch_ = 2 * std::min(chunk_, longest);
    return;
  }
  chunks_ = ChunkCount(count, chunk_);
  steps_ = (size - 1) * chunks_;
  if (options_.kind == CallKind::kReduceScatter) {
    // Whole groups of rooms: chunks past the end are empty.
    steps_ = ChunkCount(chunks_, kRingRooms) * kRingRooms * (size - 1);
    scratch_ = 2 * kRingRooms * chunk_;
  }
}

void Schedule::PlanDirect() {
  const auto size = static_cast<size_t>(options_.size);
  const size_t count = options_.count;
  switch (options_.kind) {
    case CallKind::kAllReduce:
      chunks_ = ChunkCount(count, chunk_);
      steps_ = chunks_ + 2;
      scratch_ = 2 * (std::min(chunk_, count) / size + kSliceElements) * size;
      break;
    case CallKind::kReduceScatter:
      chunk_ = ChunkElements(DirectChunkBytes(options_), options_, size);
      chunks_ = ChunkCount(count, chunk_);
      steps_ = chunks_;
      scratch_ = 2 * std::min(chunk_, count) * size;
      break;
    case CallKind::kBroadcast:
      steps_ = 2;
      break;
    case CallKind::kAllGather:
    case CallKind::kAllToAll:
      steps_ = 1;
      break;
    default:
      DT_CHECK(false) << CallKindName(options_.kind) << " has no schedule";
  }
}

int Schedule::Behind(size_t back) const {
  const auto size = static_cast<size_t>(options_.size);
  return static_cast<int>((static_cast<size_t>(options_.rank) + 2 * size - back) % size);
}

void Schedule::Fill(size_t index, Step& step) const {
  step.sends.clear();
  step.receives.clear();
  step.inputs.clear();
  step.output = Range();
  step.complete = step.pairwise = step.deferred = false;
  const bool reduces = options_.kind == CallKind::kAllReduce;
  switch (options_.algorithm) {
    case Algorithm::kRing:
      return reduces                                     ? FillRingAllReduce(index, step)
             : options_.kind == CallKind::kReduceScatter ? FillRingReduceScatter(index, step)
                                                         : FillRingAllGather(index, step);
    case Algorithm::kDoubling:
      return reduces ? FillDoublingAllReduce(index, step) : FillDoublingAllGather(index, step);
    case Algorithm::kHalving:
      return FillHalvingAllReduce(index, step);
    default:
      return FillDirect(index, step);
  }
}

void Schedule::FillDirect(size_t index, Step& step) const {
  switch (options_.kind) {
    case CallKind::kAllReduce:
      return FillDirectAllReduce(index, step);
    case CallKind::kReduceScatter:
      return FillDirectReduceScatter(index, step);
    case CallKind::kAllGather:
      return FillDirectAllGather(step);
    case CallKind::kBroadcast:
      return FillBroadcast(index, step);
    default:
      return FillAllToAll(step);
  }
}

// Step c moves contributions to chunk c and results of chunk c - 2, and sums those to chunk c - 1.
void Schedule::FillDirectAllReduce(size_t index, Step& step) const {
  const int rank = options_.rank;
  const int size = options_.size;
  const Slice now = ChunkOf(options_.count, chunk_, index);
  const Slice before = index < 2 ? Slice() : ChunkOf(options_.count, chunk_, index - 2);
  const auto slice_of = [size](const Slice& part, int owner) {
    return Part(Area::kOutput, SliceOf(part.count, size, owner), part.start);
  };
  const Range mine = slice_of(now, rank);
  const size_t room = scratch_ / 2 / static_cast<size_t>(size);
  const size_t half = index % 2 * (scratch_ / 2);
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) {
      step.inputs.push_back(mine);
      continue;
    }
    const Range incoming{Area::kScratch, half + static_cast<size_t>(peer) * room, mine.count};
    step.sends.push_back({peer, slice_of(before, rank)});
    step.sends.push_back({peer, slice_of(now, peer)});
    step.receives.push_back({peer, slice_of(before, peer)});
    step.receives.push_back({peer, incoming});
    step.inputs.push_back(incoming);
  }
  step.output = mine;
  step.complete = step.deferred = true;
  step.pairwise = options_.pairwise;
}

void Schedule::FillDirectReduceScatter(size_t chunk, Step& step) const {
  const Slice slice = ChunkOf(options_.count, chunk_, chunk);
  const auto source = [&](int owner) {
    return Part(Area::kInput, slice, static_cast<size_t>(owner) * options_.count);
  };
  const size_t room = scratch_ / 2 / static_cast<size_t>(options_.size);
  const size_t half = chunk % 2 * (scratch_ / 2);
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer == options_.rank) {
      step.inputs.push_back(source(peer));
      continue;
    }
    const Range incoming{Area::kScratch, half + static_cast<size_t>(peer) * room, slice.count};
    step.sends.push_back({peer, source(peer)});
    step.receives.push_back({peer, incoming});
    step.inputs.push_back(incoming);
  }
  step.output = Part(Area::kOutput, slice);
  step.complete = step.deferred = true;
}

void Schedule::FillDirectAllGather(Step& step) const {
  const size_t count = options_.count;
  const auto place = [count](int owner) {
    return Range{Area::kOutput, static_cast<size_t>(owner) * count, count};
  };
  const Range own{Area::kInput, 0, count};
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer != options_.rank) {
      step.sends.push_back({peer, own});
      step.receives.push_back({peer, place(peer)});
    }
  }
  step.inputs.push_back(own);
  step.output = place(options_.rank);
}

// The root sends each rank its slice, and all pass their slices on: the root's link carries the
// buffer twice at the most instead of size - 1 times.
void Schedule::FillBroadcast(size_t index, Step& step) const {
  const int rank = options_.rank;
  const int root = options_.root;
  const auto place = [this](int owner) {
    return Part(Area::kOutput, SliceOf(options_.count, options_.size, owner));
  };
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer == rank) {
      continue;
    }
    if (index == 0) {
      if (rank == root) {
        step.sends.push_back({peer, place(peer)});
      } else if (peer == root) {
        step.receives.push_back({root, place(rank)});
      }
      continue;
    }
    if (peer != root) {
      step.sends.push_back({peer, place(rank)});
    }
    if (rank != root) {
      step.receives.push_back({peer, place(peer)});
    }
  }
}

void Schedule::FillAllToAll(Step& step) const {
  for (int peer = 0; peer < options_.size; ++peer) {
    const size_t start = static_cast<size_t>(peer) * options_.count;
    const Range from{Area::kInput, start, options_.count};
    const Range to{Area::kOutput, start, options_.count};
    if (peer == options_.rank) {
      step.inputs.push_back(from);
      step.output = to;
    } else {
      step.sends.push_back({peer, from});
      step.receives.push_back({peer, to});
    }
  }
}

// First size - 1 turns in which partial sums travel: slice p starts at rank p + 1 and is complete
// at rank p; then size - 1 turns in which results travel. A turn has a step for each chunk.
void Schedule::FillRingAllReduce(size_t index, Step& step) const {
  const auto turns = static_cast<size_t>(options_.size) - 1;
  const size_t turn = index / chunks_;
  const bool reducing = turn < turns;
  const auto piece = [&](int owner) {
    const Slice slice = SliceOf(options_.count, options_.size, owner);
    return Part(Area::kOutput, ChunkOf(slice.count, chunk_, index % chunks_), slice.start);
  };
  const size_t back = reducing ? turn + 1 : turn - turns;
  const Range sent = piece(Behind(back));
  const Range received = piece(Behind(back + 1));
  step.sends.push_back({next(), sent});
  if (!reducing) {
    step.receives.push_back({Behind(1), received});
    return;
  }
  const Range incoming{Area::kScratch, index % 2 * (scratch_ / 2), received.count};
  step.receives.push_back({Behind(1), incoming});
  step.inputs = {incoming, received};
  step.output = received;
  step.complete = turn + 1 == turns;
  step.deferred = chunks_ > 1;  // Otherwise the next step sends it.
}

// The first half of the ring all-reduce, with the partial sums in scratch because the input keeps
// its values: chunk by chunk in groups of kRingRooms, each chunk with one room to receive into and
// one to send from.
void Schedule::FillRingReduceScatter(size_t index, Step& step) const {
  const auto turns = static_cast<size_t>(options_.size) - 1;
  const size_t group = index / (kRingRooms * turns);
  const size_t turn = index / kRingRooms % turns;
  const size_t room = index % kRingRooms;
  const Slice slice = ChunkOf(options_.count, chunk_, group * kRingRooms + room);
  const auto source = [&](int owner) {
    return Part(Area::kInput, slice, static_cast<size_t>(owner) * options_.count);
  };
  const auto scratch = [&](size_t at_turn) {
    return Range{Area::kScratch, (at_turn % 2 * kRingRooms + room) * chunk_, slice.count};
  };
  const Range incoming = scratch(turn);
  step.sends.push_back({next(), turn == 0 ? source(Behind(1)) : scratch(turn - 1)});
  step.receives.push_back({Behind(1), incoming});
  step.inputs = {incoming, source(Behind(turn + 2))};
  step.complete = turn + 1 == turns;
  step.output = step.complete ? Part(Area::kOutput, slice) : incoming;
  step.deferred = true;  // It is sent kRingRooms steps later.
}

void Schedule::FillRingAllGather(size_t index, Step& step) const {
  const size_t count = options_.count;
  const size_t turn = index / chunks_;
  const Slice slice = ChunkOf(count, chunk_, index % chunks_);
  const auto place = [&](int owner) {
    return Part(Area::kOutput, slice, static_cast<size_t>(owner) * count);
  };
  step.sends.push_back({next(), turn == 0 ? Part(Area::kInput, slice) : place(Behind(turn))});
  step.receives.push_back({Behind(1), place(Behind(turn + 1))});
  if (turn == 0) {
    step.inputs.push_back(Part(Area::kInput, slice));
    step.output = place(options_.rank);
  }
}

}  // namespace dtrain::comm
