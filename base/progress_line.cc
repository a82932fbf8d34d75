#include "base/progress_line.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace dtrain {
namespace {

// The number under `name` of record["m"], or NaN.
double Metric(const Json& record, const char* name) {
  const auto metrics = record.find("m");
  if (metrics == record.end() || !metrics->is_object()) {
    return NAN;
  }
  const auto value = metrics->find(name);
  return value != metrics->end() && value->is_number() ? value->get<double>() : NAN;
}

}  // namespace

std::string WithThousands(int64_t value) {
  std::string digits = absl::StrCat(value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) {
    digits.insert(digits.begin() + at, ',');
  }
  return digits;
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) {
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

std::string FormatProgress(const Json& record, const ProgressStyle& style) {
  const auto kind = record.find("kind");
  const auto step = record.find("step");
  if (kind == record.end() || *kind != "step" || step == record.end() ||
      !step->is_number_integer()) {
    return "";
  }
  if (std::isnan(Metric(record, "train/loss"))) {
    return "";  // Another rank's timings, or a single value of the program's own.
  }
  std::vector<std::string> parts;
  const int64_t now = step->get<int64_t>();
  parts.push_back(style.total_steps > 0 ? absl::StrCat("step ", WithThousands(now), "/",
                                                       WithThousands(style.total_steps))
                                        : absl::StrCat("step ", WithThousands(now)));
  parts.push_back(absl::StrFormat("loss %.4f", Metric(record, "train/loss")));
  if (const double rate = Metric(record, "perf/tokens_per_s"); !std::isnan(rate)) {
    parts.push_back(absl::StrCat(WithThousands(std::llround(rate)), " tok/s"));
  }
  if (const double mfu = Metric(record, "perf/mfu"); !std::isnan(mfu)) {
    parts.push_back(absl::StrFormat("MFU %.1f%%", 100 * mfu));
  } else if (const double gemm = Metric(record, "perf/gemm_fraction"); !std::isnan(gemm)) {
    parts.push_back(absl::StrFormat("GEMM fraction %.1f%%", 100 * gemm));
  }
  if (const double exposed = Metric(record, "comm/exposed_ratio"); !std::isnan(exposed)) {
    parts.push_back(absl::StrFormat("exposed comm %.1f%%", 100 * exposed));
  }
  if (const double eta = Metric(record, "time/eta_s"); !std::isnan(eta) && style.total_steps > 0) {
    parts.push_back(absl::StrCat("ETA ", FormatDuration(eta)));
  }
  std::string line = absl::StrJoin(parts, "  ");
  if (style.columns > 0 && line.size() > static_cast<size_t>(style.columns)) {
    line.resize(static_cast<size_t>(style.columns));
  }
  return line;
}

}  // namespace dtrain
