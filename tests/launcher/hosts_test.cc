// The parts of a start over ssh that need no host: the command, the variables that are sent, the
// messages, and what the hosts' answers and ends mean together.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/hosts/channel_message.h"
#include "launcher/hosts/exports.h"
#include "launcher/hosts/frames.h"
#include "launcher/hosts/host_answers.h"
#include "launcher/hosts/host_plan.h"
#include "launcher/hosts/host_tree.h"
#include "launcher/hosts/node_messages.h"
#include "launcher/hosts/ssh_command.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::hosts_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

constexpr char kHostile[] = "it's \"$(touch x)\"\n`touch y` \\ \xff";

TEST(SshCommand, PutsTheHostBehindTheOptionsAndOneQuotedPathBehindTheHost) {
  SshOptions options;
  options.port = "2222";
  options.more_words = {"-l", "someone"};
  options.dtrain = "/opt/my programs/dtrain's";
  const std::vector<std::string> words = SshCommand("n1", options);
  const std::vector<std::string> last(words.end() - 7, words.end());
  EXPECT_THAT(last, ElementsAre("-p", "2222", "-l", "someone", "--", "n1",
                                "'/opt/my programs/dtrain'\\''s' node-agent"));
  EXPECT_EQ(words.front(), "ssh");
  EXPECT_THAT(words, testing::Contains("BatchMode=yes"));
}

TEST(QuoteForShell, ShReadsTheSameWordBack) {
  for (const std::string word : {"plain", "", " ", "it's", kHostile, "$HOME", "*", "~"}) {
    const std::string command = "printf %s " + QuoteForShell(word);
    FILE* const pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::array<char, 256> read{};
    const size_t bytes = fread(read.data(), 1, read.size(), pipe);
    EXPECT_EQ(pclose(pipe), 0);
    EXPECT_EQ(std::string(read.data(), bytes), word);
  }
}

TEST(SplitWords, TakesQuotesAndNothingElse) {
  EXPECT_THAT(*SplitWords("-F 'my config'  -o \"A=it's b\" $(x) \\"),
              ElementsAre("-F", "my config", "-o", "A=it's b", "$(x)", "\\"));
  EXPECT_THAT(*SplitWords(" \t"), ElementsAre());
  EXPECT_THAT(*SplitWords("a''b ''"), ElementsAre("ab", ""));
  EXPECT_THAT(SplitWords("-l 'me").status().message(), HasSubstr("a quote (') has no end"));
}

TEST(IsThisHost, KnowsItsNamesAndAddresses) {
  for (const char* const name :
       {"localhost", "127.0.0.1", "::1", "n1.lab", "n1", "10.0.0.5", "N1.Lab", "N1", "LocalHost"}) {
    EXPECT_TRUE(IsThisHost(name, "n1.lab", {"10.0.0.5"})) << name;
  }
  for (const char* const name : {"n2", "n1.other", "10.0.0.6", "lab", ""}) {
    EXPECT_FALSE(IsThisHost(name, "n1.lab", {"10.0.0.5"})) << name;
  }
}

TEST(ExportedEnvironment, SendsLibrariesVariablesFilesAndExportsInThisOrder) {
  const Environment own = {{"NCCL_DEBUG", "INFO"},   {"OMP_NUM_THREADS", "1"},
                           {"PATH", "/bin"},         {"MINE", kHostile},
                           {"DTRAIN_TORCH", "/t"},   {"UCX_TLS", "tcp"},
                           {"NCCLX", "1"},           {"DTRAIN_STORE", "h:1"},
                           {"DTRAIN_TOKEN_FD", "3"}, {"LOST", "x"}};
  const auto sent = ExportedEnvironment(own, {"# comment\n\nOMP_NUM_THREADS=2\nF=a=b \n", "F=c\n"},
                                        {"MINE", "EMPTY=", "UCX_TLS=rc"});
  ASSERT_TRUE(sent.ok()) << sent.status();
  EXPECT_THAT(*sent, ElementsAre(Pair("DTRAIN_TORCH", "/t"), Pair("EMPTY", ""), Pair("F", "c"),
                                 Pair("MINE", kHostile), Pair("NCCL_DEBUG", "INFO"),
                                 Pair("OMP_NUM_THREADS", "2"), Pair("UCX_TLS", "rc")));
}

