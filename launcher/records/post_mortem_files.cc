// Reads what the ranks of an attempt left, and writes its report.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "launcher/records/file_tail.h"
#include "launcher/records/post_mortem.h"
#include "launcher/records/stack_text.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kFlightBytesMax = size_t{8} << 20;
constexpr size_t kCollectivesKept = 5;
constexpr size_t kFramesMax = 64;
constexpr size_t kRecordsRead = 50;
// Wall clocks of a record and of this process may differ by their rounding.
constexpr absl::Duration kClockSlack = absl::Seconds(1);

std::string MemberText(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t MemberInteger(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : -1;
}

// The last calls of a flight record of this attempt; empty when there is none.
Json LastCollectives(const std::string& path, int attempt, absl::Time started) {
  Json calls = Json::array();
  const auto text = ReadFile(path, kFlightBytesMax);
  const auto record = text.ok() ? ParseJson(*text, path) : absl::StatusOr<Json>(text.status());
  if (!record.ok() || !record->is_object() || !record->contains("dtrain") ||
      !(*record)["dtrain"].is_object() || !record->contains("entries") ||
      !(*record)["entries"].is_array()) {
    return calls;
  }
  const Json& about = (*record)["dtrain"];
  const absl::Time written = absl::FromUnixNanos(MemberInteger(about, "time_ns"));
  if (MemberInteger(about, "attempt") != attempt || written < started - kClockSlack) {
    return calls;  // Another attempt left it.
  }
  const Json& entries = (*record)["entries"];
  const size_t first = entries.size() > kCollectivesKept ? entries.size() - kCollectivesKept : 0;
  for (size_t i = first; i < entries.size(); ++i) {
    const Json& entry = entries[i];
    const Json own = entry.is_object() && entry.contains("dtrain") ? entry["dtrain"] : Json();
    if (own.is_object()) {
      calls.push_back(
          {{"sequence", std::max<int64_t>(0, MemberInteger(entry, "collective_seq_id"))},
           {"state", MemberText(entry, "state")},
           {"call", MemberText(own, "call")},
           {"error", MemberText(own, "error")}});
    }
  }
  return calls;
}

// The numbers of the last step that the rank has written in this attempt.
Json LastMetrics(const std::string& path, int attempt, absl::Time started) {
  const std::vector<std::string> lines = LastLines(path, 0, kRecordsRead);
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const auto record = ParseJson(*line, path);
    if (!record.ok() || !record->is_object() || MemberText(*record, "kind") != "step") {
      continue;
    }
    const auto written = record->find("ts");
    const bool is_old =
        MemberInteger(*record, "attempt") != attempt || written == record->end() ||
        !written->is_number() ||
        absl::UnixEpoch() + absl::Seconds(written->get<double>()) < started - kClockSlack;
    if (!is_old && record->contains("m") && (*record)["m"].is_object()) {
      Json metrics = {{"step", MemberInteger(*record, "step")}};
      metrics.update((*record)["m"]);
      return metrics;
    }
  }
  return Json::object();
}

}  // namespace

void ReadRemains(const PostMortemPlace& place, int attempt, RankRemains& remains) {
  const std::string rank = absl::StrCat("rank-", remains.rank);
  remains.stack = StackIn(remains.stderr_lines, kFramesMax);
  remains.collectives = LastCollectives(absl::StrCat(place.run_dir, "/flight/", rank, ".json"),
                                        attempt, place.started);
  remains.metrics =
      LastMetrics(absl::StrCat(place.run_dir, "/metrics/", rank, ".jsonl"), attempt, place.started);
}

absl::StatusOr<std::string> WritePostMortem(const PostMortemPlace& place,
                                            const PostMortemFacts& facts) {
  const Json report = PostMortemJson(facts);
  const std::string json = DumpJson(report, 2) + "\n";
  const std::string text = PostMortemText(report);
  const std::string name = facts.node == 0 ? "report" : absl::StrCat("report-node-", facts.node);
  for (const std::string& folder : {place.log_dir, place.run_dir}) {
    DT_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(folder, "/", name, ".txt"), text));
    DT_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(folder, "/", name, ".json"), json));
  }
  return absl::StrCat(place.run_dir, "/", name, ".json");
}

}  // namespace dtrain::launcher
