#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/job_env.h"
#include "base/status.h"

namespace dtrain {
namespace {

constexpr size_t kHostsMax = 65536;

absl::Status Bad(const std::string& text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("host list \"%s\": %s", text, why));
}

// "007-009,011" -> {"007", "008", "009", "011"}.
absl::StatusOr<std::vector<std::string>> ExpandRanges(const std::string& text,
                                                      absl::string_view ranges) {
  std::vector<std::string> numbers;
  for (const absl::string_view range : absl::StrSplit(ranges, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    uint32_t first = 0;
    uint32_t last = 0;
    // SimpleAtoi would take signs and blanks too.
    const bool only_digits =
        absl::c_all_of(range, [](unsigned char c) { return absl::ascii_isdigit(c) || c == '-'; });
    if (!only_digits || ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || last < first || last - first >= kHostsMax) {
      return Bad(text, absl::StrCat("bad range [", range, "]"));
    }
    for (uint64_t n = first; n <= last; ++n) {
      numbers.push_back(absl::StrFormat("%0*d", static_cast<int>(ends.front().size()), n));
    }
  }
  return numbers;
}

// One host pattern without top-level commas -> its names.
absl::StatusOr<std::vector<std::string>> ExpandPattern(const std::string& text,
                                                       absl::string_view pattern) {
  std::vector<std::string> names = {""};
  while (!pattern.empty()) {
    const size_t open = pattern.find('[');
    const absl::string_view literal = pattern.substr(0, open);
    for (std::string& name : names) {
      absl::StrAppend(&name, literal);
    }
    if (open == absl::string_view::npos) {
      break;
    }
    const size_t close = pattern.find(']', open);
    if (close == absl::string_view::npos) {
      return Bad(text, "a [ without its ]");
    }
    DT_ASSIGN_OR_RETURN(const auto numbers,
                        ExpandRanges(text, pattern.substr(open + 1, close - open - 1)));
    if (names.size() * numbers.size() > kHostsMax) {
      return Bad(text, absl::StrFormat("more than %d names", kHostsMax));
    }
    std::vector<std::string> product;
    for (const std::string& name : names) {
      for (const std::string& number : numbers) {
        product.push_back(name + number);
      }
    }
    names = std::move(product);
    pattern = pattern.substr(close + 1);
  }
  return names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostList(const std::string& text) {
  std::vector<std::string> hosts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (depth < 0 || depth > 1 || (i == text.size() && depth != 0)) {
      return Bad(text, "unbalanced brackets");
    }
    if (c != ',' || depth != 0) {
      continue;
    }
    if (i > begin) {
      DT_ASSIGN_OR_RETURN(auto names, ExpandPattern(text, text.substr(begin, i - begin)));
      hosts.insert(hosts.end(), names.begin(), names.end());
    }
    begin = i + 1;
  }
  if (hosts.size() > kHostsMax) {
    return Bad(text, absl::StrFormat("more than %d names", kHostsMax));
  }
  return hosts;
}

}  // namespace dtrain
