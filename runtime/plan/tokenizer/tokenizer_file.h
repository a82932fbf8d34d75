// The text of a tokenizer.json in memory. Its vocabulary and merges, which may be hundreds of
// thousands, are read straight into rows; the rest is JSON. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain::plan {

struct TokenizerFile {
  Json rest;  // All but model.vocab and model.merges, which are {} and [] here.
  std::vector<std::pair<std::string, uint32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;
};

// InvalidArgument: damaged; the message has `name` and the place. Ids are below 2^24.
absl::StatusOr<TokenizerFile> ReadTokenizerFile(absl::string_view text, absl::string_view name);

}  // namespace dtrain::plan
