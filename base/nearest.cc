#include "base/nearest.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtrain {
namespace {

// Levenshtein distance, one row at a time.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string Nearest(absl::string_view name, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : names) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance && distance < std::max(name.size(), candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string UnknownCommand(absl::string_view prefix, absl::string_view given,
                           const std::vector<std::string>& names) {
  const std::string nearest = Nearest(given, names);
  const auto with_prefix = [prefix](std::string* out, const std::string& name) {
    absl::StrAppend(out, prefix, name);
  };
  return absl::StrCat("unknown command ", prefix, given, "; ",
                      nearest.empty()
                          ? std::string("there are: ")
                          : absl::StrCat("did you mean ", prefix, nearest, "? There are: "),
                      absl::StrJoin(names, ", ", with_prefix));
}

}  // namespace dtrain
