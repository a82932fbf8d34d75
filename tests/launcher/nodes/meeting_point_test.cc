#include "launcher/nodes/meeting_point.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::meeting_point_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

MeetingFlags EndpointOf(int nodes, const std::string& endpoint) {
  return {nodes, std::to_string(nodes), endpoint, "--rdzv-endpoint", "", "29500"};
}

MeetingFlags MasterOf(int nodes, const std::string& address, const std::string& port) {
  return {nodes, std::to_string(nodes), "", "--rdzv-endpoint", address, port};
}

std::string Refusal(const MeetingFlags& flags) {
  const absl::StatusOr<std::string> point = MeetingPoint(flags);
  EXPECT_EQ(point.status().code(), absl::StatusCode::kInvalidArgument)
      << flags.endpoint << flags.master_addr << " " << flags.master_port << ": " << point.status();
  const std::string message(point.status().message());
  EXPECT_THAT(message, Not(HasSubstr("\n"))) << "one line";
  return message;
}

TEST(MeetingPoint, IsWhatAllNodesCanReach) {
  for (const char* const endpoint :
       {"n0:29500", "n0.example.org:1", "10.0.0.1:65535", "[::1]:29500", "[fe80::1%eth0]:7",
        "job-0.job_set:29500", "localhost:29500"}) {
    EXPECT_EQ(MeetingPoint(EndpointOf(2, endpoint)).value_or("refused"), endpoint);
  }
}

TEST(MeetingPoint, RefusesAPortThatTheOthersCouldNotKnow) {
  for (const char* const endpoint : {"n0:0", "10.0.0.1:00", "[::1]:0"}) {
    EXPECT_THAT(Refusal(EndpointOf(2, endpoint)),
                AllOf(HasSubstr(endpoint), HasSubstr("only node 0 would know which port"),
                      HasSubstr("a free port there from 1 to 65535")));
  }
}

TEST(MeetingPoint, RefusesWhatIsNoHostWithAPort) {
  for (const char* const endpoint :
       {"n0:70000",       "n0:",    ":29500",         "n0:-1",
        "n0:+7",          "n0:x",   "n0:99999999999", "n0: 7",
        "n0:7 ",          " n0:7",  "n 0:7",          "-oProxyCommand=x:7",
        "http://n0:7",    "[n0]:7", "[::1:7",         "[]:7",
        "$(id):7",        "a'b:7",  "n0%$(id):7",     "[fe80::1%]:7",
        "[fe80::1%a b]:7"}) {
    EXPECT_THAT(Refusal(EndpointOf(2, endpoint)),
                AllOf(HasSubstr("--rdzv-endpoint is \""), HasSubstr("allowed: HOST:PORT")));
  }
  for (const char* const endpoint : {"0.0.0.0:7", "0:7", "*:7", "[::]:7", "[::%1]:7"}) {
    EXPECT_THAT(Refusal(EndpointOf(2, endpoint)),
                AllOf(HasSubstr(endpoint), HasSubstr("would listen on every interface")));
  }
  EXPECT_THAT(Refusal(EndpointOf(2, "n0")), HasSubstr("which has no port"));
  EXPECT_THAT(Refusal(EndpointOf(2, "n0:7\n")), HasSubstr("is \"n0:7\\n\""));
  EXPECT_THAT(Refusal(EndpointOf(2, "::1:29500")), HasSubstr("write this IPv6 address as [::1]:"));
}

TEST(MeetingPoint, NamesWhoGaveTheEndpoint) {
  MeetingFlags flags = EndpointOf(2, "n 0:29500");
  flags.endpoint_from = "the address of node 0 by Slurm job 7";
  EXPECT_THAT(Refusal(flags), HasSubstr("the address of node 0 by Slurm job 7 is \"n 0:29500\""));
}

// torchrun takes --rdzv-endpoint localhost:0 for one node, and a host alone.
TEST(MeetingPoint, IsOfNoUseToOneNodeButMustBeWritable) {
  for (const char* const endpoint : {"localhost:0", "localhost", "n0:29500", "::1"}) {
    EXPECT_EQ(MeetingPoint(EndpointOf(1, endpoint)).value_or("refused"), endpoint);
  }
  EXPECT_EQ(MeetingPoint(MasterOf(1, "localhost", "0")).value_or("refused"), "");
  EXPECT_EQ(MeetingPoint(MasterOf(1, "", "")).value_or("refused"), "");
  EXPECT_THAT(Refusal(EndpointOf(1, "localhost:70000")), HasSubstr("localhost:70000"));
  EXPECT_THAT(Refusal(MasterOf(1, "localhost", "70000")),
              HasSubstr("--master-port is \"70000\"; allowed: a number from 0 to 65535"));
}

TEST(MeetingPoint, ConsistsOfTheMastersAddressAndPortWithoutAnEndpoint) {
  EXPECT_EQ(MeetingPoint(MasterOf(2, "n0", "7")).value_or("refused"), "n0:7");
  EXPECT_EQ(MeetingPoint(MasterOf(2, "::1", "7")).value_or("refused"), "[::1]:7");
  EXPECT_EQ(MeetingPoint(MasterOf(2, "[::1]", "7")).value_or("refused"), "[::1]:7");
  for (const char* const port : {"0", "70000", "", " ", "x", "7 "}) {
    EXPECT_THAT(Refusal(MasterOf(2, "n0", port)),
                AllOf(HasSubstr("--master-port is \"" + std::string(port) + "\""),
                      HasSubstr("allowed: a number from 1 to 65535")));
  }
  for (const char* const address : {" ", "n0:29500", "0.0.0.0", "-x", "a b", "[n0"}) {
    EXPECT_THAT(Refusal(MasterOf(2, address, "7")),
                AllOf(HasSubstr("--master-addr is \"" + std::string(address) + "\""),
                      HasSubstr("without a port")));
  }
  EXPECT_THAT(Refusal(MasterOf(3, "", "7")), HasSubstr("--nnodes 3 needs --rdzv-endpoint"));
}

}  // namespace
}  // namespace dtrain::launcher::meeting_point_test
