#include "comm/tools/bench_report.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/provenance.h"
#include "base/status.h"
#include "comm/tools/bench_elements.h"

namespace dtrain::comm {
namespace {

std::string Columns(const std::optional<BenchTime>& time) {
  return time.has_value() ? absl::StrFormat(" %10.2f %8.3f %8.3f %7d", time->micros, time->algbw,
                                            time->busbw, time->wrong)
                          : absl::StrFormat(" %10s %8s %8s %7s", "N/A", "N/A", "N/A", "N/A");
}

std::string Share(const std::optional<BenchTime>& time) {
  return time.has_value() ? absl::StrFormat(" %6.0f%%", 100 * time->of_limit)
                          : absl::StrFormat(" %7s", "N/A");
}

Json TimeJson(const std::optional<BenchTime>& time) {
  return time.has_value() ? Json{{"time_us", time->micros},
                                 {"algbw_gb_s", time->algbw},
                                 {"busbw_gb_s", time->busbw},
                                 {"of_limit", time->of_limit},
                                 {"wrong", time->wrong}}
                          : Json(nullptr);
}

}  // namespace

std::string RedopOf(BenchKind kind, const BenchPlan& plan) {
  return Reduces(kind) ? OpName(plan.op) : "none";
}

int RootOf(BenchKind kind, const BenchPlan& plan) {
  return kind == BenchKind::kBroadcast ? plan.root : -1;
}

std::FILE* TableFile(const BenchPlan& plan) { return plan.json == "-" ? stderr : stdout; }

void PrintHead(const BenchPlan& plan, const BenchBackend& backend, BenchKind kind) {
  std::string text = absl::StrFormat("\n# %s over %s, %d ranks, %s memory; limit: %s\n",
                                     BenchName(kind), backend.group->transport(), plan.ranks,
                                     plan.registered ? "registered" : "plain", backend.limit_name);
  absl::StrAppendFormat(&text, "#%11s %12s %8s %6s %5s %36s %36s %15s\n", "", "", "", "", "",
                        "out-of-place        ", "in-place          ", "%limit ");
  absl::StrAppendFormat(&text, "#%11s %12s %8s %6s %5s", "size", "count", "type", "redop", "root");
  for (int i = 0; i < 2; ++i) {
    absl::StrAppend(&text,
                    absl::StrFormat(" %10s %8s %8s %7s", "time", "algbw", "busbw", "#wrong"));
  }
  absl::StrAppendFormat(&text, " %7s %7s\n#%11s %12s %8s %6s %5s", "out", "in", "(B)", "(elements)",
                        "", "", "");
  for (int i = 0; i < 2; ++i) {
    absl::StrAppend(&text, absl::StrFormat(" %10s %8s %8s %7s", "(us)", "(GB/s)", "(GB/s)", ""));
  }
  std::fprintf(TableFile(plan), "%s\n", text.c_str());
}

void PrintRow(const BenchPlan& plan, const BenchRow& row) {
  std::FILE* const out = TableFile(plan);
  std::fprintf(out, "%12zu %12zu %8s %6s %5d%s%s%s%s\n", row.bytes, row.count,
               BenchTypeName(plan.dtype), RedopOf(row.kind, plan).c_str(), RootOf(row.kind, plan),
               Columns(row.out_of_place).c_str(), Columns(row.in_place).c_str(),
               Share(row.out_of_place).c_str(), Share(row.in_place).c_str());
  std::fflush(out);
}

Json RowJson(const BenchPlan& plan, const BenchBackend& backend, const BenchRow& row,
             double limit) {
  return {{"backend", backend.name},
          {"transport", backend.group->transport()},
          {"collective", BenchName(row.kind)},
          {"size", row.bytes},
          {"count", row.count},
          {"type", BenchTypeName(plan.dtype)},
          {"redop", RedopOf(row.kind, plan)},
          {"root", RootOf(row.kind, plan)},
          {"limit", backend.limit_name},
          {"limit_gb_s", limit},
          {"out_of_place", TimeJson(row.out_of_place)},
          {"in_place", TimeJson(row.in_place)}};
}

absl::Status WriteReport(const BenchPlan& plan, const Json& provenance, Json rows) {
  Json report = {{"bench", "comm"}};
  report.update(provenance);
  report.update(
      Json{{"ranks", plan.ranks},
           {"registered", plan.registered},
           {"left_out_above", plan.left_out_above == 0 ? Json(nullptr) : Json(plan.left_out_above)},
           {"rows", std::move(rows)}});
  const std::string text = DumpJson(report, 1) + "\n";
  if (plan.json != "-") {
    return WriteFileAtomic(plan.json, text);
  }
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace dtrain::comm