TEST(ExportedEnvironment, RefusesWhatIsNoVariable) {
  const auto error = [](const std::vector<std::string>& files,
                        const std::vector<std::string>& exports) {
    const auto sent = ExportedEnvironment({}, files, exports);
    EXPECT_TRUE(absl::IsInvalidArgument(sent.status())) << sent.status();
    return std::string(sent.status().message());
  };
  EXPECT_THAT(error({}, {"MISSING"}), HasSubstr("--export MISSING: this variable is not set here"));
  EXPECT_THAT(error({}, {"A B=1"}), HasSubstr("--export has \"A B\""));
  EXPECT_THAT(error({}, {"=1"}), HasSubstr("--export has \"\""));
  EXPECT_THAT(error({}, {"1A=1"}), HasSubstr("--export has \"1A\""));
  EXPECT_THAT(error({}, {"-oX"}), HasSubstr("--export has \"-oX\""));
  EXPECT_THAT(error({"A=1\nB\n"}, {}), HasSubstr("line 2 of .deepspeed_env has \"B\""));
}

TEST(ReadEnvironmentFiles, TakesTheHomeFoldersFileAndThenThisFolders) {
  const TempDir home = *TempDir::Create("/tmp");
  const std::string name = absl::StrCat("hosts_test_env_", getpid());
  std::ofstream(home.path() + "/" + name) << "A=home";
  EXPECT_THAT(*ReadEnvironmentFiles({{"HOME", home.path()}, {"DS_ENV_FILE", name}}),
              ElementsAre("A=home"));
  std::ofstream(name) << "A=here";
  EXPECT_THAT(*ReadEnvironmentFiles({{"HOME", home.path()}, {"DS_ENV_FILE", name}}),
              ElementsAre("A=home", "A=here"));
  std::filesystem::remove(name);
  EXPECT_THAT(*ReadEnvironmentFiles({{"HOME", home.path()}}), ElementsAre());
}

TEST(Shown, HidesSecrets) {
  EXPECT_EQ(Shown("NCCL_DEBUG", "INFO"), "INFO");
  EXPECT_EQ(Shown("MY_API_KEY", "x"), "(hidden)");
  EXPECT_EQ(Shown("HF_TOKEN", "x"), "(hidden)");
}

TEST(FrameReader, GivesFramesHoweverTheirBytesArrive) {
  const std::string stream =
      absl::StrCat("Welcome!\nno newline", kPreamble, EncodeFrame(FrameKind::kOut, kHostile),
                   EncodeFrame(FrameKind::kEnd, ""));
  for (size_t step = 1; step <= stream.size(); ++step) {
    FrameReader reader(kPreamble);
    std::vector<Frame> frames;
    for (size_t at = 0; at < stream.size(); at += step) {
      reader.Add(absl::string_view(stream).substr(at, step));
      for (auto frame = reader.Next(); frame.ok() && frame->has_value(); frame = reader.Next()) {
        frames.push_back(**frame);
      }
    }
    ASSERT_EQ(frames.size(), 2U) << step;
    EXPECT_EQ(frames[0].kind, FrameKind::kOut);
    EXPECT_EQ(frames[0].payload, kHostile);
    EXPECT_EQ(frames[1].kind, FrameKind::kEnd);
  }
}

