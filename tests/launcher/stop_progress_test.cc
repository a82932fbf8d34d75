// The lines of a stop: each says, for the node as a whole, how long the stop has taken and what is
// left of the one time that the node has for it.
#include "launcher/ranks/stop_progress.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace dtrain::launcher::stop_progress_test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStart = 77 * kSecond;  // The clock's zero means nothing.

std::vector<RankSlot> Slots(const std::vector<int>& ranks) {
  std::vector<RankSlot> slots;
  for (const int rank : ranks) {
    slots.emplace_back().rank = rank;
  }
  return slots;
}

AgentMessage Stopping(int rank, const char* stage) {
  AgentMessage message;
  message.kind = AgentMessage::Kind::kStopping;
  message.rank = rank;
  message.step = 12;
  message.phase = stage;
  // The agent gets the message as text.
  return *AgentMessage::Parse(message.Encode());
}

// The line when rank `rank` says `stage`, `seconds` after the signal.
std::optional<std::string> Told(StopProgress& stop, int rank, const char* stage, double seconds) {
  return stop.Take(Stopping(rank, stage),
                   kStart + static_cast<int64_t>(seconds * static_cast<double>(kSecond)));
}

TEST(StopProgressTest, EachStageIsSaidOnceWhenAllRanksOfTheNodeHaveComeThere) {
  StopProgress stop(Slots({4, 5}));
  stop.Begin(kStart, absl::Seconds(300));
  EXPECT_EQ(Told(stop, 4, AgentMessage::kStepFinished, 1), std::nullopt);
  EXPECT_EQ(Told(stop, 4, AgentMessage::kStepSaved, 1.5), std::nullopt);
  EXPECT_EQ(Told(stop, 5, AgentMessage::kStepFinished, 2.25),
            "step 12 is finished, 2.3s after the signal; 4m57.7s of 5m are left to save it");
  EXPECT_EQ(Told(stop, 5, AgentMessage::kStepFinished, 3), std::nullopt);
  EXPECT_EQ(Told(stop, 5, AgentMessage::kStepSaved, 10),
            "step 12 is saved, 10s after the signal; 4m50s of 5m are left to close connections and "
            "to end");
  EXPECT_EQ(stop.Ended(5, kStart + 11 * kSecond), std::nullopt);
  EXPECT_EQ(stop.Ended(4, kStart + 12 * kSecond),
            "the ranks of this node have stopped, 12s after the signal; 4m48s of 5m were left");
}

TEST(StopProgressTest, AStageThatARankHasPassedInSilenceIsNotMissed) {
  StopProgress stop(Slots({0, 1}));
  stop.Begin(kStart, absl::Seconds(100));
  EXPECT_EQ(stop.Ended(0, kStart + kSecond), std::nullopt);  // It is no program of dtrain.
  EXPECT_EQ(
      Told(stop, 1, AgentMessage::kStepSaved, 3),
      "step 12 is saved, 3s after the signal; 1m37s of 1m40s are left to close connections and "
      "to end");
  EXPECT_EQ(Told(stop, 1, AgentMessage::kStepFinished, 4), std::nullopt);
}

// Ranks agree on a stop among themselves, so that they may save before their agent hears of it.
TEST(StopProgressTest, WhatCameBeforeTheSignalIsKnownAfterIt) {
  StopProgress stop(Slots({0}));
  EXPECT_EQ(Told(stop, 0, AgentMessage::kStepFinished, -1), std::nullopt);
  stop.Begin(kStart, absl::Seconds(2));
  stop.Begin(kStart + 9 * kSecond, absl::Seconds(50));  // A second signal gives no more time.
  EXPECT_EQ(Told(stop, 0, AgentMessage::kStepSaved, 1.91),
            "step 12 is saved, 2s after the signal; 0 of 2s are left to close connections and to "
            "end");
}

TEST(StopProgressTest, WithoutASignalNothingIsSaid) {
  StopProgress stop(Slots({0}));
  EXPECT_EQ(Told(stop, 0, AgentMessage::kStepSaved, 1), std::nullopt);
  EXPECT_EQ(stop.Ended(0, kStart), std::nullopt);
}

TEST(StopProgressTest, OtherMessagesAndRanksOfOtherNodesSayNothing) {
  StopProgress stop(Slots({0}));
  stop.Begin(kStart, absl::Seconds(2));
  EXPECT_EQ(stop.Take({.kind = AgentMessage::Kind::kBeat, .phase = "saved"}, kStart), std::nullopt);
  EXPECT_EQ(Told(stop, 3, AgentMessage::kStepSaved, 1), std::nullopt);
}

}  // namespace
}  // namespace dtrain::launcher::stop_progress_test
