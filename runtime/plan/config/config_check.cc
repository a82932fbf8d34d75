#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status.h"
#include "runtime/plan/config/config_keys.h"
#include "runtime/plan/config/data_sources.h"

namespace dtrain::plan {
namespace {

// "[0, 1)": an interval of the table, parsed. The table is ours, so a bad one is a bug.
struct Interval {
  double low = 0;
  double high = 0;
  bool low_open = false;
  bool high_open = false;
};

double Bound(absl::string_view text) {
  if (text == "inf") {
    return std::numeric_limits<double>::infinity();
  }
  double value = 0;
  DT_CHECK(absl::SimpleAtod(text, &value)) << "range bound " << text;
  return value;
}

Interval ParseInterval(absl::string_view text) {
  DT_CHECK(text.size() >= 5) << "range " << text;
  const std::vector<absl::string_view> bounds =
      absl::StrSplit(text.substr(1, text.size() - 2), absl::MaxSplits(", ", 1));
  DT_CHECK_EQ(bounds.size(), 2u);
  return {Bound(bounds[0]), Bound(bounds[1]), text.front() == '(', text.back() == ')'};
}

bool InRange(const char* range, double value) {
  if (*range == '\0') {
    return true;
  }
  const Interval interval = ParseInterval(range);
  return (interval.low_open ? value > interval.low : value >= interval.low) &&
         (interval.high_open ? value < interval.high : value <= interval.high);
}

// ", 1 or more", " from 0 to below 1": follows the name of a type.
std::string IntervalText(absl::string_view range) {
  const Interval interval = ParseInterval(range);
  const std::vector<absl::string_view> bounds =
      absl::StrSplit(range.substr(1, range.size() - 2), absl::MaxSplits(", ", 1));
  if (std::isinf(interval.high)) {
    return interval.low_open ? absl::StrCat(" above ", bounds[0])
                             : absl::StrCat(", ", bounds[0], " or more");
  }
  return absl::StrCat(interval.low_open ? " above " : " from ", bounds[0],
                      interval.low_open ? ", up to " : " to ", interval.high_open ? "below " : "",
                      bounds[1]);
}

absl::Status Refuse(const ConfigKey& key, const Json& value) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %s; want %s", key.path, ShortJson(value), AllowedText(key)));
}

std::optional<double> InRangeNumber(const ConfigKey& key, const Json& value) {
  if (!value.is_number() || !InRange(key.range, value.get<double>())) {
    return std::nullopt;
  }
  return value.get<double>();
}

// The spelling of the table, whatever the case.
std::optional<std::string> Spelling(const char* range, const std::string& text) {
  if (*range == '\0') {
    return text;
  }
  for (const absl::string_view choice : absl::StrSplit(range, '|')) {
    if (absl::EqualsIgnoreCase(choice, text)) {
      return std::string(choice);
    }
  }
  return std::nullopt;
}

absl::StatusOr<Json> CheckList(const ConfigKey& key, const Json& value) {
  const Json list = value.is_string() ? Json::array({value}) : value;
  if (!list.is_array()) {
    return Refuse(key, value);
  }
  for (const Json& item : list) {
    const bool fits = key.type == KeyType::kStringList
                          ? item.is_string() && !item.get_ref<const std::string&>().empty()
                          : JsonInteger(item).ok();
    if (!fits) {
      return Refuse(key, value);
    }
  }
  return list;
}

}  // namespace

absl::string_view KeyTypeName(KeyType type) {
  switch (type) {
    case KeyType::kBool:
      return "true or false";
    case KeyType::kInteger:
      return "an integer";
    case KeyType::kNumber:
      return "a number";
    case KeyType::kString:
      return "a string";
    case KeyType::kStringList:
      return "a list of strings";
    case KeyType::kNumberPair:
      return "two numbers";
    case KeyType::kIntegerList:
      return "a list of integers";
    case KeyType::kObjectList:
      return "a list of objects";
    case KeyType::kDataSources:
      return "a list of strings or of objects";
    case KeyType::kFree:
      return "an object";
  }
  return "";
}

