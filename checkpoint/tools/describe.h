// Describes a checkpoint as text for people and as JSON for programs. Pure: the time is an
// argument.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/json.h"
#include "checkpoint/format/manifest.h"

namespace dtrain::checkpoint {

// "2026-11-25 02:26:14 UTC".
std::string TimeText(int64_t unix_ms);

// Seconds between `unix_ms` and `now`.
double AgeSeconds(int64_t unix_ms, absl::Time now);

// Elements of the tensors in model/.
uint64_t ParametersOf(const Manifest& manifest);

// Tables of the manifest's content; `path` is the checkpoint's folder. `with_tensors`: also lists
// every tensor.
std::string DescribeText(const Manifest& manifest, const std::string& path, absl::Time now,
                         bool with_tensors);

// The same and the manifest's other values, as an object.
Json DescribeJson(const Manifest& manifest, const std::string& path);

// The entry of `list` for one checkpoint, as an object. `manifest` null: it cannot be read.
// `state`: why the checkpoint is damaged, or OK.
Json ListedJson(StepId id, const Manifest* manifest, bool resumable, const absl::Status& state);

}  // namespace dtrain::checkpoint
