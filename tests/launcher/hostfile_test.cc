// DeepSpeed's hostfile and filters: what is read, in which order, and what is refused by which
// message.
#include "launcher/hosts/hostfile.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::hostfile_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// "a:0,1 b:0", or the error.
std::string Text(const absl::StatusOr<std::vector<Host>>& hosts) {
  if (!hosts.ok()) {
    EXPECT_TRUE(absl::IsInvalidArgument(hosts.status())) << hosts.status();
    return std::string(hosts.status().message());
  }
  return absl::StrJoin(*hosts, " ", [](std::string* out, const Host& host) {
    absl::StrAppend(out, host.name, ":", absl::StrJoin(host.slots, ","));
  });
}

std::string Read(absl::string_view text) { return Text(ParseHostfile(text, "hosts")); }

std::string Chosen(const HostLimits& limits) {
  const auto hosts = ParseHostfile("w-0 slots=4\nw-1 slots=4\nw-2 slots=2\n", "hosts");
  return Text(ChooseHosts(*hosts, limits));
}

TEST(ParseHostfile, ReadsOneHostALineInOrder) {
  EXPECT_EQ(Read("b slots=2\n\n# a comment\n  a\tslots=1  # its last slot\r\n10.0.0.7:3"),
            "b:0,1 a:0 10.0.0.7:0,1,2");
  EXPECT_EQ(Read("node_1.rack-2 slots=1"), "node_1.rack-2:0");
  EXPECT_EQ(Read("fd00::1 slots=2"), "fd00::1:0,1");
}

TEST(ParseHostfile, NamesFileLineAndReason) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"a slots=1\nb", "hosts:2: cannot read \"b\"; a line is: HOST slots=N"},
      {"a slots=1 b", "hosts:1: cannot read"},
      {"a gpus=1", "hosts:1: cannot read"},
      {"a slots=", "hosts:1: the number of slots is \"\""},
      {"a slots=4x", "hosts:1: the number of slots is \"4x\""},
      {"a slots=-1", "hosts:1: the number of slots is \"-1\""},
      {"a slots=0", "hosts:1: the number of slots is \"0\"; allowed: a number from 1"},
      {"a slots=99999999999999999999", "hosts:1: the number of slots is"},
      {"fd00::1", "hosts:1: cannot read"},
      {"a slots=1\n\nb slots=1\na slots=2", "hosts:4: host a is listed in line 1 already"},
      {"Node1 slots=1\nnode1 slots=1", "hosts:2: host node1 is listed in line 1 already"},
      {"\n# nothing\n", "hostfile hosts lists no host"},
      {"", "hostfile hosts lists no host"},
  };
  for (const auto& [text, message] : bad) {
    EXPECT_THAT(Read(text), StartsWith(message)) << text;
  }
}

TEST(ParseHostfile, BoundsTheMemoryThatAFileTakes) {
  std::string text;
  for (int host = 0; host < 17; ++host) {
    absl::StrAppend(&text, "h", host, " slots=65536\n");
  }
  EXPECT_EQ(Read(text), "hosts:17: the hosts have more than 1048576 slots together");
}

TEST(ParseHostfile, RefusesNamesThatSshOrAShellCouldTakeForSomethingElse) {
  for (const std::string name : {"-oProxyCommand=touch",
                                 "--",
                                 "-",
                                 "a;b",
                                 "a$(b)",
                                 "a`b`",
                                 "'a'",
                                 "\"a\"",
                                 "a|b",
                                 "user@a",
                                 "ssh://a",
                                 "a/b",
                                 ".a",
                                 "_a",
                                 "a\\b",
                                 "%h",
                                 "[fd00::1]",
                                 "fe80::1%eth0",
                                 "a\x01"
                                 "b",
                                 "\xff"}) {
    EXPECT_THAT(Read(name + " slots=1"),
                AllOf(StartsWith("hosts:1: "), HasSubstr("is no host name")))
        << name;
    EXPECT_FALSE(CheckHostName(name).ok()) << name;
  }
  EXPECT_THAT(Read("-oProxyCommand=touch x slots=1"), StartsWith("hosts:1: cannot read"));
  EXPECT_FALSE(CheckHostName("").ok());
  EXPECT_FALSE(CheckHostName("a b").ok());
  EXPECT_FALSE(CheckHostName("a\n").ok());
  EXPECT_FALSE(CheckHostName(absl::string_view("a\0b", 3)).ok());
  EXPECT_FALSE(CheckHostName(std::string(254, 'a')).ok());
  EXPECT_TRUE(CheckHostName(std::string(253, 'a')).ok());
}

