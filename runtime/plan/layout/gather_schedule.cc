#include "runtime/plan/layout/gather_schedule.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dtrain::plan {

LiveShares ShareLive(int64_t live_max, int64_t training, int64_t frozen) {
  const int64_t fewer = std::min({training, frozen, live_max / 2});
  return training <= frozen ? LiveShares{fewer, live_max - fewer}
                            : LiveShares{live_max - fewer, fewer};
}

GatherSchedule::GatherSchedule(std::vector<int64_t> bucket_elements, const GatherLimits& limits)
    : sizes_(std::move(bucket_elements)),
      limits_(limits),
      live_(sizes_.size(), 0),
      in_use_(sizes_.size(), 0),
      next_(sizes_.size(), kNever),
      recency_(sizes_.size(), 0) {}

GatherSchedule::Record GatherSchedule::MakeRecord(std::vector<int> uses) const {
  Record record;
  record.uses = std::move(uses);
  record.before.assign(1, 0);
  for (const int bucket : record.uses) {
    record.before.push_back(record.before.back() + SizeOf(bucket));
  }
  record.first_use.assign(sizes_.size(), kNever);
  record.next_use.assign(record.uses.size(), kNever);
  for (size_t use = record.uses.size(); use-- > 0;) {
    size_t& first = record.first_use[static_cast<size_t>(record.uses[use])];
    record.next_use[use] = first;
    first = use;
  }
  return record;
}

void GatherSchedule::Begin(Pass pass) {
  if (!on_record_ && !uses_.empty() && pass_ != Pass::kOther) {
    records_[static_cast<size_t>(pass_)] = MakeRecord(std::move(uses_));
  }
  uses_.clear();
  pass_ = pass;
  const Record& record = records_[static_cast<size_t>(pass)];
  on_record_ = !record.empty();
  position_ = kNever;
  if (on_record_) {
    next_ = record.first_use;
  }
}

void GatherSchedule::Invalidate() {
  std::fill(live_.begin(), live_.end(), uint8_t{0});
  live_elements_ = 0;
}

void GatherSchedule::Advance(int bucket) {
  if (!on_record_) {
    if (uses_.empty() || uses_.back() != bucket) {
      uses_.push_back(bucket);
    }
    return;
  }
  const Record& record = records_[static_cast<size_t>(pass_)];
  if (position_ != kNever && record.uses[position_] == bucket) {
    return;
  }
  const size_t from = position_ == kNever ? 0 : position_ + 1;
  const size_t found = next_[static_cast<size_t>(bucket)];
  if (found == kNever || found > from + kSkipMax) {
    on_record_ = false;  // The uses so far begin a new record.
    uses_.assign(record.uses.begin(), record.uses.begin() + static_cast<std::ptrdiff_t>(from));
    uses_.push_back(bucket);
    return;
  }
  for (size_t use = from; use <= found; ++use) {
    next_[static_cast<size_t>(record.uses[use])] = record.next_use[use];
  }
  position_ = found;
}

void GatherSchedule::Use(int bucket, std::vector<GatherAction>& actions) {
  const auto index = static_cast<size_t>(bucket);
  if (in_use_[index]++ > 0) {
    return;  // A part of the operation that uses it: no news, so ranks may differ in it.
  }
  recency_[index] = ++clock_;
  const size_t before = position_;
  Advance(bucket);
  const bool moved = on_record_ && position_ != before;
  if (moved && before != kNever) {
    ReleaseDistant(records_[static_cast<size_t>(pass_)].uses[before], actions);
  }
  if (!is_live(bucket)) {
    MakeRoom(SizeOf(bucket), 0, actions);
    Gather(bucket, actions);
  }
  if (moved) {
    Prefetch(actions);
  }
}

void GatherSchedule::Done(int bucket, std::vector<GatherAction>& actions) {
  const auto index = static_cast<size_t>(bucket);
  DT_CHECK_GT(in_use_[index], 0);
  if (--in_use_[index] > 0) {
    return;
  }
  MakeRoom(0, 0, actions);  // The operation may have needed more than the limit.
  // At its present use the next operation may read it again.
  if (on_record_ && position_ != kNever &&
      records_[static_cast<size_t>(pass_)].uses[position_] != bucket) {
    ReleaseDistant(bucket, actions);
  }
}

void GatherSchedule::ReleaseDistant(int bucket, std::vector<GatherAction>& actions) {
  const auto index = static_cast<size_t>(bucket);
  const Record& record = records_[static_cast<size_t>(pass_)];
  const size_t next = next_[index];
  if (in_use_[index] == 0 && next != kNever &&
      record.before[next] - record.before[position_] > limits_.reuse_max) {
    Release(bucket, actions);
  }
}

void GatherSchedule::Gather(int bucket, std::vector<GatherAction>& actions) {
  live_[static_cast<size_t>(bucket)] = 1;
  live_elements_ += SizeOf(bucket);
  actions.push_back({GatherAction::Kind::kGather, bucket});
}

void GatherSchedule::Release(int bucket, std::vector<GatherAction>& actions) {
  if (!is_live(bucket)) {
    return;
  }
  live_[static_cast<size_t>(bucket)] = 0;
  live_elements_ -= SizeOf(bucket);
  actions.push_back({GatherAction::Kind::kRelease, bucket});
}

int GatherSchedule::Victim(size_t use) const {
  int victim = -1;
  for (size_t bucket = 0; bucket < sizes_.size(); ++bucket) {
    if (live_[bucket] == 0 || in_use_[bucket] > 0 || (on_record_ && next_[bucket] < use)) {
      continue;
    }
    const auto best = static_cast<size_t>(victim);
    if (victim < 0 ||
        (on_record_ ? next_[bucket] > next_[best] : recency_[bucket] < recency_[best])) {
      victim = static_cast<int>(bucket);
    }
  }
  return victim;
}

bool GatherSchedule::MakeRoom(int64_t elements, size_t use, std::vector<GatherAction>& actions) {
  while (live_elements_ + elements > limits_.live_max) {
    const int victim = Victim(use);
    if (victim < 0) {
      return false;
    }
    Release(victim, actions);
  }
  return true;
}

void GatherSchedule::Prefetch(std::vector<GatherAction>& actions) {
  const Record& record = records_[static_cast<size_t>(pass_)];
  const int64_t here = record.before[position_ + 1];
  for (size_t use = position_ + 1; use < record.uses.size(); ++use) {
    const int bucket = record.uses[use];
    if (record.before[use + 1] - here > limits_.prefetch_max) {
      return;
    }
    if (!is_live(bucket)) {
      if (!MakeRoom(SizeOf(bucket), use + 1, actions)) {
        return;
      }
      Gather(bucket, actions);
    }
  }
}

}  // namespace dtrain::plan