std::vector<std::string> Choices(const ConfigKey& key) {
  if (key.type != KeyType::kString || *key.range == '\0') {
    return {};
  }
  const Json accepted = Json::parse(*key.accepted == '\0' ? "[]" : key.accepted);
  return accepted.empty() ? absl::StrSplit(key.range, '|')
                          : accepted.get<std::vector<std::string>>();
}

std::string AllowedText(const ConfigKey& key) {
  std::string text(KeyTypeName(key.type));
  if (const std::vector<std::string> choices = Choices(key); !choices.empty()) {
    text = absl::StrCat(choices.size() > 1 ? "one of " : "", absl::StrJoin(choices, ", "));
  } else if (*key.range != '\0') {
    text += IntervalText(key.range);
  }
  absl::StrAppend(&text, (key.flags & kContinuousAllowed) != 0 ? ", or \"continuous\"" : "",
                  (key.flags & kAutoAllowed) != 0 ? ", or \"auto\"" : "");
  return text;
}

std::string ShortJson(const Json& value) {
  constexpr size_t kMost = 80;
  const std::string text = DumpJson(value);
  return text.size() <= kMost ? text : text.substr(0, kMost - 3) + "...";
}

bool TakesAuto(const ConfigKey& key) {
  if ((key.flags & kAutoAllowed) != 0) {
    return true;
  }
  const bool is_scalar = key.type == KeyType::kBool || key.type == KeyType::kInteger ||
                         key.type == KeyType::kNumber || key.type == KeyType::kString;
  const std::vector<std::string> choices = Choices(key);
  const bool is_choice = std::find(choices.begin(), choices.end(), "auto") != choices.end();
  if (!is_scalar || is_choice) {
    return false;
  }
  if (key.use != KeyUse::kUsed) {
    return true;
  }
  constexpr absl::string_view kDeepSpeeds[] = {"zero_optimization.",
                                               "optimizer.params.",
                                               "scheduler.",
                                               "fp16.",
                                               "bf16.",
                                               "aio.",
                                               "activation_checkpointing.",
                                               "communication_data_type",
                                               "prescale_gradients",
                                               "gradient_predivide_factor"};
  return std::any_of(std::begin(kDeepSpeeds), std::end(kDeepSpeeds),
                     [&](absl::string_view begin) { return absl::StartsWith(key.path, begin); });
}

absl::StatusOr<Json> CheckValue(const ConfigKey& key, const Json& value) {
  if (value.is_string() && value == "auto" && TakesAuto(key)) {
    return value;
  }
  if ((key.flags & kContinuousAllowed) != 0 && value == "continuous") {
    return value;
  }
  switch (key.type) {
    case KeyType::kBool:
      if (value.is_boolean()) {
        return value;
      }
      break;
    case KeyType::kInteger:
      if (const absl::StatusOr<int64_t> integer = JsonInteger(value);
          integer.ok() && InRange(key.range, static_cast<double>(*integer))) {
        return Json(*integer);
      }
      break;
    case KeyType::kNumber:
      if (const std::optional<double> number = InRangeNumber(key, value)) {
        return Json(*number);
      }
      break;
    case KeyType::kString:
      if (value.is_string()) {
        if (const auto text = Spelling(key.range, value.get<std::string>())) {
          return Json(*text);
        }
      }
      break;
    case KeyType::kNumberPair:
      if (value.is_array() && value.size() == 2 && InRangeNumber(key, value[0]) &&
          InRangeNumber(key, value[1])) {
        return Json::array({value[0].get<double>(), value[1].get<double>()});
      }
      break;
    case KeyType::kStringList:
    case KeyType::kIntegerList:
      return CheckList(key, value);
    case KeyType::kObjectList:
      if (value.is_array() && std::all_of(value.begin(), value.end(),
                                          [](const Json& item) { return item.is_object(); })) {
        return value;
      }
      break;
    case KeyType::kDataSources:
      return CheckDataSources(key.path, value);
    case KeyType::kFree:
      if (value.is_object()) {
        return value;
      }
      break;
  }
  return Refuse(key, value);
}

}  // namespace dtrain::plan
