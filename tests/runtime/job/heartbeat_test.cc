// A rank tells its agent each phase of a step at once, and repeats in the same step rarely.
#include "runtime/job/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "comm/watchdog.h"
#include "tests/testing/agent_end.h"

namespace dtrain::heartbeat_test {
namespace {

using testing::ElementsAre;

class HeartbeatTest : public testing::Test {
 protected:
  std::vector<AgentMessage> Arrived() {
    std::vector<AgentMessage> messages;
    for (std::string text = agent_.TakeArrived(); !text.empty(); text = agent_.TakeArrived()) {
      const absl::StatusOr<AgentMessage> message = AgentMessage::Parse(text);
      EXPECT_TRUE(message.ok()) << message.status();
      messages.push_back(*message);
    }
    return messages;
  }

  AgentEnd agent_;
  AgentChannel channel_ = agent_.Connect();
};

std::vector<std::string> PhasesOf(const std::vector<AgentMessage>& messages) {
  std::vector<std::string> phases;
  for (const AgentMessage& message : messages) {
    phases.push_back(message.phase);
  }
  return phases;
}

TEST_F(HeartbeatTest, TellsEachPhaseOfAStepAtOnce) {
  Heartbeat heartbeat(channel_, 1);
  for (const int64_t step : {6, 7}) {
    for (const char* phase : {"data", "forward", "backward", "update"}) {
      heartbeat.Mark(phase, step);
    }
    const std::vector<AgentMessage> messages = Arrived();
    EXPECT_THAT(PhasesOf(messages), ElementsAre("data", "forward", "backward", "update"));
    EXPECT_EQ(messages.back().step, step);
    EXPECT_EQ(messages.back().marks, static_cast<uint64_t>(4 * (step - 5)));
  }
}

TEST_F(HeartbeatTest, ManyMicroBatchesTakeFewMessages) {
  Heartbeat heartbeat(channel_, 1);
  constexpr int kMicroBatches = 400;
  const int64_t begin = Clock::Real().MonotonicNanos();
  for (int i = 0; i < kMicroBatches; ++i) {
    heartbeat.Mark("forward", 3);
    heartbeat.Mark("backward", 3);
  }
  const absl::Duration took = absl::Nanoseconds(Clock::Real().MonotonicNanos() - begin);
  const std::vector<AgentMessage> messages = Arrived();
  ASSERT_GE(messages.size(), 2U);
  EXPECT_LE(messages.size(), static_cast<size_t>(3 + took / kMarksApart));
  EXPECT_EQ(messages.back().marks, messages.size()) << "what was not sent is no progress";
}

TEST_F(HeartbeatTest, AShortPhaseInsideAnotherSendsNothingAndALongOneIsProgress) {
  Heartbeat heartbeat(channel_, 1);
  heartbeat.Mark("backward", 3);
  Arrived();
  const int64_t begin = Clock::Real().MonotonicNanos();
  { const InnerPhase save(&heartbeat, "save"); }
  const absl::Duration took = absl::Nanoseconds(Clock::Real().MonotonicNanos() - begin);
  EXPECT_EQ(Arrived().size(), took < kMarksApart ? 0U : 1U);
  {
    const InnerPhase save(&heartbeat, "save");
    const Deadline end = Deadline::After(kMarksApart);
    while (!end.Expired()) {  // The phase is that long.
    }
  }
  const std::vector<AgentMessage> messages = Arrived();
  EXPECT_THAT(PhasesOf(messages), ElementsAre("backward"));
  EXPECT_EQ(messages.back().step, 3);
}

TEST_F(HeartbeatTest, TheRegularBeatsNameAPhaseInsideAnother) {
  Heartbeat heartbeat(channel_, 1);
  heartbeat.Mark("backward", 3);
  Arrived();
  const InnerPhase save(&heartbeat, "save");
  heartbeat.Start({.slow_s = 1});
  const absl::StatusOr<AgentMessage> beat = AgentMessage::Parse(agent_.Receive());
  ASSERT_TRUE(beat.ok()) << beat.status();
  EXPECT_EQ(beat->phase, "save");
  EXPECT_EQ(beat->marks, 1U);
}

// The regular beats alone would hear of each after half of their period, 125 ms.
TEST_F(HeartbeatTest, ALossThatTheAgentTellsOfEndsTheGroupsAtOnce) {
  constexpr int kLosses = 20;
  std::mutex mutex;
  std::vector<std::string> reasons;
  const auto groups = comm::StartWatch([](int64_t) {},
                                       [&](const std::string& reason) {
                                         const std::lock_guard lock(mutex);
                                         reasons.push_back(reason);
                                       });
  const auto known = [&] {
    const std::lock_guard lock(mutex);
    return reasons;
  };
  Heartbeat heartbeat(channel_, 1);
  heartbeat.Start({.slow_s = 1});
  const int64_t begin = Clock::Real().MonotonicNanos();
  for (size_t loss = 1; loss <= kLosses; ++loss) {
    agent_.Send("node 1 is lost");
    const Deadline deadline = Deadline::After(absl::Seconds(20));
    while (known().size() < loss && !deadline.Expired()) {
      Arrived();  // Or its messages would fill the socket.
      std::this_thread::yield();
    }
    ASSERT_EQ(known().size(), loss);
    EXPECT_EQ(known().back(), "node 1 is lost");
  }
  EXPECT_LT(absl::Nanoseconds(Clock::Real().MonotonicNanos() - begin),
            kLosses * comm::kWatchPeriod / 4);
}

TEST_F(HeartbeatTest, TheRegularBeatsNameThePhaseThatWasNotSent) {
  Heartbeat heartbeat(channel_, 1);
  heartbeat.Mark("forward", 3);
  heartbeat.Mark("backward", 3);
  uint64_t marks = 0;
  do {  // A pause of kMarksApart in between would let it be sent.
    heartbeat.Mark("backward", 3);
    heartbeat.Mark("forward", 3);
    const std::vector<AgentMessage> sent = Arrived();
    marks = sent.empty() ? marks : sent.back().marks;
    if (!sent.empty() && sent.back().phase == "forward") {
      continue;
    }
    heartbeat.Start({.slow_s = 1});
    AgentMessage beat;
    do {
      beat = *AgentMessage::Parse(agent_.Receive());
    } while (beat.limits.slow_s == 0);
    EXPECT_EQ(beat.phase, "forward");
    EXPECT_EQ(beat.marks, marks);
    return;
  } while (true);
}

}  // namespace
}  // namespace dtrain::heartbeat_test
