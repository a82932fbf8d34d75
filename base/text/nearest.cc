#include "base/text/nearest.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtrain {

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

namespace {

constexpr size_t kLettersMax = 200;  // The distance is quadratic; names are far shorter.

// Whether two short words of the same length differ in a letter that was replaced.
bool IsAnotherWord(absl::string_view a, absl::string_view b) {
  constexpr size_t kShort = 3;
  return a.size() <= kShort && a.size() == b.size() &&
         !std::is_permutation(a.begin(), a.end(), b.begin());
}

std::string NearestWithin(absl::string_view name, const std::vector<std::string>& names,
                          size_t edits_max) {
  name = name.substr(0, kLettersMax);
  std::string best;
  size_t best_distance = edits_max + 1;
  for (const std::string& candidate : names) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance && distance < std::max(name.size(), candidate.size()) &&
        !IsAnotherWord(name, candidate)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

std::string Nearest(absl::string_view name, const std::vector<std::string>& names) {
  return NearestWithin(name, names, std::max<size_t>(2, std::min(name.size(), kLettersMax) / 3));
}

std::string Misspelt(absl::string_view name, const std::vector<std::string>& names) {
  // In shorter names two changed letters make another name: "mse" is not a misspelt "mfu".
  constexpr size_t kShort = 6;
  const std::string nearest = NearestWithin(name, names, name.size() < kShort ? 1 : 2);
  return nearest == name ? "" : nearest;
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

std::string UnknownOption(absl::string_view given, const std::vector<std::string>& names) {
  const auto word = [](absl::string_view option) {
    return option.substr(std::min(option.find_first_not_of('-'), option.size()));
  };
  std::vector<std::string> words;
  for (const std::string& name : names) {
    words.emplace_back(word(name));
  }
  const std::string nearest = word(given).size() > 1 ? Nearest(word(given), words) : "";
  return absl::StrCat("unknown option ", given,
                      nearest.empty() ? "" : absl::StrCat("; did you mean --", nearest, "?"));
}

}  // namespace dtrain
