#include "base/json.h"

#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_format.h"

namespace dtrain {
namespace {

constexpr int kDepthMax = 64;

std::string Position(absl::string_view text, size_t byte) {
  int line = 1;
  int column = 1;
  for (size_t i = 0; i < byte && i < text.size(); ++i) {
    column = text[i] == '\n' ? 1 : column + 1;
    line += text[i] == '\n' ? 1 : 0;
  }
  return absl::StrFormat("%d:%d", line, column);
}

Json FiniteCopy(const Json& json) {
  if (json.is_object()) {
    Json copy = Json::object();
    for (const auto& [key, value] : json.items()) {
      copy[key] = FiniteCopy(value);
    }
    return copy;
  }
  if (json.is_array()) {
    Json copy = Json::array();
    for (const Json& value : json) {
      copy.push_back(FiniteCopy(value));
    }
    return copy;
  }
  if (json.is_number_float() && !std::isfinite(json.get<double>())) {
    const double value = json.get<double>();
    return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
  }
  return json;
}

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view file_name) {
  // nlohmann takes a zero byte for the end of the text and would ignore the rest.
  if (const size_t zero = text.find('\0'); zero != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%s: a zero byte, which JSON does not allow; remove it and what is not "
                        "part of the document",
                        file_name, Position(text, zero)));
  }
  std::vector<std::set<std::string, std::less<>>> keys;
  std::string problem;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDepthMax && problem.empty()) {
      problem = absl::StrFormat("nested deeper than %d levels", kDepthMax);
    }
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key && problem.empty()) {
      if (!keys.back().insert(parsed.get<std::string>()).second) {
        problem = absl::StrFormat("key \"%s\" appears twice in one object",
                                  parsed.get_ref<const std::string&>());
      }
    }
    return problem.empty();
  };
  try {
    Json json = Json::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/true,
                            /*ignore_comments=*/true);
    if (!problem.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: %s", file_name, problem));
    }
    return json;
  } catch (const Json::parse_error& error) {  // nlohmann's one way to report a syntax error.
    std::string what = error.what();
    const size_t colon = what.find(": ");  // "[json.exception...] parse error at line..: syntax..."
    what = colon == std::string::npos ? what : what.substr(colon + 2);
    const size_t byte = error.byte > 0 ? error.byte - 1 : 0;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%s: %s", file_name, Position(text, byte), what));
  } catch (const Json::out_of_range& error) {  // A number beyond double, such as 1e999.
    const std::string what = error.what();
    const size_t bracket = what.find("] ");
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s", file_name, bracket == std::string::npos ? what : what.substr(bracket + 2)));
  }
}

std::string DumpJson(const Json& json, int indent) {
  return FiniteCopy(json).dump(indent > 0 ? indent : -1, ' ', false,
                               Json::error_handler_t::replace);
}

absl::StatusOr<int64_t> JsonInteger(const Json& json) {
  if (json.is_number_unsigned()) {
    const auto value = json.get<uint64_t>();
    if (value <= static_cast<uint64_t>(INT64_MAX)) {
      return static_cast<int64_t>(value);
    }
  } else if (json.is_number_integer()) {
    return json.get<int64_t>();
  } else if (json.is_number_float()) {
    const double value = json.get<double>();
    if (std::trunc(value) == value && std::fabs(value) < 0x1p53) {
      return static_cast<int64_t>(value);
    }
  }
  return absl::InvalidArgumentError(absl::StrFormat("%s is not an integer", json.dump()));
}

}  // namespace dtrain
