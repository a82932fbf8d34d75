// A rank's messages to its agent arrive as sent, and an agent that is slow or gone does not delay
// the rank.
#include "base/agent_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tests/testing/agent_end.h"

namespace dtrain::agent_channel_test {
namespace {

using testing::HasSubstr;

TEST(AgentChannel, DeliversEveryField) {
  AgentEnd agent;
  auto channel = AgentChannel::Connect(agent.path());
  ASSERT_TRUE(channel.ok()) << channel.status();
  agent.Accept();
  AgentMessage sent;
  sent.kind = AgentMessage::Kind::kError;
  sent.rank = 3;
  sent.pid = 77;
  sent.step = 1'000'000'000'000;
  sent.collective = 12;
  sent.exit_code = 64;
  sent.phase = "forward";
  sent.text = "a \"quoted\"\nline";
  channel->Send(sent);
  const auto got = AgentMessage::Parse(agent.Receive());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->Encode(), sent.Encode());
  EXPECT_EQ(got->step, sent.step);
  EXPECT_EQ(got->text, sent.text);
  EXPECT_EQ(channel->dropped(), 0U);
}

TEST(AgentChannel, NeverBlocksOnASlowAgentAndCountsWhatItDropped) {
  AgentEnd agent;
  auto channel = AgentChannel::Connect(agent.path());
  ASSERT_TRUE(channel.ok());
  agent.Accept();
  AgentMessage message;
  message.text = std::string(4096, 'x');
  for (int i = 0; i < 2000; ++i) {  // Far more than any socket buffer holds.
    channel->Send(message);
  }
  EXPECT_GT(channel->dropped(), 0U);
}

TEST(AgentChannel, SurvivesAnAgentThatIsGone) {
  AgentEnd agent;
  auto channel = AgentChannel::Connect(agent.path());
  ASSERT_TRUE(channel.ok());
  agent.Accept();
  agent.Close();
  channel->Send({});  // Raises no SIGPIPE.
  EXPECT_EQ(channel->dropped(), 1U);
}

TEST(AgentChannel, ARankHearsOnceWhyItsAttemptHasFailedAndNeverWaitsForIt) {
  AgentEnd agent;
  auto channel = AgentChannel::Connect(agent.path());
  ASSERT_TRUE(channel.ok()) << channel.status();
  agent.Accept();
  EXPECT_EQ(channel->TakeFailure(), std::nullopt);
  agent.Send("node 1 is lost");
  EXPECT_EQ(channel->TakeFailure(), "node 1 is lost");
  EXPECT_EQ(channel->TakeFailure(), std::nullopt);
  agent.Close();
  EXPECT_EQ(channel->TakeFailure(), std::nullopt);
  EXPECT_EQ(AgentChannel().TakeFailure(), std::nullopt);
}

TEST(AgentChannel, SendsNothingWithoutAnAgent) {
  AgentChannel channel;
  EXPECT_FALSE(channel.connected());
  channel.Send({});
  EXPECT_EQ(channel.dropped(), 0U);
}

TEST(AgentChannel, ConnectNamesThePath) {
  EXPECT_THAT(std::string(AgentChannel::Connect("/nowhere/agent").status().message()),
              HasSubstr("/nowhere/agent"));
  EXPECT_THAT(std::string(AgentChannel::Connect(std::string(200, 'x')).status().message()),
              HasSubstr("200 bytes"));
}

TEST(AgentMessage, CutsALongTextSoThatItStaysOneDatagram) {
  AgentMessage message;
  message.text = std::string(1'000'000, 'x');
  EXPECT_LT(message.Encode().size(), 8192U);
}

TEST(AgentMessage, KeepsFourKilobytesOfText) {
  for (const size_t bytes : {4095U, 4096U, 4097U}) {
    AgentMessage message;
    message.text = std::string(bytes, 'x');
    const auto parsed = AgentMessage::Parse(message.Encode());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->text.size(), std::min<size_t>(bytes, 4096));
  }
}

