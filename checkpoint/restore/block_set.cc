#include "checkpoint/restore/block_set.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtrain::checkpoint {

void BlockSet::AddAll(const BlockSet& other) {
  for (uint64_t block = 0; block < has_.size(); ++block) {
    has_[block] = has_[block] || other.has_[block];
  }
}

std::vector<uint64_t> BlockSet::Missing() const {
  std::vector<uint64_t> missing;
  for (uint64_t block = 0; block < has_.size(); ++block) {
    if (!has_[block]) {
      missing.push_back(block);
    }
  }
  return missing;
}

std::string BlockSet::Encode() const {
  std::string text;
  for (uint64_t begin = 0; begin < has_.size(); ++begin) {
    if (!has_[begin]) {
      continue;
    }
    uint64_t end = begin;
    while (end < has_.size() && has_[end]) {
      ++end;
    }
    absl::StrAppend(&text, text.empty() ? "" : ",", begin, "-", end);
    begin = end;  // The block at `end` is not held.
  }
  return text;
}

absl::StatusOr<BlockSet> BlockSet::Parse(absl::string_view text, uint64_t blocks) {
  BlockSet set(blocks);
  for (const absl::string_view range : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    uint64_t begin = 0;
    uint64_t end = 0;
    if (!absl::SimpleAtoi(ends.first, &begin) || !absl::SimpleAtoi(ends.second, &end) ||
        begin >= end || end > blocks) {
      return absl::InvalidArgumentError(absl::StrCat("a rank reports the blocks \"", range,
                                                     "\" of a checkpoint that has ", blocks,
                                                     ": run one version of dtrain on all nodes"));
    }
    for (; begin < end; ++begin) {
      set.Add(begin);
    }
  }
  return set;
}

}  // namespace dtrain::checkpoint
