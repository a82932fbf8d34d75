// Lines for people from metrics records other than steps. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/console/banner.h"
#include "base/json.h"

namespace dtrain {

// The "name" of the first event of a run, with the members "title" and "rows", an array of
// [label, text].
inline constexpr char kBannerEvent[] = "banner";

// "step 200  eval/loss 2.3100", "saved step 200 in 0.4 s (61 MB) to PATH", "resumed from step 200
// (checkpoint PATH, saved 3 min ago)", the banner, "step 7  NAME  member value" for another event.
// Empty for marks without members, for a save that failed (the rank logs a warning), for kinds
// without a line of their own (step, config) and if `record` is no record. Lines wider than the
// terminal's `width` are wrapped; 0: any width.
std::vector<std::string> FormatRecord(const Json& record, int width);

// The banner in a record; nothing in others.
std::optional<Banner> BannerOf(const Json& record);

// The total number of steps in a "config" record, its member or metric "train_steps"; 0 without
// one.
int64_t TotalSteps(const Json& record);

// The record's kind and step; "" and -1 when absent.
std::string RecordKind(const Json& record);
int64_t RecordStep(const Json& record);

// The record in `line`; nothing when the line is incomplete or not an object.
std::optional<Json> ParseRecord(const std::string& line);

}  // namespace dtrain
