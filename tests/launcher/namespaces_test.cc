// Agents in two network namespaces joined by a veth pair: real TCP between them.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/nodes_fixture.h"

namespace dtrain::launcher::namespaces_test {
namespace {

using ::testing::HasSubstr;

bool Shell(const std::string& command) { return std::system(command.c_str()) == 0; }

TEST_F(NodesTest, AgentsMeetAcrossNetworkNamespaces) {
  const std::string id = absl::StrCat(getpid());
  const std::string a = "dta" + id;
  const std::string b = "dtb" + id;
  const auto clean = [&] { Shell("ip netns del " + a + "; ip netns del " + b); };
  if (!Shell("ip netns add " + a + " && ip netns add " + b)) {
    clean();
    GTEST_SKIP() << "network namespaces need root and CAP_NET_ADMIN: THIS CASE DID NOT RUN";
  }
  // The command remounts /sys, and for that makes / a slave mount.
  if (!Shell("ip netns exec " + a + " true")) {
    clean();
    GTEST_SKIP() << "no process can enter a network namespace here (a chroot whose / is no mount "
                    "point?): THIS CASE DID NOT RUN";
  }
  ASSERT_TRUE(Shell("ip link add va" + id + " netns " + a + " type veth peer name vb" + id +
                    " netns " + b));
  for (const auto& [space, link, address] :
       {std::tuple(a, "va" + id, "10.77.0.1"), std::tuple(b, "vb" + id, "10.77.0.2")}) {
    ASSERT_TRUE(Shell("ip -n " + space + " addr add " + address + "/24 dev " + link + " && ip -n " +
                      space + " link set " + link + " up && ip -n " + space + " link set lo up"));
  }
  // Rank 1 fails after rank 0 has written; the failure must stop rank 0 on the other host.
  const std::string spoken = testing::TempDir() + "dtrain-spoken-" + id;
  const std::string script =
      absl::StrCat("echo $RANK $DTRAIN_HOST_ADDRESS $DTRAIN_STORE; [ $RANK = 0 ] && exec touch ",
                   spoken, "; until [ -e ", spoken, " ]; do sleep 0.01; done; exit 1");
  {
    LaunchedJob first(Node(0, "10.77.0.1:29500", 1, script), {"ip", "netns", "exec", a});
    LaunchedJob second(Node(1, "10.77.0.1:29500", 1, script), {"ip", "netns", "exec", b});
    EXPECT_EQ(first.Wait(), 1) << first.Err();
    EXPECT_EQ(second.Wait(), 1) << second.Err();
    EXPECT_EQ(first.File("run/logs/attempt-0/rank-0.out"), "0 10.77.0.1 10.77.0.1:29500\n");
    EXPECT_EQ(second.File("run/logs/attempt-0/rank-1.out"), "1 10.77.0.2 10.77.0.1:29500\n");
    EXPECT_THAT(first.Err(), HasSubstr("rank 1 ended with exit code 1"));
  }
  clean();
  std::remove(spoken.c_str());
}

// A namespace of its own leads to no name service. That says nothing of the name, which another
// start may find.
TEST_F(NodesTest, ANameServiceThatDoesNotAnswerIsATemporaryFailure) {
  if (!Shell("unshare -n true")) {
    GTEST_SKIP() << "no process can have a network namespace of its own here: THIS CASE DID NOT "
                    "RUN";
  }
  std::vector<std::string> arguments = Node(1, "127.0.0.1:29500", 1, "true");
  arguments.insert(arguments.begin() + 1, {"--local-addr", "nobody.example"});
  LaunchedJob job(arguments, {"unshare", "-n"});
  EXPECT_EQ(job.Wait(), 75) << job.Err();
  EXPECT_THAT(job.Err(), HasSubstr("--local-addr: cannot resolve host \"nobody.example\": "));
  EXPECT_THAT(job.Err(), HasSubstr("name service"));
}

}  // namespace
}  // namespace dtrain::launcher::namespaces_test
