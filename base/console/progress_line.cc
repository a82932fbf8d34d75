#include "base/console/progress_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/text/text.h"

namespace dtrain {
namespace {

constexpr absl::string_view kRatePrefix = "perf/";
constexpr absl::string_view kRateSuffix = "_per_s";
constexpr absl::string_view kGap = "  ";

enum class Format { kFixed, kShort, kPercent, kDuration, kSeconds, kBytes, kRate };

struct Column {
  const char* name;
  const char* metric;
  const char* label;
  Format format;
};

constexpr std::array<Column, 11> kColumns = {{
    {"loss", "train/loss", "loss", Format::kFixed},
    {"rate", "", "", Format::kRate},
    {"eta", "time/eta_s", "ETA", Format::kDuration},
    {"lr", "train/lr", "lr", Format::kShort},
    {"grad_norm", "train/grad_norm", "grad norm", Format::kShort},
    {"mfu", "perf/mfu", "MFU", Format::kPercent},
    {"gemm_fraction", "perf/gemm_fraction", "GEMM fraction", Format::kPercent},
    {"exposed_comm", "comm/exposed_ratio", "exposed comm", Format::kPercent},
    {"step_time", "time/step_s", "step time", Format::kSeconds},
    {"loss_scale", "train/loss_scale", "loss scale", Format::kShort},
    {"memory", "memory/resident_bytes", "memory", Format::kBytes},
}};

const Json* Metrics(const Json& record) {
  const auto metrics = record.find("m");
  return metrics != record.end() && metrics->is_object() ? &*metrics : nullptr;
}

bool IsRate(absl::string_view metric) {
  return absl::StartsWith(metric, kRatePrefix) && absl::EndsWith(metric, kRateSuffix);
}

// "tokens" of "perf/tokens_per_s".
absl::string_view UnitOf(absl::string_view metric) {
  return absl::StripSuffix(absl::StripPrefix(metric, kRatePrefix), kRateSuffix);
}

// Numbers that JSON cannot spell are strings in the file.
double NumberOf(const Json& value) {
  if (value.is_number()) {
    return value.get<double>();
  }
  if (value == "Infinity" || value == "-Infinity") {
    const double infinity = std::numeric_limits<double>::infinity();
    return value == "Infinity" ? infinity : -infinity;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::string NotFinite(double value) {
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

// "2.5000e-04" -> "2.5e-4": without the zeros that printf fills up with.
std::string Scientific(double value, int decimals) {
  const std::string text = absl::StrFormat("%.*e", decimals, value);
  const size_t at = text.find('e');
  std::string digits = text.substr(0, at);
  if (decimals > 0) {
    digits.erase(digits.find_last_not_of('0') + 1);
    digits = std::string(absl::StripSuffix(digits, "."));
  }
  return absl::StrCat(digits, "e", std::stoi(text.substr(at + 1)));
}

// Four decimals if they are significant, otherwise an exponent.
std::string FixedNumber(double value) {
  const double size = std::abs(value);
  return size >= 1e6 || (size < 1e-3 && size > 0) ? Scientific(value, 3)
                                                  : absl::StrFormat("%.4f", value);
}

std::string Rate(double value) {
  if (value >= 1e15) {
    return Scientific(value, 3);
  }
  return value >= 100  ? WithThousands(std::llround(value))
         : value >= 10 ? absl::StrFormat("%.1f", value)
                       : absl::StrFormat("%.2f", value);
}

std::string FormatNumber(double value, Format format) {
  if (format == Format::kDuration) {
    return FormatDuration(value);
  }
  if (!std::isfinite(value)) {
    return NotFinite(value);
  }
  switch (format) {
    case Format::kShort:
      return FormatShort(value);
    case Format::kPercent:
      return absl::StrFormat("%.1f%%", 100 * value);
    case Format::kSeconds:
      return absl::StrCat(FormatShort(value), " s");
    case Format::kBytes:
      return FormatBytes(value);
    case Format::kRate:
      return Rate(value);
    case Format::kFixed:
    case Format::kDuration:
      break;
  }
  return FixedNumber(value);
}

// Finds a column by its short name or by the name of the metric that it shows.
Column Find(absl::string_view name) {
  for (const Column& column : kColumns) {
    if (name == column.name || (!name.empty() && name == column.metric)) {
      return column;
    }
  }
  return {"", "", "", absl::EndsWith(name, kRateSuffix) ? Format::kRate : Format::kFixed};
}

// The text of `metric` with its label, or "" if the record has no value for it.
std::string Piece(const Json& record, const std::string& metric, bool total_known) {
  const double value = NumberOf(Metrics(record)->at(metric));
  const Column column = Find(metric);
  if (column.format == Format::kRate) {
    return IsRate(metric)
               ? absl::StrCat(FormatNumber(value, Format::kRate), " ", UnitOf(metric), "/s")
               : absl::StrCat(metric, " ", FormatNumber(value, Format::kRate));
  }
  if (column.format == Format::kDuration && (!total_known || value < 0)) {
    return "";  // After the last step there is no time left to show.
  }
  const std::string label = column.label[0] == '\0' ? metric : column.label;
  return absl::StrCat(label, " ", FormatNumber(value, column.format));
}

// "step 120/600", or a shorter form if that is too wide.
std::string StepPiece(int64_t step, const ProgressStyle& style) {
  const std::string now = WithThousands(step);
  const std::string of = absl::StrCat(now, "/", WithThousands(style.total_steps));
  std::vector<std::string> choices = {absl::StrCat("step ", now), now, ""};
  if (style.total_steps > 0) {
    choices.insert(choices.begin(), {absl::StrCat("step ", of), of});
  }
  for (const std::string& choice : choices) {
    if (style.width <= 0 || choice.size() <= static_cast<size_t>(style.width)) {
      return choice;
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> DefaultProgressColumns() {
  return {"loss", "rate", "eta", "lr", "grad_norm", "mfu", "exposed_comm"};
}

std::vector<std::string> ProgressColumnNames() {
  std::vector<std::string> names;
  names.reserve(kColumns.size());
  for (const Column& column : kColumns) {
    names.emplace_back(column.name);
  }
  return names;
}

std::string MetricOfColumn(const Json& record, absl::string_view column) {
  const Json* const metrics = Metrics(record);
  if (metrics == nullptr) {
    return "";
  }
  const Column row = Find(column);
  std::vector<std::string> names = {row.metric, std::string(column),
                                    absl::StrCat(kRatePrefix, column)};
  if (absl::string_view(row.name) == "mfu") {
    // Shown for a device without a known peak.
    names.insert(names.begin() + 1, "perf/gemm_fraction");
  }
  for (const std::string& name : names) {
    const auto value = name.empty() ? metrics->end() : metrics->find(name);
    if (value != metrics->end() && (value->is_number() || value->is_string())) {
      return name;
    }
  }
  if (column == "rate") {
    for (const auto& [name, value] : metrics->items()) {
      if (IsRate(name) && value.is_number()) {
        return name;
      }
    }
  }
  return "";
}

std::string WithThousands(int64_t value) {
  std::string digits = absl::StrCat(value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) {
    digits.insert(digits.begin() + at, ',');
  }
  return digits;
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e12) {
    return "?";
  }
  const auto total = static_cast<int64_t>(std::llround(seconds));
  const int64_t days = total / 86400;
  const int64_t hours = total / 3600 % 24;
  const int64_t minutes = total / 60 % 60;
  if (days > 0) {
    return absl::StrFormat("%dd %02d:%02d", days, hours, minutes);
  }
  return hours > 0 ? absl::StrFormat("%d:%02d:%02d", hours, minutes, total % 60)
                   : absl::StrFormat("%d:%02d", minutes, total % 60);
}

std::string FormatAge(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e12) {
    return "?";
  }
  const auto total = static_cast<int64_t>(std::max(0.0, seconds));
  if (total < 60) {
    return absl::StrCat(total, " s");
  }
  if (total < 3600) {
    return absl::StrCat(total / 60, " min");
  }
  if (total < 2 * 86400) {
    return absl::StrCat(total / 3600, " h");
  }
  return absl::StrCat(WithThousands(total / 86400), " days");
}

std::string FormatShort(double value) {
  if (!std::isfinite(value)) {
    return NotFinite(value);
  }
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e5)) {
    return Scientific(value, 2);
  }
  return absl::StrFormat(size >= 100 ? "%.0f" : "%.3g", value);
}

std::string FormatBytes(double bytes) {
  if (!std::isfinite(bytes)) {
    return NotFinite(bytes);
  }
  constexpr std::array<const char*, 7> kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  const bool tenths = unit > 0 && std::abs(bytes) < 9.95;
  return absl::StrCat(absl::StrFormat(tenths ? "%.1f" : "%.0f", bytes), " ", kUnits.at(unit));
}

bool IsProgress(const Json& record) {
  const auto kind = record.find("kind");
  const auto step = record.find("step");
  const auto metrics = record.find("m");
  if (kind == record.end() || *kind != "step" || step == record.end() ||
      !step->is_number_integer() || metrics == record.end()) {
    return false;
  }
  // A program's own record may have a loss or a rate, but not under these names, or not both.
  return metrics->contains("train/loss") ||
         (metrics->contains("time/step_s") && !MetricOfColumn(record, "rate").empty());
}

std::string FormatProgress(const Json& record, const ProgressStyle& style) {
  if (!IsProgress(record)) {
    return "";
  }
  std::string line = StepPiece(record.find("step")->get<int64_t>(), style);
  std::set<std::string> shown;
  for (const std::string& name : style.columns) {
    const std::string metric = MetricOfColumn(record, name);
    if (metric.empty() || !shown.insert(metric).second) {
      continue;  // Two columns may show one metric, as mfu and gemm_fraction do on a CPU.
    }
    const std::string piece = Printable(Piece(record, metric, style.total_steps > 0));
    if (piece.empty()) {
      continue;
    }
    const size_t wanted = DisplayWidth(line) + kGap.size() + DisplayWidth(piece);
    if (style.width > 0 && wanted > static_cast<size_t>(style.width)) {
      break;  // The rest matters less, and columns that come and go are hard to read.
    }
    absl::StrAppend(&line, kGap, piece);
  }
  return line;
}

}  // namespace dtrain
