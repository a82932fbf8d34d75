// Tests of the reading of the kernel's lines on a failure: real rings of the corpus, and lines that
// only look alike.
#include "launcher/records/kernel_log.h"

#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::kernel_log_test {
namespace {

using ::testing::HasSubstr;

std::vector<KernelMessage> OfCorpus(const std::string& name) {
  const auto text = ReadFile(std::string(DTRAIN_SHARED) + "/corpus/kernel-logs/" + name);
  return text.ok() ? KernelMessagesIn(*text, 100) : std::vector<KernelMessage>();
}

std::map<std::string, int> Kinds(const std::vector<KernelMessage>& messages) {
  std::map<std::string, int> kinds;
  for (const KernelMessage& message : messages) {
    ++kinds[message.kind];
  }
  return kinds;
}

class KernelLogCorpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FileExists(std::string(DTRAIN_SHARED) + "/corpus/README.md")) {
      GTEST_SKIP() << "DID NOT RUN: there is no corpus at " << DTRAIN_SHARED;
    }
  }
};

TEST_F(KernelLogCorpus, NamesTheProcessesThatRanOutOfMemoryAndTheGpuErrorBeforeThem) {
  const auto messages = OfCorpus("dmesg-oom.log");
  const auto kinds = Kinds(messages);
  EXPECT_EQ(kinds.at("xid"), 2) << "one for each number";
  EXPECT_GE(kinds.at("out_of_memory"), 3);
  std::vector<int> killed;
  for (const KernelMessage& message : messages) {
    if (std::string(message.kind) == "out_of_memory" && message.pid != 0) {
      killed.push_back(message.pid);
    }
  }
  EXPECT_THAT(killed, ::testing::ElementsAre(123, 456, 863987));
  EXPECT_EQ(messages[0].device, "PCI:0000:38:00");
  EXPECT_EQ(messages[0].code, 13);
}

TEST_F(KernelLogCorpus, ReadsXidsWithTheirProcesses) {
  const auto messages = OfCorpus("dmesg-xid-119.log");
  std::vector<int> pids;
  for (const KernelMessage& message : messages) {
    if (std::string(message.kind) == "xid") {
      EXPECT_EQ(message.code, 119);
      EXPECT_EQ(message.device, "PCI:0000:9b:00");
      pids.push_back(message.pid);
    }
  }
  EXPECT_THAT(pids, ::testing::ElementsAre(2024380, 1263500, 1240590));
}

TEST_F(KernelLogCorpus, ReadsASegmentationFaultInNccl) {
  const auto messages = OfCorpus("dmesg-nccl-segfault.log");
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_EQ(std::string(messages[0].kind), "segfault");
  EXPECT_EQ(messages[0].pid, 2536443);
  EXPECT_THAT(messages[0].text, HasSubstr("pt_main_thread[2536443]: segfault at"));
}

TEST_F(KernelLogCorpus, APanicIsFoundAmongTheLinesOfAStart) {
  EXPECT_EQ(Kinds(OfCorpus("pstore-dmesg.txt")), (std::map<std::string, int>{{"kernel", 1}}));
}

TEST_F(KernelLogCorpus, HealthyRingsSayNothing) {
  EXPECT_TRUE(OfCorpus("kmsg.log").empty());
  EXPECT_TRUE(OfCorpus("fabricmanager.log").empty());
}

TEST(KernelLog, KnowsTheFormsOfALine) {
  for (const char* const line :
       {"NVRM: Xid (PCI:0000:03:00): 79, pid=1, GPU has fallen off the bus.",
        "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:03:00): 79, pid=1, x",
        "<4>[  12.345678] NVRM: Xid (PCI:0000:03:00): 79, pid=1, x",
        "4,1234,206764307,-;NVRM: Xid (PCI:0000:03:00): 79, pid=1, x",
        "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 NVRM: Xid (PCI:0000:03:00): 79, pid=1, x",
        "NVRM: Xid (PCI:0000:03:00): GPU-1234: 79, pid='1', x"}) {
    const auto message = KernelMessageIn(line);
    ASSERT_TRUE(message.has_value()) << line;
    EXPECT_EQ(std::string(message->kind), "xid") << line;
    EXPECT_EQ(message->device, "PCI:0000:03:00") << line;
    EXPECT_EQ(message->code, 79) << line;
    EXPECT_EQ(message->pid, 1) << line;
    EXPECT_EQ(message->text.rfind("NVRM", 0), 0U) << message->text;
  }
  const auto fatal = KernelMessageIn("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Fatal, x");
  ASSERT_TRUE(fatal.has_value());
  EXPECT_EQ(std::string(fatal->kind), "sxid");
  EXPECT_EQ(fatal->code, 12028);
}

TEST(KernelLog, WhatOnlyLooksAlikeExplainsNothing) {
  for (const char* const line :
       {"", "<", "[", "kern", "1,2,3,-;", "loss 79, Xid is 79", "mlx5_core 0000:41:00.1: Link up",
        "nfs: server a OK", "NVRM: Xid (PCI:0000:03:00", "NVRM: Xid (PCI:0000:03:00): x"}) {
    EXPECT_FALSE(KernelMessageIn(line).has_value()) << line;
  }
  EXPECT_TRUE(KernelMessageIn("mlx5_core 0000:41:00.1 eth0: Link down").has_value());
}

TEST(KernelLog, TheRingIsReadOrTheReasonIsGiven) {
  const auto text = ReadKernelRing(absl::Hours(100000));
  if (text.ok()) {
    EXPECT_THAT(*text, HasSubstr(",")) << "records have a level, a number and a time";
  } else {
    EXPECT_THAT(std::string(text.status().message()), HasSubstr("/dev/kmsg"));
  }
}

TEST(KernelLog, TimesOfTheRingAllowForTheDriftOfWeeksAndNoMore) {
  constexpr int64_t kSecond = 1'000'000;
  EXPECT_EQ(RingMicrosBefore(absl::Minutes(10), absl::Minutes(1)), (600 - 60 - 1) * kSecond);
  // After 8 weeks 2 in a million are 9.7 s.
  const int64_t uptime = 8 * 7 * 86'400;
  EXPECT_EQ(RingMicrosBefore(absl::Seconds(uptime), absl::Minutes(1)),
            (uptime - 60) * kSecond - uptime * 2);
}

}  // namespace
}  // namespace dtrain::launcher::kernel_log_test
