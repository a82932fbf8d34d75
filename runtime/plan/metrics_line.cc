#include "runtime/plan/metrics_line.h"

#include "base/json.h"

namespace dtrain::plan {
namespace {

constexpr int64_t kVersion = 1;

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

}  // namespace dtrain::plan
