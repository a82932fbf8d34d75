#include "launcher/watch/rank_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kLongCall = 200;
constexpr size_t kShortCall = 40;

// A text that many ranks share is written once and referred to by its place.
class CommonValues {
 public:
  size_t PlaceOf(Json value) {
    const auto [found, is_new] = places_.emplace(DumpJson(value), list_.size());
    if (is_new) {
      list_.push_back(std::move(value));
    }
    return found->second;
  }
  Json Take() { return std::move(list_); }

 private:
  std::map<std::string, size_t> places_;
  Json list_ = Json::array();
};

Json StateJson(const RankView& view, size_t call_bytes) {
  Json groups = Json::array();
  for (const GroupProgress& group : view.groups) {
    groups.push_back({group.group.substr(0, kLongCall), group.entered, group.left,
                      group.call.substr(0, call_bytes)});
  }
  const HangLimits& limits = view.limits;
  return {view.step,     view.phase,    limits.fixed_s,   limits.patience_s,
          limits.slow_s, limits.data_s, std::move(groups)};
}

int64_t WholeMilliseconds(double seconds) { return std::llround(seconds * 1e3); }

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

bool AllIntegers(const Json& array, size_t size) {
  return AllNumbers(array, size) && std::all_of(array.begin(), array.end(), [](const Json& value) {
           return value.is_number_integer();
         });
}

// A row of a rank: rank, node, pid, the places of its host and state, milliseconds still and
// silent, and flags as bits.
absl::StatusOr<RankView> ParseView(const Json& row, const Json& hosts, const Json& states) {
  if (!AllIntegers(row, 8) || row[3].get<uint64_t>() >= hosts.size() ||
      row[4].get<uint64_t>() >= states.size()) {
    return IsMalformed();
  }
  const Json& host = hosts[row[3].get<size_t>()];
  const Json& state = states[row[4].get<size_t>()];
  if (!host.is_string() || !state.is_array() || state.size() != 7 ||
      !state[0].is_number_integer() || !state[1].is_string() || !state[2].is_number() ||
      !state[3].is_number() || !state[4].is_number() || !state[5].is_number() ||
      !state[6].is_array()) {
    return IsMalformed();
  }
  RankView view{.rank = row[0].get<int>(),
                .node = row[1].get<int>(),
                .pid = row[2].get<int>(),
                .host = host.get<std::string>(),
                .step = state[0].get<int64_t>(),
                .phase = state[1].get<std::string>()};
  view.limits = {.fixed_s = state[2].get<double>(),
                 .patience_s = state[3].get<double>(),
                 .slow_s = state[4].get<double>(),
                 .data_s = state[5].get<double>()};
  for (const Json& group : state[6]) {
    if (!IsGroup(group)) {
      return IsMalformed();
    }
    view.groups.push_back({.group = group[0].get<std::string>(),
                           .entered = group[1].get<uint64_t>(),
                           .left = group[2].get<uint64_t>(),
                           .call = group[3].get<std::string>()});
  }
  view.still_s = static_cast<double>(row[5].get<int64_t>()) * 1e-3;
  view.silent_s = static_cast<double>(row[6].get<int64_t>()) * 1e-3;
  const int flags = row[7].get<int>();
  view.is_stopped = (flags & 1) != 0;
  view.waits_for_disk = (flags & 2) != 0;
  view.has_ended = (flags & 4) != 0;
  view.is_debugged = (flags & 8) != 0;
  return view;
}

std::string EncodeWithin(const NodeSummary& summary, size_t call_bytes, bool with_blocks) {
  Json ranks = Json::array();
  CommonValues hosts;
  CommonValues states;
  for (const RankView& view : summary.ranks) {
    const int flags = (view.is_stopped ? 1 : 0) + (view.waits_for_disk ? 2 : 0) +
                      (view.has_ended ? 4 : 0) + (view.is_debugged ? 8 : 0);
    ranks.push_back({view.rank, view.node, view.pid, hosts.PlaceOf(view.host),
                     states.PlaceOf(StateJson(view, call_bytes)), WholeMilliseconds(view.still_s),
                     WholeMilliseconds(view.silent_s), flags});
  }
  return DumpJson({{"attempt", summary.attempt},
                   {"hosts", hosts.Take()},
                   {"states", states.Take()},
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

std::string EncodeSummary(const NodeSummary& summary, size_t bytes_max) {
  std::string text = EncodeWithin(summary, kLongCall, true);
  if (text.size() > bytes_max) {
    text = EncodeWithin(summary, kShortCall, true);
  }
  return text.size() > bytes_max ? EncodeWithin(summary, kShortCall, false) : text;
}

absl::StatusOr<NodeSummary> ParseSummary(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "summary of a node"));
  const auto is_list = [&json](const char* key) {
    return json.contains(key) && json[key].is_array();
  };
  if (!json.is_object() || !is_list("ranks") || !is_list("hosts") || !is_list("states") ||
      !json.contains("steps") || !AllNumbers(json["steps"], 3) || !json.contains("blocks") ||
      !json.contains("attempt") || !json["attempt"].is_number_integer()) {
    return IsMalformed();
  }
  NodeSummary summary;
  summary.attempt = json["attempt"].get<int>();
  for (const Json& row : json["ranks"]) {
    DT_ASSIGN_OR_RETURN(RankView view, ParseView(row, json["hosts"], json["states"]));
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
