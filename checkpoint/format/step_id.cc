#include "checkpoint/format/step_id.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace dtrain::checkpoint {

std::string StepId::DirectoryName() const { return absl::StrFormat("step-%012d.e%d", step, epoch); }

std::string StepId::ToString() const { return absl::StrFormat("step %d of epoch %d", step, epoch); }

std::optional<StepId> StepId::FromDirectoryName(absl::string_view name) {
  constexpr size_t kPrefix = 5;  // "step-"
  constexpr size_t kDigits = 12;
  StepId id;
  if (name.size() < kPrefix + kDigits + 3 ||
      !absl::SimpleAtoi(name.substr(kPrefix, kDigits), &id.step) ||
      !absl::SimpleAtoi(name.substr(kPrefix + kDigits + 2), &id.epoch) || id.step < 0 ||
      id.epoch < 1 || id.epoch > kEpochMax || id.DirectoryName() != name) {
    return std::nullopt;
  }
  return id;
}

}  // namespace dtrain::checkpoint
