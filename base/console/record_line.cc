#include "base/console/record_line.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/console/progress_line.h"

namespace dtrain {
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

// Whether the member is one that every record has, the title, or one that is shown in a special
// way.
bool IsHeader(const std::string& name) {
  constexpr std::array<absl::string_view, 11> kHeader = {
      "v", "ts", "run", "attempt", "rank", "node", "kind", "step", "samples", "m", "name"};
  return std::find(kHeader.begin(), kHeader.end(), name) != kHeader.end();
}

std::string Text(const Json& record, const char* name) {
  const auto found = record.find(name);
  return found != record.end() && found->is_string() ? found->get<std::string>() : "";
}

// The number at `name`; nothing if there is no number.
std::optional<double> Number(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? std::optional(found->get<double>())
                                                     : std::nullopt;
}

// A sentence about a save or a restore; "" for other records.
std::string CheckpointLine(const Json& record) {
  const std::string path = Text(record, "path");
  if (const std::optional<double> restored = Number(record, "restored")) {
    const std::optional<double> saved = Number(record, "saved_unix_s");
    const std::optional<double> now = Number(record, "ts");
    return absl::StrCat(
        "resumed from step ", WithThousands(std::llround(*restored)), " (checkpoint ", path,
        saved && now ? absl::StrCat(", saved ", FormatAge(*now - *saved), " ago)") : ")",
        Text(record, "note"));
  }
  const auto metrics = record.find("m");
  if (metrics == record.end() || !metrics->is_object()) {
    return "";
  }
  if (const std::optional<double> skipped = Number(*metrics, "ckpt/skipped")) {
    return absl::StrCat("skipped the checkpoint of step ", WithThousands(RecordStep(record)),
                        ": the last one is still being written (",
                        WithThousands(std::llround(*skipped)), " skipped so far)");
  }
  if (path.empty()) {
    return "";
  }
  const std::optional<double> seconds = Number(*metrics, "time/checkpoint_s");
  const std::optional<double> bytes = Number(*metrics, "ckpt/bytes");
  if (!seconds || !bytes) {
    return "";
  }
  if (const auto beside = record.find("background"); beside != record.end() && *beside == true) {
    return absl::StrCat("saved step ", WithThousands(RecordStep(record)),
                        " while training went on (", FormatBytes(*bytes), ", ",
                        absl::StrFormat("%.1f", *seconds * 1e3), " ms of waiting) to ", path);
  }
  return absl::StrCat("saved step ", WithThousands(RecordStep(record)),
                      absl::StrFormat(*seconds < 9.95 ? " in %.1f s (" : " in %.0f s (", *seconds),
                      FormatBytes(*bytes), ") to ", path);
}

// A sentence about the step journal; "" for other records.
std::string JournalLine(const Json& record, const Json& metrics) {
  const std::optional<double> steps = Number(record, "steps");
  const std::optional<double> bytes = Number(metrics, "journal/bytes");
  const std::optional<double> seconds = Number(metrics, "time/journal_s");
  return steps && bytes && seconds
             ? absl::StrCat("journalled ", WithThousands(std::llround(*steps)),
                            " steps up to step ", WithThousands(RecordStep(record)),
                            " (rank 0: ", FormatBytes(*bytes), ", ",
                            absl::StrFormat("%.1f", *seconds * 1e3), " ms of waiting)")
             : "";
}

// A sentence about a checkpoint's copy in the second place; "" for other records.
std::string CopyLine(const Json& record, const Json& metrics) {
  const std::optional<double> seconds = Number(metrics, "ckpt/remote_seconds");
  const std::optional<double> bytes = Number(metrics, "ckpt/remote_bytes");
  return seconds && bytes
             ? absl::StrCat("copied the checkpoint of step ", WithThousands(RecordStep(record)),
                            absl::StrFormat(" in %.1f s (", *seconds), FormatBytes(*bytes), ") to ",
                            Text(record, "path"))
             : "";
}

// Names and values of all members of the record.
std::string GeneralLine(const Json& record, const std::string& kind) {
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
    return "";  // A mark for tools (such as first_forward), which people need not see.
  }
  std::string title;
  if (kind != "eval") {
    const std::string name = Text(record, "name");
    title = absl::StrCat("  ", kind == "ckpt" ? "checkpoint" : name.empty() ? "event" : name);
  }
  return absl::StrCat("step ", WithThousands(std::max<int64_t>(0, RecordStep(record))), title,
                      details);
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

std::optional<Banner> BannerOf(const Json& record) {
  const auto rows = record.find("rows");
  if (RecordKind(record) != "event" || Text(record, "name") != kBannerEvent ||
      rows == record.end() || !rows->is_array()) {
    return std::nullopt;
  }
  Banner banner{.title = Text(record, "title"), .rows = {}};
  for (const Json& row : *rows) {
    if (row.is_array() && row.size() == 2 && row[0].is_string() && row[1].is_string()) {
      banner.rows.emplace_back(row[0].get<std::string>(), row[1].get<std::string>());
    }
  }
  return banner;
}

std::vector<std::string> FormatRecord(const Json& record, int width) {
  const std::string kind = RecordKind(record);
  if (kind != "eval" && kind != "ckpt" && kind != "event") {
    return {};
  }
  if (const std::optional<Banner> banner = BannerOf(record)) {
    return FormatBanner(*banner, width);
  }
  if (kind == "ckpt" && record.contains("error")) {
    return {};
  }
  const std::string name = kind == "event" ? Text(record, "name") : "";
  if (name == "journal_off" || name == "journal_alone" || name == "remote_failed" ||
      name == "replicas_lacking") {
    return {};  // The warning in the log says it.
  }
  const Json metrics = record.value("m", Json::object());
  std::string line = kind == "ckpt"          ? CheckpointLine(record)
                     : name == "journal"     ? JournalLine(record, metrics)
                     : name == "remote_copy" ? CopyLine(record, metrics)
                                             : "";
  line = line.empty() ? GeneralLine(record, kind) : line;
  return line.empty() ? std::vector<std::string>() : FormatBanner({line, {}}, width);
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

}  // namespace dtrain
