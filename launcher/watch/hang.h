// Finds hangs from what the agents know of the ranks. Pure: time is an argument, in the views.
//
// A rank hangs when it has shown no progress for longer than its phase allows. In the phases of a
// step that is five times the 99th percentile of the steps' times, twice the longest pause that
// came to an end, and at least a second, or what comm.hang_timeout_s says; nothing is learnt before
// the tenth step. A data source may wait for a network: comm.hang_data_timeout_s is a limit of its
// own for the phase "data", from the first step on. Whatever may take longer for a good reason has
// a longer limit: a disk, a network that rides out a link that is down, and the program's own code
// between steps while others wait for it have `patience_s`; a start, a save, an evaluation, and the
// program's own code for which nobody waits have `slow_s`. A process that a signal has stopped, or
// that is silent although its thread for beats should go on, has no such reason. A stopped one does
// nothing in the rest of its limit either, so it is named a little ahead of it.
//
// When one rank hangs, the others soon wait for it in a collective. So a rank outside of
// collectives is blamed before ranks that are in one, and of those the ones that are behind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "launcher/watch/rank_view.h"

namespace dtrain::launcher {

enum class HangKind {
  kNeverEntered,  // Others wait in a collective that it has not entered.
  kMismatch,      // Ranks are in different collectives at the same place of their order.
  kNotReturned,   // It entered a collective that others have left, or is stopped inside one.
  kAllStuck,      // All ranks are in the same collective.
  kOutside,       // It hangs outside of collectives, and nobody waits for it in one.
};
// "never_entered", "mismatch", "not_returned", "all_stuck", "outside".
const char* HangKindName(HangKind kind);

struct Hang {
  HangKind kind = HangKind::kOutside;
  std::vector<int> ranks;  // Those that hang, the one that is longest without progress first.
  std::string group;       // The group and the collective for which ranks wait; empty: none.
  uint64_t collective = 0;
  std::string call;
  double still_s = 0;  // For how long the first of `ranks` has shown no progress.
  double limit_s = 0;
  std::string text;  // One sentence: which rank, what it should do, for how long, what to look at.
};

// Steps that every rank must have finished before a limit is learnt.
inline constexpr int64_t kStepsBeforeLearning = 10;
inline constexpr double kHangFloorSeconds = 1;
inline constexpr double kHangFactor = 5;
// The factor for a pause from which a rank came back.
inline constexpr double kPauseFactor = 2;
// The share of its limit after which a stopped process is named, so that all know of it in time.
inline constexpr double kStoppedShare = 0.95;

// A phase of a step, in which ranks do not pause.
bool IsStepPhase(absl::string_view phase);

// The limit of a rank by its phase and state, in seconds. `is_awaited`: others wait in a collective
// that it has not entered.
double HangLimit(const RankView& view, const StepStatistics& steps, bool is_awaited);

// Nothing when no rank hangs, the detection is off, or a rank is missing in `views` (there are
// `world_size`) whose absence could explain what is seen.
std::optional<Hang> FindHang(absl::Span<const RankView> views, int world_size,
                             const StepStatistics& steps);

// Seconds until one of the ranks has been still for the next limit that may count for it, if none
// of them moves before. Nothing: none is left that has not passed.
std::optional<double> UntilNextLimit(absl::Span<const RankView> views, const StepStatistics& steps);

}  // namespace dtrain::launcher
