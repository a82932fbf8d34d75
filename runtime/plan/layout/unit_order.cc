#include "runtime/plan/layout/unit_order.h"

#include <algorithm>
#include <utility>

namespace dtrain::plan {

void UnitOrder::Begin(Pass pass) {
  pass_ = pass;
  on_record_ = !records_[static_cast<size_t>(pass)].empty();
  next_ = 0;
  seen_.clear();
}

void UnitOrder::AppendSteps(size_t end, std::vector<UnitStep>& steps) {
  const std::vector<Item>& record = records_[static_cast<size_t>(pass_)];
  for (; next_ < end; ++next_) {
    if (const Item& item = record[next_]; item.place >= 0) {
      steps.push_back({item.is_end ? UnitStep::Kind::kEnd : UnitStep::Kind::kOpen, item.place});
    }
  }
}

void UnitOrder::Come(int place, std::vector<UnitStep>& steps) {
  if (place == kBackward && next_ == 0 && seen_.empty()) {
    pass_ = Pass::kOther;  // Another backward of a graph that an earlier pass made.
    on_record_ = false;
  }
  if (pass_ == Pass::kOther) {
    return;  // Never recorded, and it may be long.
  }
  if (on_record_) {
    const std::vector<Item>& record = records_[static_cast<size_t>(pass_)];
    const auto is_here = [place](const Item& item) { return !item.is_end && item.place == place; };
    if (next_ > 0 && is_here(record[next_ - 1])) {
      return;
    }
    const size_t limit = std::min(record.size(), next_ + kSkipMax);
    const auto begin = record.begin();
    const auto found = std::find_if(begin + static_cast<std::ptrdiff_t>(next_),
                                    begin + static_cast<std::ptrdiff_t>(limit), is_here);
    const auto index = static_cast<size_t>(found - begin);
    if (index < limit) {
      AppendSteps(index, steps);
      next_ = index + 1;
      return;
    }
    on_record_ = false;  // The steps so far begin a new record.
    seen_.assign(begin, begin + static_cast<std::ptrdiff_t>(next_));
  }
  if (seen_.empty() || seen_.back().is_end || seen_.back().place != place) {
    seen_.push_back({place, /*is_end=*/false});
  }
}

void UnitOrder::NoteEnd(int unit) {
  if (!on_record_ && pass_ != Pass::kOther) {
    seen_.push_back({unit, /*is_end=*/true});
  }
}

void UnitOrder::End(std::vector<UnitStep>& steps) {
  std::vector<Item>& record = records_[static_cast<size_t>(pass_)];
  if (on_record_ && next_ > 0) {
    AppendSteps(record.size(), steps);
  } else if (!on_record_ && pass_ != Pass::kOther && !seen_.empty()) {
    record = std::move(seen_);
  }
  Begin(pass_);
}

}  // namespace dtrain::plan
