// Slurm's topology.conf, and the order of hosts by it.
#include "launcher/topology/switch_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "launcher/topology/format.h"
#include "tests/launcher/topology/topology_files.h"

namespace dtrain::launcher::switch_tree_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SwitchTree Parsed(const std::string& text) {
  auto tree = SwitchTree::Parse(text, "t.conf");
  EXPECT_TRUE(tree.ok()) << tree.status();
  return tree.ok() ? *std::move(tree) : SwitchTree();
}

std::string WhyBad(const std::string& text) {
  const auto tree = SwitchTree::Parse(text, "t.conf");
  EXPECT_FALSE(tree.ok()) << text;
  EXPECT_TRUE(absl::IsInvalidArgument(tree.status()));
  return std::string(tree.status().message());
}

std::vector<std::string> Ordered(const SwitchTree& tree, const std::vector<std::string>& nodes) {
  std::vector<std::string> ordered;
  for (const size_t at : tree.Order(nodes)) {
    ordered.push_back(nodes[at]);
  }
  return ordered;
}

constexpr char kTwoLevels[] =
    "# Two leaves below a spine.\n"
    "SwitchName=leaf1 Nodes=n[1-2],n5 LinkSpeed=100\n"
    "switchname=leaf2 nodes=n[3-4]\n\n"
    "SwitchName=spine Switches=leaf[1-2]  # Both.\n";

TEST(SwitchTree, ReadsSlurmsFile) {
  const SwitchTree tree = Parsed(kTwoLevels);
  EXPECT_EQ(tree.AddressOf("n5"), "spine.leaf1") << "as Slurm's SLURM_TOPOLOGY_ADDR";
  EXPECT_EQ(tree.AddressOf("n9"), "");
  std::vector<std::string> names;
  for (const Switch& each : tree.Walk()) {
    names.push_back(absl::StrCat(each.depth, each.name));
  }
  EXPECT_THAT(names, ElementsAre("0spine", "1leaf1", "1leaf2"));
  EXPECT_EQ(FormatSwitches(tree, "n3"),
            "  spine\n    leaf1: n1 n2 n5\n    leaf2: n3 n4\n  this node: spine.leaf2.n3\n");
  EXPECT_THAT(FormatSwitches(tree, "x"), HasSubstr("x is not in the file"));
  EXPECT_EQ(SwitchesJson(tree, "n3")["this_node"], "spine.leaf2");
  EXPECT_EQ(SwitchesJson(tree, "x")["this_node"], "unknown");
}

TEST(SwitchTree, ReadsBlocks) {
  const SwitchTree tree =
      Parsed("BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n");
  EXPECT_THAT(Ordered(tree, {"n1", "n3", "n2", "n4"}), ElementsAre("n1", "n2", "n3", "n4"));
}

// The values that Slurm's pages describe: names from the top level switch down to the leaf switch,
// and then the node.
TEST(NodeAddress, ReadsSlurmsVariables) {
  const auto address = ParseNodeAddress("s0.s4.s8.tux3", "switch.switch.switch.node");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_THAT(address->switches, ElementsAre("s0", "s4", "s8"));
  EXPECT_EQ(address->node, "tux3");
  EXPECT_THAT(ParseNodeAddress("b1.n7", "block.node")->switches, ElementsAre("b1"));
  EXPECT_THAT(ParseNodeAddress("spine[1-2].leaf1.n5", "switch.switch.node")->switches,
              ElementsAre("spine[1-2]", "leaf1"))
      << "a leaf of two spines";
  EXPECT_EQ(ParseNodeAddress("leaf.n1.example.com", "switch.node")->node, "n1.example.com");
  EXPECT_THAT(ParseNodeAddress("spine.leaf.n1", "")->switches, ElementsAre("spine", "leaf"));
}

