#include "launcher/record_line.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/progress_line.h"

namespace dtrain::launcher {
namespace {

std::string FormatValue(const Json& value) {
  if (value.is_number_integer()) {
    return WithThousands(value.get<int64_t>());
  }
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    const double size = std::abs(number);
    return size >= 1e6 || (size < 1e-3 && size > 0) ? absl::StrFormat("%.4g", number)
                                                    : absl::StrFormat("%.4f", number);
  }
  return value.is_string() ? value.get<std::string>() : DumpJson(value);
}

// Members that every record has, the title, and what is shown in its own way.
bool IsHeader(const std::string& name) {
  constexpr std::array<absl::string_view, 11> kHeader = {
      "v", "ts", "run", "attempt", "rank", "node", "kind", "step", "samples", "m", "name"};
  return std::find(kHeader.begin(), kHeader.end(), name) != kHeader.end();
}

}  // namespace

std::string RecordKind(const Json& record) {
  const auto kind = record.find("kind");
  return kind != record.end() && kind->is_string() ? kind->get<std::string>() : "";
}

int64_t RecordStep(const Json& record) {
  const auto step = record.find("step");
  return step != record.end() && step->is_number_integer() ? step->get<int64_t>() : -1;
}

std::string FormatRecordLine(const Json& record) {
  const std::string kind = RecordKind(record);
  if (kind != "eval" && kind != "ckpt" && kind != "event") {
    return "";
  }
  std::string details;
  for (const auto& [name, value] : record.items()) {
    if (!IsHeader(name)) {
      absl::StrAppend(&details, "  ", name, " ", FormatValue(value));
    }
  }
  if (const auto metrics = record.find("m"); metrics != record.end() && metrics->is_object()) {
    for (const auto& [name, value] : metrics->items()) {
      absl::StrAppend(&details, "  ", name, " ", FormatValue(value));
    }
  }
  if (details.empty()) {
    return "";  // A mark for tools (first_forward), nothing to read.
  }
  std::string title;
  if (kind != "eval") {
    const auto name = record.find("name");
    const bool named = name != record.end() && name->is_string();
    title = absl::StrCat("  ", kind == "ckpt" ? "checkpoint"
                               : named        ? name->get<std::string>()
                                              : "event");
  }
  return absl::StrCat("step ", WithThousands(std::max<int64_t>(0, RecordStep(record))), title,
                      details);
}

int64_t TotalSteps(const Json& record) {
  if (RecordKind(record) != "config") {
    return 0;
  }
  for (const Json* holder : {&record, record.contains("m") ? &record["m"] : nullptr}) {
    if (holder != nullptr && holder->is_object()) {
      const auto steps = holder->find("train_steps");
      if (steps != holder->end() && steps->is_number()) {
        return steps->get<int64_t>();
      }
    }
  }
  return 0;
}

std::optional<Json> ParseRecord(const std::string& line) {
  absl::StatusOr<Json> record = ParseJson(line, "metrics line");
  if (!record.ok() || !record->is_object()) {
    return std::nullopt;
  }
  return *std::move(record);
}

}  // namespace dtrain::launcher
