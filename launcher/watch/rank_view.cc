#include "launcher/watch/rank_view.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kLongCall = 200;
constexpr size_t kShortCall = 40;

Json ViewJson(const RankView& view, size_t call_bytes) {
  Json groups = Json::array();
  for (const GroupProgress& group : view.groups) {
    groups.push_back({group.group.substr(0, kLongCall), group.entered, group.left,
                      group.call.substr(0, call_bytes)});
  }
  const HangLimits& limits = view.limits;
  return {{"r", view.rank},
          {"n", view.node},
          {"p", view.pid},
          {"h", view.host},
          {"s", view.step},
          {"ph", view.phase},
          {"l", {limits.fixed_s, limits.patience_s, limits.slow_s}},
          {"g", std::move(groups)},
          {"t", {view.still_s, view.silent_s}},
          {"f", {view.is_stopped, view.waits_for_disk, view.has_ended, view.is_debugged}}};
}

absl::Status IsMalformed() { return absl::InvalidArgumentError("summary of a node is malformed"); }

bool AllNumbers(const Json& array, size_t size) {
  bool good = array.is_array() && array.size() == size;
  for (size_t i = 0; good && i < size; ++i) {
    good = array[i].is_number();
  }
  return good;
}

bool IsGroup(const Json& row) {
  return row.is_array() && row.size() == 4 && row[0].is_string() && row[1].is_number_integer() &&
         row[2].is_number_integer() && row[3].is_string();
}

bool IsView(const Json& json) {
  const auto is = [&json](const char* key, auto check) {
    const auto found = json.find(key);
    return found != json.end() && check(*found);
  };
  const auto integer = [](const Json& value) { return value.is_number_integer(); };
  const auto text = [](const Json& value) { return value.is_string(); };
  return json.is_object() && is("r", integer) && is("n", integer) && is("p", integer) &&
         is("h", text) && is("s", integer) && is("ph", text) &&
         is("l", [](const Json& value) { return AllNumbers(value, 3); }) &&
         is("g", [](const Json& value) { return value.is_array(); }) &&
         is("t", [](const Json& value) { return AllNumbers(value, 2); }) &&
         is("f", [](const Json& value) {
           return value.is_array() && value.size() == 4 && value[0].is_boolean() &&
                  value[1].is_boolean() && value[2].is_boolean() && value[3].is_boolean();
         });
}

absl::StatusOr<RankView> ParseView(const Json& json) {
  if (!IsView(json)) {
    return IsMalformed();
  }
  RankView view{.rank = json["r"].get<int>(),
                .node = json["n"].get<int>(),
                .pid = json["p"].get<int>(),
                .host = json["h"].get<std::string>(),
                .step = json["s"].get<int64_t>(),
                .phase = json["ph"].get<std::string>()};
  view.limits = {json["l"][0].get<double>(), json["l"][1].get<double>(),
                 json["l"][2].get<double>()};
  for (const Json& row : json["g"]) {
    if (!IsGroup(row)) {
      return IsMalformed();
    }
    view.groups.push_back({.group = row[0].get<std::string>(),
                           .entered = row[1].get<uint64_t>(),
                           .left = row[2].get<uint64_t>(),
                           .call = row[3].get<std::string>()});
  }
  view.still_s = json["t"][0].get<double>();
  view.silent_s = json["t"][1].get<double>();
  view.is_stopped = json["f"][0].get<bool>();
  view.waits_for_disk = json["f"][1].get<bool>();
  view.has_ended = json["f"][2].get<bool>();
  view.is_debugged = json["f"][3].get<bool>();
  return view;
}

std::string EncodeWithin(const NodeSummary& summary, size_t call_bytes, bool with_blocks) {
  Json ranks = Json::array();
  for (const RankView& view : summary.ranks) {
    ranks.push_back(ViewJson(view, call_bytes));
  }
  return DumpJson({{"attempt", summary.attempt},
                   {"ranks", std::move(ranks)},
                   {"steps", {summary.steps.steps, summary.steps.p99_s, summary.steps.pause_s}},
                   {"blocks", with_blocks ? summary.blocks : Json::array()}});
}

}  // namespace

const GroupProgress* RankView::Inside() const {
  for (const GroupProgress& progress : groups) {
    if (progress.inside()) {
      return &progress;
    }
  }
  return nullptr;
}

const GroupProgress* RankView::In(absl::string_view group) const {
  for (const GroupProgress& progress : groups) {
    if (progress.group == group) {
      return &progress;
    }
  }
  return nullptr;
}

std::string EncodeSummary(const NodeSummary& summary) {
  std::string text = EncodeWithin(summary, kLongCall, true);
  if (text.size() > kSummaryBytesMax) {
    text = EncodeWithin(summary, kShortCall, true);
  }
  return text.size() > kSummaryBytesMax ? EncodeWithin(summary, kShortCall, false) : text;
}

absl::StatusOr<NodeSummary> ParseSummary(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "summary of a node"));
  if (!json.is_object() || !json.contains("ranks") || !json["ranks"].is_array() ||
      !json.contains("steps") || !AllNumbers(json["steps"], 3) || !json.contains("blocks") ||
      !json.contains("attempt") || !json["attempt"].is_number_integer()) {
    return IsMalformed();
  }
  NodeSummary summary;
  summary.attempt = json["attempt"].get<int>();
  for (const Json& row : json["ranks"]) {
    DT_ASSIGN_OR_RETURN(RankView view, ParseView(row));
    summary.ranks.push_back(std::move(view));
  }
  summary.steps = {json["steps"][0].get<int64_t>(), json["steps"][1].get<double>(),
                   json["steps"][2].get<double>()};
  summary.blocks = json["blocks"];
  return summary;
}

std::string RankName(const RankView& view) {
  return absl::StrFormat("rank %d (host %s, pid %d)", view.rank, view.host, view.pid);
}

}  // namespace dtrain::launcher
