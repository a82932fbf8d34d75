// The identity of a checkpoint: the step it holds and the run attempt (epoch) that wrote it. A
// plain value.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::checkpoint {

inline constexpr int64_t kStepMax = 999'999'999'999;
inline constexpr int64_t kEpochMax = 99'999'999;

struct StepId {
  int64_t epoch = 0;  // From 1.
  int64_t step = 0;

  auto operator<=>(const StepId&) const = default;
  // "step-000000001200.e3": the checkpoint's folder.
  std::string DirectoryName() const;
  // "step 1200 of epoch 3", for messages.
  std::string ToString() const;
  // The id whose DirectoryName is exactly `name`.
  static std::optional<StepId> FromDirectoryName(absl::string_view name);
};

}  // namespace dtrain::checkpoint
