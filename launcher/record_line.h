// Lines for people from metrics records other than steps. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"

namespace dtrain::launcher {

// "step 200  eval/loss 2.3100", "step 200  checkpoint  bytes 1,234", "step 7  NAME  member value"
// for an event; "" for marks without members, for kinds that have no line of their own (step,
// config) and for what is no record.
std::string FormatRecordLine(const Json& record);

// The total number of steps in a "config" record: member or metric "train_steps"; 0 without one.
int64_t TotalSteps(const Json& record);

// The record's kind and step; "" and -1 when absent.
std::string RecordKind(const Json& record);
int64_t RecordStep(const Json& record);

// The record in `line`; nothing when the line is torn or no object.
std::optional<Json> ParseRecord(const std::string& line);

}  // namespace dtrain::launcher
