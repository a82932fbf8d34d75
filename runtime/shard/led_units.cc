#include "runtime/shard/led_units.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ATen/SequenceNumber.h"
#include "ATen/core/grad_mode.h"
#include "ATen/record_function.h"
#include "torch/csrc/autograd/function.h"

namespace dtrain {

LedUnits::LedUnits(const plan::ShardPlan& shards, absl::Span<const plan::FlatRange> units,
                   Buckets& buckets)
    : shards_(shards), buckets_(buckets) {
  for (const plan::FlatRange& range : units) {
    const plan::FlatRange held{range.begin, std::min(range.end, shards.padded_elements())};
    units_.push_back({.range = held, .span = shards.BucketsOf(held)});
  }
}

// Gives each part of [begin, end) and the unit that it is in; units_.size(): none.
template <typename Function>
void LedUnits::ForEachPart(int64_t begin, int64_t end, Function function) const {
  auto unit =
      std::upper_bound(units_.begin(), units_.end(), begin,
                       [](int64_t at, const Unit& candidate) { return at < candidate.range.end; });
  while (begin < end) {
    const int64_t next = unit == units_.end() ? end : std::min(end, unit->range.begin);
    if (begin < next) {
      function(units_.size(), plan::FlatRange{begin, next});
      begin = next;
      continue;
    }
    const int64_t last = std::min(end, unit->range.end);
    function(static_cast<size_t>(unit - units_.begin()), plan::FlatRange{begin, last});
    begin = last;
    ++unit;
  }
}

// A node that is made before its forward runs, without a graph, has the number before the next.
LedUnits::Moment LedUnits::Now() {
  const uint64_t next = at::sequence_number::peek();
  const uint64_t inside = at::GradMode::is_enabled() || next == 0 ? 0 : 1;
  return {next - inside, at::RecordFunction::currentThreadId()};
}

// The node that runs has none if forward did not make it, but a segment that is computed again.
std::optional<LedUnits::Moment> LedUnits::MomentOfBackward() const {
  if (!backward_.has_value()) {
    return std::nullopt;
  }
  const std::shared_ptr<torch::autograd::Node> node = torch::autograd::get_current_node();
  if (node == nullptr || node->thread_id() != backward_->thread ||
      node->sequence_nr() >= backward_->sequence) {
    return std::nullopt;
  }
  return Moment{node->sequence_nr(), node->thread_id()};
}

void LedUnits::BeginPass(plan::UnitOrder::Pass pass) {
  const std::lock_guard lock(mutex_);
  Leave();
  order_.Begin(pass);
  open_.clear();
  backward_.reset();
  for (Unit& unit : units_) {
    unit.seen = false;
  }
}

void LedUnits::BeginBackward() {
  const std::lock_guard lock(mutex_);
  Come(plan::UnitOrder::kBackward);
  backward_ = Moment{at::sequence_number::peek(), at::RecordFunction::currentThreadId()};
}

void LedUnits::EndPass() {
  const std::lock_guard lock(mutex_);
  steps_.clear();
  order_.End(steps_);
  Do(steps_);
}

void LedUnits::BeforeRead(int64_t begin, int64_t end) {
  const std::lock_guard lock(mutex_);
  ForEachPart(begin, end, [this](size_t unit, plan::FlatRange range) {
    unit < units_.size() ? Read(unit) : ReadOther(range);
  });
}

void LedUnits::AfterRead(int64_t begin, int64_t end) {
  const std::lock_guard lock(mutex_);
  ForEachPart(begin, end, [this](size_t index, plan::FlatRange range) {
    if (index == units_.size()) {
      buckets_.Done(shards_.BucketsOf(range));
      return;
    }
    Unit& unit = units_[index];
    --unit.reads;
    while (unit.reads == 0 && unit.postponed > 0) {
      --unit.postponed;
      buckets_.Done(unit.span);
    }
  });
}

void LedUnits::Read(size_t unit) {
  ++units_[unit].reads;
  if (present_ == unit) {
    return;
  }
  NoteEnds(unit);
  Come(static_cast<int>(unit));
  Unit& read = units_[unit];
  if (!read.seen && !backward_.has_value()) {
    open_.push_back({unit, Now()});
  }
  Enter(unit);
}

void LedUnits::ReadOther(plan::FlatRange range) {
  const plan::BucketSpan span = shards_.BucketsOf(range);
  NoteEnds(std::nullopt);
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    Come(plan::UnitOrder::OfBucket(bucket));
  }
  Leave();
  buckets_.Use(span, range.begin);
}

void LedUnits::Enter(size_t unit) {
  Leave();
  present_ = unit;
  units_[unit].seen = true;
  buckets_.Use(units_[unit].span, units_[unit].range.begin);
}

void LedUnits::Leave() {
  if (!present_.has_value()) {
    return;
  }
  Unit& unit = units_[*std::exchange(present_, std::nullopt)];
  if (unit.reads > 0) {
    ++unit.postponed;  // An operation reads other weights too.
  } else {
    buckets_.Done(unit.span);
  }
}

void LedUnits::Come(int place) {
  steps_.clear();
  order_.Come(place, steps_);
  Do(steps_);
}

void LedUnits::Do(const std::vector<plan::UnitStep>& steps) {
  for (const plan::UnitStep& step : steps) {
    const auto unit = static_cast<size_t>(step.unit);
    if (step.kind == plan::UnitStep::Kind::kEnd) {
      End(unit);
    } else if (present_ != unit) {
      Enter(unit);
    }
  }
}

// Off the record: what has ended before `read`, or weights outside of units, is read.
void LedUnits::NoteEnds(std::optional<size_t> read) {
  if (open_.empty() || !order_.wants_ends()) {
    return;
  }
  const std::optional<Moment> now = MomentOfBackward();
  while (now.has_value() && !open_.empty() && open_.back().unit != read &&
         open_.back().since.thread == now->thread && now->sequence < open_.back().since.sequence) {
    const size_t unit = open_.back().unit;
    order_.NoteEnd(static_cast<int>(unit));
    End(unit);
  }
}

void LedUnits::End(size_t unit) {
  open_.erase(std::remove_if(open_.begin(), open_.end(),
                             [unit](const Open& open) { return open.unit == unit; }),
              open_.end());
  if (on_end_ != nullptr) {
    on_end_(unit);
  }
}

}  // namespace dtrain
