// Facts that stand in the programs that read the published tiktoken files, and not in the files.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::plan {

struct PublishedRanks {
  size_t ranks;             // By this number a file is known: no two share it.
  const char* pattern;      // A name of WordScanner.
  const char* normal_form;  // Unicode's, into which text is brought first, or "".
  const char* begin;        // The special tokens around a document; "" for none.
  const char* end;
  std::vector<std::pair<std::string, uint32_t>> (*specials)();
};

// nullptr: no published file has this number of ranks.
const PublishedRanks* FindPublished(size_t ranks);

}  // namespace dtrain::plan
