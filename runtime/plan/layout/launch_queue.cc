#include "runtime/plan/layout/launch_queue.h"

#include <algorithm>
#include <utility>

namespace dtrain::plan {

LaunchQueue::LaunchQueue(std::vector<BucketSpan> spans, std::vector<int> order)
    : spans_(std::move(spans)),
      order_(std::move(order)),
      parts_(order_.size(), 0),
      pending_(order_.size(), 0),
      launched_(order_.size(), 0),
      ready_(spans_.size(), 0) {
  readiness_.reserve(spans_.size());
  for (const BucketSpan& span : spans_) {
    for (int bucket = span.first; bucket < span.last; ++bucket) {
      ++parts_[static_cast<size_t>(bucket)];
    }
  }
  Arm();
}

void LaunchQueue::UseUnits(std::vector<std::vector<size_t>> units) {
  units_ = std::move(units);
  is_held_.assign(units_.empty() ? 0 : spans_.size(), 0);
  Arm();
}

void LaunchQueue::Arm() {
  for (const std::vector<size_t>& unit : units_) {
    for (const size_t entry : unit) {
      is_held_[entry] = 1;
    }
  }
  pending_ = parts_;
  std::fill(launched_.begin(), launched_.end(), uint8_t{0});
  std::fill(ready_.begin(), ready_.end(), uint8_t{0});
  readiness_.clear();
  next_ = 0;
}

void LaunchQueue::Ready(size_t entry, Launch launch) {
  if (ready_[entry] != 0) {
    return;
  }
  ready_[entry] = 1;
  if (!is_held_.empty() && is_held_[entry] != 0) {
    return;
  }
  Count(entry);
  LaunchFull(launch);
}

void LaunchQueue::EndUnit(size_t unit, Launch launch) {
  for (const size_t entry : units_[unit]) {
    if (is_held_[entry] != 0) {
      is_held_[entry] = 0;
      ready_[entry] = 1;
      Count(entry);
    }
  }
  LaunchFull(launch);
}

void LaunchQueue::Count(size_t entry) {
  readiness_.push_back(static_cast<int>(entry));
  for (int bucket = spans_[entry].first; bucket < spans_[entry].last; ++bucket) {
    --pending_[static_cast<size_t>(bucket)];
  }
}

void LaunchQueue::ReadyAll(Launch launch) {
  std::fill(pending_.begin(), pending_.end(), 0);
  std::fill(ready_.begin(), ready_.end(), uint8_t{1});
  LaunchFull(launch);
}

bool LaunchQueue::is_launched(size_t entry) const {
  const BucketSpan& span = spans_[entry];
  return std::any_of(launched_.begin() + span.first, launched_.begin() + span.last,
                     [](uint8_t launched) { return launched != 0; });
}

void LaunchQueue::UseOrder(std::vector<int> order) { order_ = std::move(order); }

void LaunchQueue::LaunchFull(Launch launch) {
  while (next_ < order_.size() && pending_[static_cast<size_t>(order_[next_])] == 0) {
    const int bucket = order_[next_++];
    launched_[static_cast<size_t>(bucket)] = 1;
    launch(bucket);
  }
}

}  // namespace dtrain::plan