TEST(NodeAddress, WhatIsNoneIsRefused) {
  for (const auto& [address, pattern] :
       std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                        {"s0..n1", "switch.switch.node"},
                                                        {"s0.n1", "switch.switch.node"},
                                                        {"s0.n1", "node.switch"},
                                                        {"s0.n1", "planet.node"},
                                                        {"s0.n1;reboot", "switch.node"},
                                                        {"s0.n 1", "switch.node"}}) {
    const auto parsed = ParseNodeAddress(address, pattern);
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << address << " " << pattern;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("such as spine.leaf1.n5"));
  }
}

TEST(NodeAddress, OutsideOfSlurmAndWithoutSwitchesThereIsNone) {
  EXPECT_FALSE(AddressIn({})->has_value());
  EXPECT_FALSE(AddressIn({{"SLURM_TOPOLOGY_ADDR", "n1"}, {"SLURM_TOPOLOGY_ADDR_PATTERN", "node"}})
                   ->has_value())
      << "topology/default";
  EXPECT_EQ((*AddressIn({{"SLURM_TOPOLOGY_ADDR", "s0.n1"},
                         {"SLURM_TOPOLOGY_ADDR_PATTERN", "switch.node"}}))
                ->node,
            "n1");
}

TEST(SwitchTree, IsMadeOfTheAddressesOfAllNodes) {
  const SwitchTree tree = Parsed(
      "# srun --ntasks-per-node=1 printenv SLURM_TOPOLOGY_ADDR\n"
      "spine.leaf1.n1\nspine.leaf2.n2\n\nspine.leaf1.n3\n");
  EXPECT_EQ(tree.AddressOf("n3"), "spine.leaf1");
  EXPECT_THAT(Ordered(tree, {"n1", "n2", "n3"}), ElementsAre("n1", "n3", "n2"));
  EXPECT_EQ(Parsed("spine.leaf1.127.0.0.1 switch.switch.node\n").AddressOf("127.0.0.1"),
            "spine.leaf1")
      << "as Slurm 22.05 says it of a node whose name has dots";
  EXPECT_THAT(WhyBad("spine.leaf1.n1\nspine.leaf1.n1\n"), HasSubstr("t.conf:2: node n1 is there"));
  EXPECT_THAT(WhyBad("a.leaf.n1\nb.leaf.n2\n"), HasSubstr("switch leaf is below two others, a"));
  EXPECT_THAT(WhyBad("a.b.n1\nb.a.n2\n"), HasSubstr("circle"));
  EXPECT_THAT(WhyBad("spine.leaf1.n1\nn2\n"), HasSubstr("t.conf:2: node n2 has no switch"));
  EXPECT_THAT(WhyBad("spine..n1\n"), HasSubstr("t.conf:1: the topology address \"spine..n1\""));
}

TEST(SwitchTree, NodesOfASwitchBecomeNeighboursAndAnOrderedListStays) {
  const SwitchTree tree = Parsed(kTwoLevels);
  EXPECT_THAT(Ordered(tree, {"n1", "n3", "n2", "n4", "n5"}),
              ElementsAre("n1", "n2", "n5", "n3", "n4"));
  EXPECT_THAT(Ordered(tree, {"n4", "n1", "n3"}), ElementsAre("n4", "n3", "n1"))
      << "node 0 stays, and its switch comes first";
  EXPECT_THAT(Ordered(tree, {"x", "n1", "y", "n2"}), ElementsAre("n1", "n2", "x", "y"))
      << "what the file does not name comes last";
}

TEST(SwitchTree, BadFilesAreRefusedWithTheLine) {
  EXPECT_THAT(WhyBad("# Nothing.\n"), HasSubstr("t.conf names no switch"));
  EXPECT_THAT(WhyBad("SwitchName=a Nodes=n[1-\n"), HasSubstr("t.conf:1: host list"));
  EXPECT_THAT(WhyBad("\nSwitchName=a n1\n"), HasSubstr("t.conf:2: \"n1\""));
  EXPECT_THAT(WhyBad("Nodes=n1\n"), HasSubstr("needs SwitchName"));
  EXPECT_THAT(WhyBad("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n"),
              HasSubstr("t.conf:2: switch a is listed twice"));
  EXPECT_THAT(WhyBad("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n"),
              HasSubstr("t.conf:2: node n1 is at two switches"));
  EXPECT_THAT(WhyBad("SwitchName=a Switches=b\n"), HasSubstr("unknown switch b"));
  EXPECT_THAT(WhyBad("SwitchName=a Switches=c\nSwitchName=b Switches=c\nSwitchName=c Nodes=n\n"),
              HasSubstr("below two others, a and b"));
  EXPECT_THAT(WhyBad("SwitchName=a Switches=b\nSwitchName=b Switches=a\n"), HasSubstr("circle"));
  EXPECT_THAT(WhyBad("SwitchName=a Switches=a\n"), HasSubstr("circle"));
}

