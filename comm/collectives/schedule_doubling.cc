// The schedules for powers of two, in which a rank exchanges with one partner a step. Both sum in
// the same order: neighbours first, then pairs of pairs, the lower ranks' sum always on the left.
#include "comm/collectives/schedule.h"

namespace dtrain::comm {
namespace {

// The sum of two ranges, the lower ranks' first.
void AddPair(Step& step, bool mine_first, const Range& mine, const Range& theirs) {
  step.inputs = {mine_first ? mine : theirs, mine_first ? theirs : mine};
  step.output = mine;
}

}  // namespace

void Schedule::FillDoublingAllReduce(size_t index, Step& step) const {
  const int bit = 1 << index;
  const int partner = options_.rank ^ bit;
  const Range whole{Area::kOutput, 0, options_.count};
  const Range incoming{Area::kScratch, 0, options_.count};
  step.sends.push_back({partner, whole});
  step.receives.push_back({partner, incoming});
  AddPair(step, (options_.rank & bit) == 0, whole, incoming);
  step.complete = index + 1 == steps_;
}

// A rank has the parts of a block of 2^k ranks and gets those of the block beside it.
void Schedule::FillDoublingAllGather(size_t index, Step& step) const {
  const int bit = 1 << index;
  const size_t count = options_.count;
  const auto block = [&](int rank) {
    const auto first = static_cast<size_t>(rank & ~(bit - 1));
    return Range{Area::kOutput, first * count, static_cast<size_t>(bit) * count};
  };
  const int partner = options_.rank ^ bit;
  const Range own{Area::kInput, 0, count};
  step.sends.push_back({partner, index == 0 ? own : block(options_.rank)});
  step.receives.push_back({partner, block(partner)});
  if (index == 0) {
    step.inputs.push_back(own);
    step.output = {Area::kOutput, static_cast<size_t>(options_.rank) * count, count};
  }
}

std::pair<int, int> Schedule::Kept(int rank, size_t rounds) const {
  int first = 0;
  int second = options_.size;
  for (size_t round = 0; round < rounds; ++round) {
    const int middle = (first + second) / 2;
    ((rank >> round & 1) == 0 ? second : first) = middle;
  }
  return {first, second};
}

Range Schedule::Slices(std::pair<int, int> slices) const {
  const size_t start = SliceOf(options_.count, options_.size, slices.first).start;
  const Slice last = SliceOf(options_.count, options_.size, slices.second - 1);
  return {Area::kOutput, start, last.start + last.count - start};
}

void Schedule::FillHalvingAllReduce(size_t index, Step& step) const {
  const size_t rounds = steps_ / 2;
  const bool reducing = index < rounds;
  const size_t round = reducing ? index : steps_ - 1 - index;
  const int bit = 1 << round;
  const int partner = options_.rank ^ bit;
  const Range mine = Slices(Kept(options_.rank, round + 1));
  const Range theirs = Slices(Kept(partner, round + 1));
  if (!reducing) {
    step.sends.push_back({partner, mine});
    step.receives.push_back({partner, theirs});
    return;
  }
  const Range incoming{Area::kScratch, 0, mine.count};
  step.sends.push_back({partner, theirs});
  step.receives.push_back({partner, incoming});
  AddPair(step, (options_.rank & bit) == 0, mine, incoming);
  step.complete = round + 1 == rounds;
}

}  // namespace dtrain::comm
