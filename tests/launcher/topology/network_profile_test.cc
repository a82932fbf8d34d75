// The variables of network profiles.
#include "launcher/topology/network_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/topology/format.h"
#include "tests/launcher/topology/sysfs_fixture.h"
#include "tests/launcher/topology/topology_files.h"

namespace dtrain::launcher::network_profile_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Nic MakeNic(const std::string& name, double rate_gbps, const std::string& state = "ACTIVE") {
  Nic nic;
  nic.name = name;
  nic.ports = {{1, state, "Ethernet", rate_gbps, {}}};
  return nic;
}

// Two NICs of the GPUs' network, one that is down, and a slow one.
Topology RoceNode() {
  Topology topology;
  topology.nics = {MakeNic("mlx5_0", 400), MakeNic("mlx5_1", 400), MakeNic("mlx5_2", 400, "DOWN"),
                   MakeNic("mlx5_bond", 50)};
  topology.interfaces = {"eth0", "lo"};
  return topology;
}

Environment Settings(const std::string& profile, const Topology& topology,
                     const Environment& environment = {}, const ProfileFacts& facts = {}) {
  return SettingsOf(ProfileVariables(profile, topology, facts, environment));
}

// The values of Oracle's and Google's published job scripts (interop tables of the sources that
// network_profile.cc names).
TEST(NetworkProfile, OciAndGcpSetTheTrafficClassAndTheNicsOfTheNode) {
  Environment oci = Settings("oci", RoceNode());
  EXPECT_EQ(oci["NCCL_IB_TC"], "41");
  EXPECT_EQ(oci["NCCL_IB_GID_INDEX"], "3");
  EXPECT_EQ(oci["NCCL_IB_SL"], "0");
  EXPECT_EQ(oci["NCCL_IB_HCA"], "=mlx5_0:1,mlx5_1:1")
      << "not the slow one, nor the one that is down";
  EXPECT_EQ(oci["NCCL_SOCKET_IFNAME"], "=eth0");
  Environment gcp = Settings("gcp", RoceNode());
  EXPECT_EQ(gcp["NCCL_IB_TC"], "52");
  EXPECT_EQ(gcp["NCCL_IB_FIFO_TC"], "84");
  EXPECT_EQ(gcp["NCCL_CROSS_NIC"], "0");
  EXPECT_EQ(gcp.count("NCCL_SOCKET_IFNAME"), 0U);
}

TEST(NetworkProfile, EfaSetsNothingOfInfiniBand) {
  const Environment efa = Settings("aws-efa", RoceNode());
  EXPECT_EQ(efa.at("FI_PROVIDER"), "efa");
  for (const auto& [name, value] : efa) {
    EXPECT_FALSE(absl::StartsWith(name, "NCCL_IB_")) << name;
  }
  EXPECT_EQ(efa.count("RDMAV_FORK_SAFE"), 0U);
}

TEST(NetworkProfile, WhatTheUserHasSetStays) {
  const Environment environment = {{"NCCL_IB_TC", "106"}, {"NCCL_IB_SL", "0"}};
  const auto variables = ProfileVariables("oci", RoceNode(), {}, environment);
  const Environment settings = SettingsOf(variables);
  EXPECT_EQ(settings.count("NCCL_IB_TC"), 0U);
  EXPECT_EQ(settings.count("NCCL_IB_SL"), 0U);
  EXPECT_EQ(settings.at("NCCL_IB_TIMEOUT"), "22");
  EXPECT_THAT(
      DescribeVariables(variables),
      testing::AllOf(
          testing::Contains("NCCL_IB_TC=106 (kept: the environment sets it; the profile has 41)"),
          testing::Contains("NCCL_IB_SL=0 (kept: the environment sets it)")));
  EXPECT_EQ(VariablesJson(variables)[1]["kept"], "106");
}

// NCCL reads these files itself; a variable of the environment would override an administrator's.
TEST(NetworkProfile, WhatAFileOfNcclSetsStaysToo) {
  const SysfsFixture root;
  root.Write("etc/nccl.conf", "# Ours.\nNCCL_IB_TC=96\nNCCL_IB_TIMEOUT=23\nnonsense\n");
  root.Write("own.conf", "NCCL_IB_TC=106");
  const Environment environment = {{"NCCL_CONF_FILE", "/own.conf"}};
  const auto variables =
      ProfileVariables("oci", RoceNode(), ReadProfileFacts(environment, root.root()), environment);
  const Environment settings = SettingsOf(variables);
  EXPECT_EQ(settings.count("NCCL_IB_TC"), 0U);
  EXPECT_EQ(settings.count("NCCL_IB_TIMEOUT"), 0U);
  EXPECT_EQ(settings.at("NCCL_IB_GID_INDEX"), "3");
  EXPECT_THAT(DescribeVariables(variables),
              testing::AllOf(
                  testing::Contains(absl::StrCat("NCCL_IB_TC=106 (kept: ", root.root(),
                                                 "/own.conf sets it; the profile has 41)")),
                  testing::Contains(absl::StrCat("NCCL_IB_TIMEOUT=23 (kept: ", root.root(),
                                                 "/etc/nccl.conf sets it; the profile has 22)"))));
}