TEST(FrameReader, RefusesWhatIsNoFrame) {
  FrameReader long_frame("");
  long_frame.Add("\xff\xff\xff\x7f\x01");
  EXPECT_TRUE(absl::IsInvalidArgument(long_frame.Next().status()));
  FrameReader kind("");
  kind.Add(absl::string_view("\0\0\0\0\x63", 5));
  EXPECT_TRUE(absl::IsInvalidArgument(kind.Next().status()));
  FrameReader greeting(kPreamble);
  greeting.Add(std::string(100'000, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(greeting.Next().status()));
}

TEST(JobMessage, CarriesAnyBytes) {
  JobMessage job;
  job.flags = {"--rdzv-id", kHostile};
  job.program = "./gpt";
  job.arguments = {"", kHostile, "--"};
  job.environment = {{"A", kHostile}};
  job.directory = "/a b";
  job.host = "fd00::1";
  job.nodes = 3;
  job.nodes_min = 2;
  job.node_rank = 7;  // A spare.
  job.ranks = 4;
  job.token = std::string(32, '\0');
  const auto read = JobMessage::Parse(job.Encode());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->flags, job.flags);
  EXPECT_EQ(read->program, job.program);
  EXPECT_EQ(read->arguments, job.arguments);
  EXPECT_EQ(read->environment, job.environment);
  EXPECT_EQ(read->directory, job.directory);
  EXPECT_EQ(read->host, job.host);
  EXPECT_EQ(read->nodes, 3);
  EXPECT_EQ(read->node_rank, 7);
  EXPECT_EQ(read->nodes_min, 2);
  EXPECT_EQ(read->ranks, 4);
  EXPECT_EQ(read->token, job.token);
  for (const char* const bad : {"", "[]", "{}", "{\"flags\":1}", "{\"flags\":[\"?\"]}"}) {
    EXPECT_FALSE(JobMessage::Parse(bad).ok()) << bad;
    EXPECT_FALSE(HelloMessage::Parse(bad).ok()) << bad;
  }
}

TEST(ChannelMessage, CarriesAnyBytes) {
  const ChannelMessage sent{0x80000102U, ChannelEvent::kErr, std::string("\0\xff x", 4)};
  FrameReader reader("");
  reader.Add(sent.ToFrame());
  const auto frame = reader.Next();
  ASSERT_TRUE(frame.ok() && frame->has_value()) << frame.status();
  EXPECT_EQ((*frame)->kind, FrameKind::kChannel);
  const auto read = ChannelMessage::Parse((*frame)->payload);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->channel, sent.channel);
  EXPECT_EQ(read->event, sent.event);
  EXPECT_EQ(read->bytes, sent.bytes);
  for (const absl::string_view bad :
       {absl::string_view(""), absl::string_view("\1\0\0\0", 4), absl::string_view("\1\0\0\0\0", 5),
        absl::string_view("\1\0\0\0\x08", 5)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ChannelMessage::Parse(bad).status()));
  }
  const std::vector<std::string> words = {"ssh", "", kHostile, "-F"};
  EXPECT_EQ(WordsOf(BytesOf(words)), words);
  EXPECT_THAT(WordsOf(BytesOf({})), ElementsAre());
}

TEST(SplitIntoTree, GivesEachHostAParentThatStartsAtMostAsManyAsAllowed) {
  for (const int fanout : {2, 3, 64}) {
    for (const int count : {0, 1, 2, 63, 64, 65, 128, 64 * 64, 64 * 64 + 64, 64 * 64 + 65}) {
      const std::vector<TreePlace> places = SplitIntoTree(count, fanout);
      ASSERT_EQ(places.size(), static_cast<size_t>(count));
      std::vector<int> started(static_cast<size_t>(count) + 1);  // The last is this host's.
      for (int host = 0; host < count; ++host) {
        const TreePlace& place = places[static_cast<size_t>(host)];
        ASSERT_LT(place.parent, host);
        ASSERT_GE(place.parent, -1);
        const auto parent = static_cast<size_t>(place.parent < 0 ? count : place.parent);
        EXPECT_LE(++started[parent], fanout) << count << " hosts, of which " << host;
        EXPECT_EQ(place.hops, place.parent < 0 ? 1 : places[parent].hops + 1);
      }
    }
  }
}

int HopsOf(int count, int fanout) {
  int hops = 0;
  for (const TreePlace& place : SplitIntoTree(count, fanout)) {
    hops = std::max(hops, place.hops);
  }
  return hops;
}

TEST(SplitIntoTree, IsAsDeepAsItHasToBe) {
  EXPECT_EQ(HopsOf(0, 64), 0);
  EXPECT_EQ(HopsOf(1, 64), 1);
  EXPECT_EQ(HopsOf(64, 64), 1);
  EXPECT_EQ(HopsOf(65, 64), 2);
  EXPECT_EQ(HopsOf(64 * 64 + 1, 64), 2);
  EXPECT_EQ(HopsOf(64 + 64 * 64, 64), 2) << "64 hosts, each with 64 more";
  EXPECT_EQ(HopsOf(64 + 64 * 64 + 1, 64), 3);
  EXPECT_EQ(HopsOf(7, 2), 3);
  EXPECT_EQ(HopsOf(5000, 0), 1) << "all from here";
}

TEST(SplitIntoTree, GivesAHostItsNeighbours) {
  std::vector<int> parents;
  for (const TreePlace& place : SplitIntoTree(7, 2)) {
    parents.push_back(place.parent);
  }
  EXPECT_THAT(parents, ElementsAre(-1, 0, 0, -1, 3, 3, 5));
}

