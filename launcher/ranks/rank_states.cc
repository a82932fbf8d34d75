#include "launcher/ranks/rank_states.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/text/text.h"

namespace dtrain::launcher {

void RankStates::Take(const AgentMessage& message, int64_t now_nanos) {
  State& state = states_.at(message.rank);
  if (message.kind == AgentMessage::Kind::kBeat) {
    state.step = message.step;
    state.phase = message.phase;
    state.beat_nanos = now_nanos;
  } else if (message.kind == AgentMessage::Kind::kError && state.error.empty()) {
    state.error = Printable(message.text);
  }
}

bool RankStates::AllTrain() const {
  return std::all_of(states_.begin(), states_.end(),
                     [](const auto& entry) { return entry.second.step > 0; });
}

void RankStates::FillIn(RankEnd& end) const {
  const State& state = states_.at(end.rank);
  end.step = state.step;
  end.phase = state.phase;
  end.error = state.error;
}

Json RankStates::Rows(const std::vector<int>& alive, int64_t now_nanos) const {
  Json rows = Json::array();
  for (const auto& [rank, state] : states_) {
    Json row = {{"rank", rank},
                {"alive", std::find(alive.begin(), alive.end(), rank) != alive.end()},
                {"step", state.step},
                {"phase", state.phase}};
    if (state.beat_nanos > 0) {
      row["beat_age_s"] = static_cast<double>(now_nanos - state.beat_nanos) * 1e-9;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json RowsOfOthers(const std::vector<RankView>& views) {
  constexpr size_t kRowsMax = 1000;  // A datagram takes about 200 KB.
  Json rows = Json::array();
  for (size_t i = 0; i < std::min(views.size(), kRowsMax); ++i) {
    const RankView& view = views[i];
    rows.push_back({{"rank", view.rank},
                    {"alive", !view.has_ended},
                    {"step", view.step},
                    {"phase", view.phase},
                    {"beat_age_s", view.silent_s}});
  }
  return rows;
}

}  // namespace dtrain::launcher
