#include "runtime/plan/metrics_line.h"

#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

constexpr int64_t kVersion = 1;
constexpr MetricsKind kKinds[] = {MetricsKind::kStep, MetricsKind::kEval, MetricsKind::kCheckpoint,
                                  MetricsKind::kEvent, MetricsKind::kConfig};

absl::Status BadField(absl::string_view field, const std::string& want) {
  return absl::InvalidArgumentError(
      absl::StrFormat("metrics line: \"%s\" is missing or not %s", field, want));
}

std::optional<double> Number(const Json& json) {
  if (json.is_number()) {
    return json.get<double>();
  }
  if (json == "NaN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (json == "Infinity" || json == "-Infinity") {
    const double infinity = std::numeric_limits<double>::infinity();
    return json == "Infinity" ? infinity : -infinity;
  }
  return std::nullopt;
}

absl::Status ReadInteger(const Json& json, const char* field, int64_t max, int64_t* out) {
  const auto found = json.find(field);
  const absl::StatusOr<int64_t> value =
      found == json.end() ? absl::StatusOr<int64_t>(-1) : JsonInteger(*found);
  if (!value.ok() || *value < 0 || *value > max) {
    return BadField(field, absl::StrFormat("an integer from 0 to %d", max));
  }
  *out = *value;
  return absl::OkStatus();
}

absl::Status ReadString(const Json& json, const char* field, std::string* out) {
  const auto found = json.find(field);
  if (found == json.end() || !found->is_string()) {
    return BadField(field, "a string");
  }
  *out = found->get<std::string>();
  return absl::OkStatus();
}

}  // namespace

absl::string_view MetricsKindName(MetricsKind kind) {
  switch (kind) {
    case MetricsKind::kStep:
      return "step";
    case MetricsKind::kEval:
      return "eval";
    case MetricsKind::kCheckpoint:
      return "ckpt";
    case MetricsKind::kEvent:
      return "event";
    case MetricsKind::kConfig:
      return "config";
  }
  return "";
}

Json MetricsJson(const MetricsRecord& record) {
  Json metrics = Json::object();
  for (const auto& [name, value] : record.metrics) {
    metrics[name] = value;
  }
  Json json = {{"v", kVersion},
               {"ts", record.unix_seconds},
               {"run", record.run},
               {"attempt", record.attempt},
               {"rank", record.rank},
               {"node", record.node},
               {"kind", std::string(MetricsKindName(record.kind))},
               {"step", record.step},
               {"samples", record.samples},
               {"m", std::move(metrics)}};
  json.update(record.details);
  return json;
}

absl::StatusOr<MetricsRecord> ParseMetricsLine(absl::string_view line) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(line, "metrics line"));
  if (!json.is_object()) {
    return absl::InvalidArgumentError("metrics line: not a JSON object");
  }
  constexpr int64_t kInt = std::numeric_limits<int>::max();
  constexpr int64_t kInt64 = std::numeric_limits<int64_t>::max();
  int64_t version = 0;
  int64_t attempt = 0;
  int64_t rank = 0;
  std::string kind;
  MetricsRecord record;
  DT_RETURN_IF_ERROR(ReadInteger(json, "v", kInt, &version));
  if (version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrFormat("metrics line: version %d, want %d", version, kVersion));
  }
  DT_RETURN_IF_ERROR(ReadString(json, "run", &record.run));
  DT_RETURN_IF_ERROR(ReadInteger(json, "attempt", kInt, &attempt));
  DT_RETURN_IF_ERROR(ReadInteger(json, "rank", kInt, &rank));
  DT_RETURN_IF_ERROR(ReadString(json, "node", &record.node));
  DT_RETURN_IF_ERROR(ReadString(json, "kind", &kind));
  DT_RETURN_IF_ERROR(ReadInteger(json, "step", kInt64, &record.step));
  DT_RETURN_IF_ERROR(ReadInteger(json, "samples", kInt64, &record.samples));
  record.attempt = static_cast<int>(attempt);
  record.rank = static_cast<int>(rank);
  const auto ts = json.find("ts");
  if (ts == json.end() || !ts->is_number()) {
    return BadField("ts", "a number");
  }
  record.unix_seconds = ts->get<double>();
  bool known = false;
  for (const MetricsKind candidate : kKinds) {
    if (MetricsKindName(candidate) == kind) {
      record.kind = candidate;
      known = true;
    }
  }
  if (!known) {
    return BadField("kind", "step, eval, ckpt, event or config");
  }
  const auto metrics = json.find("m");
  if (metrics == json.end() || !metrics->is_object()) {
    return BadField("m", "an object");
  }
  for (const auto& [name, value] : metrics->items()) {
    const std::optional<double> number = Number(value);
    if (!number) {
      return BadField(absl::StrCat("m.", name), "a number");
    }
    record.metrics.emplace_back(name, *number);
  }
  return record;
}

}  // namespace dtrain::plan