TEST(NetworkProfile, EveryVariableHasItsReason) {
  for (const std::string& profile : NetworkProfiles()) {
    for (const ProfileVariable& variable : ProfileVariables(profile, RoceNode(), {}, {})) {
      EXPECT_GT(variable.reason.size(), 20U) << profile << " " << variable.name;
    }
  }
}

// DSCP 26 with ECN: the administrator has set it, so the profile need not know it.
TEST(NetworkProfile, RoceGenericTakesTheClassOfTheAdministratorOrNone) {
  Topology topology = RoceNode();
  EXPECT_EQ(Settings("roce-generic", topology).count("NCCL_IB_TC"), 0U);
  for (Nic& nic : topology.nics) {
    nic.traffic_class = 106;
  }
  Environment settings = Settings("roce-generic", topology);
  EXPECT_EQ(settings["NCCL_IB_TC"], "106");
  EXPECT_EQ(settings["NCCL_IB_SL"], "0");
  EXPECT_EQ(settings.count("NCCL_IB_GID_INDEX"), 0U) << "NCCL finds it";
  topology.nics[1].traffic_class = 41;
  settings = Settings("roce-generic", topology);
  EXPECT_EQ(settings.count("NCCL_IB_TC"), 0U);
  const auto lines = DescribeVariables(ProfileVariables("roce-generic", topology, {}, {}));
  EXPECT_THAT(lines, testing::Contains(HasSubstr("different traffic classes")));
}

TEST(NetworkProfile, WhatTheNodeDoesNotShowIsLeftUnset) {
  const auto variables = ProfileVariables("oci", Topology(), {}, {});
  const Environment settings = SettingsOf(variables);
  EXPECT_EQ(settings.count("NCCL_IB_HCA"), 0U);
  EXPECT_EQ(settings.count("NCCL_SOCKET_IFNAME"), 0U);
  EXPECT_THAT(DescribeVariables(variables),
              testing::Contains("NCCL_IB_HCA is left unset (this node shows no active RDMA NIC)"));
}

// Azure's images have files for several machines; the one of this node's GPUs is taken.
TEST(NetworkProfile, AzureTakesTheTopologyFileThatNamesTheNodesGpus) {
  const SysfsFixture root;
  const auto file = [](const char* a, const char* b) {
    return absl::StrCat("<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"", a,
                        "\" class=\"0x030200\"/><pci busid=\"", b,
                        "\" class=\"0x030200\"/></cpu></system>");
  };
  root.Write("opt/microsoft/ndv4-topo.xml", file("0003:00:00.0", "0004:00:00.0"));
  root.Write("opt/microsoft/ndv5-topo.xml", file("0001:00:00.0", "0002:00:00.0"));
  root.Write("opt/microsoft/broken-topo.xml", "<system");
  root.Write("opt/microsoft/readme.txt", "x");
  const ProfileFacts facts = ReadProfileFacts({}, root.root());
  ASSERT_EQ(facts.topology_files.size(), 2U);
  Topology topology;
  topology.gpus.resize(2);
  topology.gpus[0].pci = "0002:00:00.0";
  topology.gpus[1].pci = "0001:00:00.0";
  EXPECT_EQ(Settings("azure", topology, {}, facts).at("NCCL_TOPO_FILE"),
            root.root() + "/opt/microsoft/ndv5-topo.xml");
  topology.gpus.pop_back();
  EXPECT_EQ(Settings("azure", topology, {}, facts).count("NCCL_TOPO_FILE"), 0U);
}

TEST(NetworkProfile, AnUnknownNameIsRefusedWithTheNearest) {
  for (const std::string& name : NetworkProfiles()) {
    EXPECT_TRUE(CheckNetworkProfile(name).ok());
  }
  const std::string message(CheckNetworkProfile("azur").message());
  EXPECT_THAT(message, HasSubstr("allowed: oci, gcp, aws-efa, azure, roce-generic"));
  EXPECT_THAT(message, HasSubstr("did you mean azure?"));
}

}  // namespace
}  // namespace dtrain::launcher::network_profile_test