TEST(AgentMessage, EveryKindAndNumberIsReadBack) {
  using Kind = AgentMessage::Kind;
  for (const Kind kind : {Kind::kHello, Kind::kBeat, Kind::kError, Kind::kDone}) {
    AgentMessage message;
    message.kind = kind;
    message.rank = 1;
    message.pid = 2;
    message.step = 3;
    message.collective = 4;
    message.exit_code = 5;
    message.phase = "backward";
    const auto parsed = AgentMessage::Parse(message.Encode());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->kind, kind);
    EXPECT_EQ(parsed->rank, 1);
    EXPECT_EQ(parsed->pid, 2);
    EXPECT_EQ(parsed->step, 3);
    EXPECT_EQ(parsed->collective, 4U);
    EXPECT_EQ(parsed->exit_code, 5);
    EXPECT_EQ(parsed->phase, "backward");
  }
}

TEST(AgentMessage, ABeatCarriesProgressTimesAndLimits) {
  AgentMessage message;
  message.marks = 9;
  message.groups = {{.group = "world", .entered = 8, .left = 7, .call = "all_reduce \"b\""},
                    {.group = "part", .entered = 2, .left = 2, .call = "barrier"}};
  message.times = {.step = 4,
                   .whole_s = 1.5,
                   .data_s = 0.25,
                   .forward_s = 0.5,
                   .backward_s = 0.625,
                   .update_s = 0.125};
  message.limits = {.fixed_s = -1, .patience_s = 10, .slow_s = 600, .data_s = 30};
  const auto parsed = AgentMessage::Parse(message.Encode());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->marks, 9U);
  ASSERT_EQ(parsed->groups.size(), 2U);
  EXPECT_EQ(parsed->groups[0].group, "world");
  EXPECT_EQ(parsed->groups[0].call, "all_reduce \"b\"");
  EXPECT_TRUE(parsed->groups[0].inside());
  EXPECT_FALSE(parsed->groups[1].inside());
  EXPECT_EQ(parsed->times.step, 4);
  EXPECT_EQ(parsed->times.whole_s, 1.5);
  EXPECT_EQ(parsed->times.data_s, 0.25);
  EXPECT_EQ(parsed->times.forward_s, 0.5);
  EXPECT_EQ(parsed->times.backward_s, 0.625);
  EXPECT_EQ(parsed->times.update_s, 0.125);
  EXPECT_EQ(parsed->limits.fixed_s, -1);
  EXPECT_EQ(parsed->limits.patience_s, 10);
  EXPECT_EQ(parsed->limits.slow_s, 600);
  EXPECT_EQ(parsed->limits.data_s, 30);
}

TEST(AgentMessage, ManyGroupsAndLongCallsStayOneDatagram) {
  AgentMessage message;
  for (int i = 0; i < 100; ++i) {
    message.groups.push_back({.group = std::string(1000, 'g'), .call = std::string(1000, 'c')});
  }
  const auto parsed = AgentMessage::Parse(message.Encode());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->groups.size(), AgentMessage::kGroupsMax);
  EXPECT_LT(message.Encode().size(), 8192U);
}

TEST(AgentMessage, ProgressOfAWrongFormCountsAsAbsent) {
  const auto message = AgentMessage::Parse(
      R"({"kind":"beat","groups":[1,{"group":3}],"times_step":2,"times":[1],"limits":"x"})");
  ASSERT_TRUE(message.ok());
  ASSERT_EQ(message->groups.size(), 1U);
  EXPECT_EQ(message->groups[0].group, "");
  EXPECT_EQ(message->times.whole_s, 0);
  EXPECT_EQ(message->limits.slow_s, 0);
}

TEST(AgentMessage, ParseRefusesWhatNoRankSends) {
  for (const char* const line : {"", "[]", "{}", "{\"kind\":\"dance\"}", "{\"kind\":5}", "beat"}) {
    EXPECT_EQ(AgentMessage::Parse(line).status().code(), absl::StatusCode::kInvalidArgument)
        << line;
  }
  // Members of a wrong type count as absent, so that one bad field does not lose an error report.
  const auto message = AgentMessage::Parse(R"({"kind":"error","rank":"x","text":"why"})");
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->text, "why");
  EXPECT_EQ(message->rank, 0);
}

}  // namespace
}  // namespace dtrain::agent_channel_test