HostAnswer Answer(const std::string& host, const std::string& address) {
  HostAnswer answer;
  answer.host = host;
  answer.is_local = address.empty();
  answer.hello.version = "1";
  answer.hello.program = "/p";
  answer.hello.digest = "d";
  answer.hello.address = address;
  answer.hello.client_address = address.empty() ? "" : "10.0.0.100";
  return answer;
}

TEST(CheckAnswers, ListsEveryHostThatCannotStart) {
  std::vector<HostAnswer> answers = {Answer("a", "10.0.0.1"), Answer("b", "10.0.0.2"),
                                     Answer("c", "10.0.0.3"), Answer("d", "10.0.0.4")};
  EXPECT_TRUE(CheckAnswers(answers, "1").ok());
  answers[1].hello.version = "2";
  answers[3].hello.error = "no program\n";
  const absl::Status wrong = CheckAnswers(answers, "1");
  EXPECT_TRUE(absl::IsFailedPrecondition(wrong));
  EXPECT_THAT(wrong.message(),
              AllOf(HasSubstr("2 of 4 hosts cannot start: b: it has dtrain 2, this host 1; install "
                              "the same on both; d: no program?; nothing was started"),
                    HasSubstr("--exclude b@d")));
  answers[0].silence = "Connection refused";
  const absl::Status silent = CheckAnswers(answers, "1");
  EXPECT_TRUE(absl::IsUnavailable(silent));
  EXPECT_THAT(silent.message(), AllOf(HasSubstr("a: Connection refused"), HasSubstr("b: it has")));
}

TEST(CheckAnswers, NamesTheHostWhoseSshDidNotReachAnotherAndTheFlagThatNeedsNone) {
  std::vector<HostAnswer> answers = {Answer("a", "10.0.0.1"), Answer("b", "10.0.0.2"),
                                     Answer("c", "10.0.0.3")};
  answers[2].ssh_from = "b";
  answers[1].silence = "No route to host";
  EXPECT_THAT(CheckAnswers(answers, "1").message(), Not(HasSubstr("--ssh-fanout")));
  answers[2].silence = "Permission denied (publickey).";
  EXPECT_THAT(
      CheckAnswers(answers, "1").message(),
      AllOf(HasSubstr("b: No route to host; c: Permission denied (publickey). (ssh ran on host b)"),
            HasSubstr("; if hosts may not log in to each other, --ssh-fanout 0 starts all")));
}

TEST(CheckAnswers, RefusesDifferentPrograms) {
  std::vector<HostAnswer> answers = {Answer("a", "10.0.0.1"), Answer("b", "10.0.0.2"),
                                     Answer("c", "10.0.0.3")};
  answers[1].hello.digest = "e";
  EXPECT_THAT(CheckAnswers(answers, "1").message(),
              HasSubstr("the program /p is not the same on all hosts: d on a, c; e on b"));
}

TEST(MeetingAddress, IsWhereTheOtherHostsReachNodeZero) {
  EXPECT_EQ(*MeetingAddress({Answer("a", "10.0.0.1"), Answer("b", "10.0.0.2")}), "10.0.0.1");
  EXPECT_EQ(*MeetingAddress({Answer("a", ""), Answer("b", ""), Answer("c", "10.0.0.3")}),
            "10.0.0.100");
  EXPECT_EQ(*MeetingAddress({Answer("a", ""), Answer("b", "")}), "127.0.0.1");
  HostAnswer from_another = Answer("b", "10.0.0.2");  // Its client is not this host.
  from_another.ssh_from = "c";
  from_another.hello.client_address = "10.0.0.3";
  EXPECT_EQ(*MeetingAddress({Answer("a", ""), from_another, Answer("c", "10.0.0.3")}),
            "10.0.0.100");
  HostAnswer own_session = Answer("a", "192.168.1.1");  // The user came to this host over ssh.
  own_session.is_local = true;
  EXPECT_EQ(*MeetingAddress({own_session, Answer("b", "10.0.0.2")}), "10.0.0.100");
  EXPECT_EQ(*MeetingAddress({Answer("a", "10.0.0.1"), Answer("b", "")}), "10.0.0.1");
  EXPECT_THAT(
      MeetingAddress({Answer("a", "127.0.0.1"), Answer("b", "10.0.0.2")}).status().message(),
      HasSubstr("give --master-addr"));
}

