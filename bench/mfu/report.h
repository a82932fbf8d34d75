// The facts of a run as a table for people, JSON for programs and a picture. Pure; free of
// LibTorch.
#pragma once

#include <string>

#include "base/json.h"
#include "bench/mfu/facts.h"
#include "bench/mfu/roofline.h"

namespace dtrain::bench {

std::string MfuTable(const MfuFacts& facts);
// Schema 1: {"bench": "mfu", "schema": 1, "model", ..., "mfu_strict", ...}; rates in units of one.
Json MfuJson(const MfuFacts& facts);
Roofline MfuRoofline(const MfuFacts& facts);

}  // namespace dtrain::bench