TEST(ChooseHosts, IncludesWhatIsNamedInTheFilesOrder) {
  EXPECT_EQ(Chosen({}), "w-0:0,1,2,3 w-1:0,1,2,3 w-2:0,1");
  EXPECT_EQ(Chosen({.include = "w-2@w-0:3,1"}), "w-0:1,3 w-2:0,1");
  EXPECT_EQ(Chosen({.include = "w-0:1@w-0:0,1"}), "w-0:0,1") << "the slots of both";
  EXPECT_EQ(Chosen({.include = "w-0@w-0:2"}), "w-0:2") << "as DeepSpeed takes it";
  EXPECT_EQ(Chosen({.include = "W-2@W-0:1@w-0:3"}), "w-0:1,3 w-2:0,1") << "one name in any case";
}

TEST(ChooseHosts, ExcludesWhatIsNamedAndHostsLeftWithoutSlots) {
  EXPECT_EQ(Chosen({.exclude = "w-1"}), "w-0:0,1,2,3 w-2:0,1");
  EXPECT_EQ(Chosen({.exclude = "w-1:0,2@w-2:0,1"}), "w-0:0,1,2,3 w-1:1,3");
  EXPECT_EQ(Chosen({.exclude = "W-1@W-2:0"}), "w-0:0,1,2,3 w-2:1");
  EXPECT_EQ(Chosen({.exclude = "w-0@w-1@w-2"}), "--exclude leaves no host");
}

TEST(ChooseHosts, LimitsHostsAndSlots) {
  EXPECT_EQ(Chosen({.hosts_max = 2}), "w-0:0,1,2,3 w-1:0,1,2,3");
  EXPECT_EQ(Chosen({.hosts_max = 1, .slots_max = 2}), "w-0:0,1");
  EXPECT_EQ(Chosen({.hosts_max = 4}), "--nnodes is 4, but the hostfile has 3 hosts");
  EXPECT_EQ(Chosen({.slots_max = 3}),
            "--nproc-per-node is 3, but host w-2 has 2 slots in the hostfile");
}

TEST(ChooseHosts, RefusesByName) {
  EXPECT_EQ(Chosen({.include = "w-0", .exclude = "w-1"}),
            "--include and --exclude are given; use one of them");
  EXPECT_THAT(Chosen({.include = "w-0", .hosts_max = 1}),
              StartsWith("--include is given together with --nnodes"));
  EXPECT_THAT(Chosen({.exclude = "w-0", .slots_max = 1}),
              StartsWith("--exclude is given together with --nproc-per-node"));
  EXPECT_EQ(Chosen({.include = "w-9"}),
            "--include names host \"w-9\", which is not in the hostfile");
  EXPECT_EQ(Chosen({.exclude = "w-2:0,2"}),
            "--exclude names slot 2 of host w-2, which has the slots 0 to 1");
  EXPECT_THAT(Chosen({.include = "-oProxyCommand=x"}), HasSubstr("is not in the hostfile"));
  for (const char* const text : {"w-0:", "w-0:x", "w-0:1,", "w-0:-1", "w-0:0:1", "[w-0]0"}) {
    EXPECT_THAT(Chosen({.include = text}), AllOf(StartsWith("--include has \""), HasSubstr(text)))
        << text;
  }
  for (const char* const text : {"@", "w-0@", "@w-0", "w-0@@w-1"}) {
    EXPECT_THAT(Chosen({.exclude = text}), HasSubstr("host \"\", which is not in")) << text;
  }
}

TEST(ChooseHosts, TakesIpv6AddressesInBrackets) {
  const auto hosts = ParseHostfile("fd00::1 slots=2\nfd00::2 slots=2", "hosts");
  EXPECT_EQ(Text(ChooseHosts(*hosts, {.include = "fd00::2"})), "fd00::2:0,1");
  EXPECT_EQ(Text(ChooseHosts(*hosts, {.include = "[fd00::1]:1@[fd00::2]"})),
            "fd00::1:1 fd00::2:0,1");
}

}  // namespace
}  // namespace dtrain::launcher::hostfile_test