TEST(RetryTime, DoublesWhileAHostsAgentEndsSoonAndIsLongWhereItsHostFailsAgainAndAgain) {
  const HostEnd failed{.code = 75};
  for (const auto& [ends, seconds] : {std::pair(1, 10), std::pair(2, 20), std::pair(6, 320),
                                      std::pair(7, 600), std::pair(1000, 600)}) {
    EXPECT_EQ(RetryTime(failed, ends), absl::Seconds(seconds)) << ends;
  }
  EXPECT_EQ(RetryTime({.code = 75, .lost = true}, 1000), absl::Seconds(10));
  EXPECT_EQ(RetryTime({.code = 93}, 1), absl::Minutes(10));
  for (const int code : {0, 64, 130, 143}) {
    EXPECT_EQ(RetryTime({.code = code}, 1), std::nullopt) << code;
  }
}

TEST(CodeOfJob, IsNodeZerosUnlessAnotherHostExplainsIt) {
  const auto end = [](int order, int code) { return HostEnd{.code = code, .order = order}; };
  const auto lost = [](int order) { return HostEnd{.code = 75, .lost = true, .order = order}; };
  const auto stopped = [](int order, int code) {
    return HostEnd{.code = code, .stopped = true, .order = order};
  };
  EXPECT_EQ(CodeOfJob({end(0, 0), end(1, 0)}, false), 0);
  EXPECT_EQ(CodeOfJob({end(1, 17), end(0, 75)}, false), 17) << "node 0 knows the root cause";
  EXPECT_EQ(CodeOfJob({stopped(1, 75), end(0, 64)}, false), 64) << "it never met node 1";
  EXPECT_EQ(CodeOfJob({end(1, 143), lost(0)}, false), 75) << "no stop that the user asked for";
  EXPECT_EQ(CodeOfJob({lost(0), end(1, 143)}, false), 75);
  EXPECT_EQ(CodeOfJob({end(0, 143), end(1, 143)}, true), 143);
  EXPECT_EQ(CodeOfJob({end(1, 130), lost(0)}, true), 130);
  EXPECT_EQ(CodeOfJob({stopped(0, 75), stopped(1, 75)}, true), 75) << "killed";
  EXPECT_EQ(CodeOfJob({end(0, 0), end(1, 3)}, false), 3);
}

TEST(PlanHosts, ThisHostIsInNoHostsShare) {
  const TempDir folder = *TempDir::Create("/tmp");
  LaunchOptions options;
  options.hosts.hostfile = folder.path() + "/hosts";
  options.hosts.fanout = 2;
  std::ofstream(options.hosts.hostfile) << "a slots=1\nlocalhost slots=1\nb slots=1\nc slots=1\n";
  const auto plans = PlanHosts(options, {});
  ASSERT_TRUE(plans.ok()) << plans.status();
  std::vector<int> parents;
  for (const HostPlan& plan : *plans) {
    parents.push_back(plan.place.parent);
  }
  EXPECT_THAT(parents, ElementsAre(-1, -1, -1, 2)) << "b starts c";
  EXPECT_EQ(plans->back().job.host, "c");
}

TEST(DescribePlans, NamesTheHostThatStartsAnother) {
  std::vector<HostPlan> plans(2);
  plans[0].host = "n1";
  plans[1].host = "n2";
  plans[1].place = {0, 2};
  EXPECT_THAT(DescribePlans(plans),
              HasSubstr("  started by host n1, 2 connections of ssh from here\n"));
}

TEST(DescribePlans, ShowsCommandsAndMessagesWithoutTheToken) {
  HostPlan plan;
  plan.host = "n1";
  plan.command = SshCommand("n1", {});
  plan.job.program = "./gpt";
  plan.job.arguments = {"c.json", kHostile};
  plan.job.environment = {{"HF_TOKEN", "abc"}, {"NCCL_DEBUG", "INFO"}};
  plan.job.token = "do not show me";
  const std::string text = DescribePlans({plan});
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("node 0 of 1: host n1, 1 rank\n"), HasSubstr(" -- n1 'dtrain node-agent'\n"),
            HasSubstr("arguments: \"c.json\" \"it\\'s"), HasSubstr("variable: NCCL_DEBUG=\"INFO\""),
            HasSubstr("variable: HF_TOKEN=\"(hidden)\""), Not(HasSubstr("abc")),
            Not(HasSubstr("do not show me"))));
}

}  // namespace
}  // namespace dtrain::launcher::hosts_test
