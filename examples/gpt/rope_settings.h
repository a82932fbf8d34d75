// The settings of rotary positions in a config.json, in the spellings of transformers 4
// (rope_theta, rope_scaling with "type" or "rope_type") and 5 (rope_parameters). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "gpt/config_reader.h"
#include "gpt/gpt_options.h"

// Reads every spelling. One setting with two values is an error that names both keys and values.
void ReadRope(ConfigReader& reader, int64_t positions, RopeOptions& into);

// Gives `file` with its settings replaced by those that `given` has, in any spelling. An object
// without a type, or with the type of `file`, changes single settings. An object of another type
// replaces all but rope_theta, and null removes the scaling. `where` begins messages about `file`.
absl::StatusOr<dtrain::Json> WithRopeOf(const dtrain::Json& given, dtrain::Json file,
                                        const std::string& where);

// Whether `key` of a config.json is one of the spellings.
bool IsRopeKey(const std::string& key);
