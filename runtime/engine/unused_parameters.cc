#include "runtime/engine/unused_parameters.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"

namespace dtrain {

int32_t UnusedParameters::Note(std::vector<uint8_t> used) {
  used_ = std::move(used);
  int32_t asked = 0;
  for (size_t i = 0; i < used_.size(); ++i) {
    asked += used_[i] == 0 && (skips_ || looked_at_[i] == 0) ? 1 : 0;
  }
  return asked;
}

absl::Status UnusedParameters::Agree(bool compares, int64_t step) {
  unused_.clear();
  if (!compares) {
    return absl::OkStatus();
  }
  std::vector<uint8_t> by_any = used_;
  DT_ASSIGN_OR_RETURN(
      const comm::Work work,
      group_.AllReduce({by_any.data(), by_any.size(), DType::kUInt8, {}}, comm::ReduceOp::kMax,
                       {.name = "used parameters", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  if (std::find(by_any.begin(), by_any.end(), 0) != by_any.end()) {
    unused_.resize(by_any.size());
    std::transform(by_any.begin(), by_any.end(), unused_.begin(),
                   [](uint8_t used) { return static_cast<uint8_t>(used == 0); });
    Say(step);
  }
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i] == 0) {
      looked_at_[i] = 1;
    }
  }
  return absl::OkStatus();
}

void UnusedParameters::Say(int64_t step) {
  constexpr size_t kShownMax = 8;
  std::vector<absl::string_view> names;
  const auto& entries = layout_.entries();
  for (size_t i = entries.size(); i-- > 0;) {  // In the order of registration.
    if (unused_[i] != 0 && said_[i] == 0) {
      names.push_back(entries[i].name);
      said_[i] = 1;
    }
  }
  if (names.empty() || group_.rank() != 0) {
    return;
  }
  const size_t shown = std::min(names.size(), kShownMax);
  DT_LOG(Warning) << absl::StrFormat(
      "step %d: no rank's loss used %d of %d parameters: %s%s; %s. If the loss should use them, "
      "look for a member of the module that was assigned another tensor than the registered one",
      step, names.size(), entries.size(),
      absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      names.size() > shown ? absl::StrCat(" and ", names.size() - shown, " more") : "",
      skips_ ? "they stay as they are (optimizer.skip_unused_parameters)"
             : "their gradient is zero, and weight decay and the optimizer's states move them all "
               "the same (to leave them as they are, set optimizer.skip_unused_parameters)");
}

}  // namespace dtrain