// The model of a cluster in topograph's YAML, as the lines of a topology.conf.
std::string ConfOf(const std::string& yaml) {
  std::map<std::string, std::vector<std::string>> below;
  std::map<std::string, std::vector<std::string>> nodes;
  std::string part;
  std::string name;
  std::string list;
  for (const absl::string_view line : absl::StrSplit(yaml, '\n')) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (line == "switches:" || line == "blocks:") {
      part = std::string(line);
    } else if (part == "switches:" && absl::StartsWith(line, "  ") && line.size() > 2 &&
               line[2] != ' ' && absl::EndsWith(text, ":")) {
      name = std::string(text.substr(0, text.size() - 1));
      below[name];
    } else if (absl::StartsWith(text, "- switch: ")) {
      name = std::string(text.substr(10));
      below[name];
      list = "";
    } else if (absl::StartsWith(text, "nodes: [")) {
      for (absl::string_view word : absl::StrSplit(text.substr(8, text.size() - 9), ", ")) {
        nodes[name].emplace_back(word.substr(1, word.size() - 2));
      }
    } else if (absl::EndsWith(text, ":")) {
      list = std::string(text);
    } else if (absl::StartsWith(text, "- ")) {
      (part == "blocks:" ? nodes : below)[name].emplace_back(text.substr(2));
    }
  }
  const auto named = below;
  for (const auto& [each, children] : named) {
    for (const std::string& child : children) {
      below[child];  // A switch without hosts stands nowhere else.
    }
  }
  std::string conf;
  for (const auto& [each, children] : below) {
    absl::StrAppend(&conf, "SwitchName=", each,
                    children.empty() ? "" : " Switches=" + absl::StrJoin(children, ","),
                    nodes[each].empty() ? "" : " Nodes=" + absl::StrJoin(nodes[each], ","), "\n");
  }
  return conf;
}

// On models of real clusters: however the hosts are mixed, those of a leaf stand together in the
// end.
TEST(SwitchTree, OnModelsOfClustersEveryLeafIsOneRunOfHosts) {
  if (CorpusFolder().empty()) {
    GTEST_SKIP() << kNoCorpus;
  }
  for (const char* const name :
       {"small-tree", "nvl72", "medium", "dual-xclr-regular", "dual-xclr-irregular"}) {
    const auto yaml = ReadFile(absl::StrCat(CorpusFolder(), "/topograph/", name, ".yaml"));
    ASSERT_TRUE(yaml.ok()) << yaml.status();
    const SwitchTree tree = Parsed(ConfOf(*yaml));
    std::vector<std::string> hosts;
    for (const Switch& each : tree.Walk()) {
      hosts.insert(hosts.end(), each.nodes.begin(), each.nodes.end());
    }
    ASSERT_GT(hosts.size(), 5U) << name;
    std::shuffle(hosts.begin(), hosts.end(), std::mt19937(7));
    const std::vector<std::string> ordered = Ordered(tree, hosts);
    EXPECT_EQ(ordered.front(), hosts.front());
    EXPECT_EQ(std::set<std::string>(ordered.begin(), ordered.end()).size(), hosts.size());
    std::set<std::string> seen;
    std::string before;
    for (const std::string& host : ordered) {
      const std::string leaf = tree.AddressOf(host);
      if (leaf != before) {
        EXPECT_TRUE(seen.insert(leaf).second) << name << ": " << leaf << " comes twice";
        before = leaf;
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::launcher::switch_tree_test
