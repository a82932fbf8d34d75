// NCCL's topology files: read, written again, and refused where they are wrong.
#include "launcher/topology/nccl_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "launcher/topology/format.h"
#include "tests/launcher/topology/sysfs_fixture.h"
#include "tests/launcher/topology/topology_files.h"

namespace dtrain::launcher::nccl_topology_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Each element by its path of names and addresses, with the attributes that dtrain has a field for.
void Flatten(const NcclElement& element, const std::string& above,
             std::map<std::string, std::map<std::string, std::string>>* found) {
  std::string path = absl::StrCat(above, "/", element.name);
  for (const char* const key : {"busid", "numaid", "dev", "target", "name"}) {
    if (element.name != "net" || std::string(key) == "name") {
      absl::StrAppend(&path, " ", element.Value(key));
    }
  }
  std::map<std::string, std::string>& attributes = (*found)[path];
  for (const auto& [name, value] : element.attributes) {
    const bool of_a_run = name == "rank" || name == "host_hash" ||
                          (element.name == "net" && (name == "dev" || name == "latency" ||
                                                     name == "maxconn" || name == "gdr"));
    if (!of_a_run && !value.empty()) {
      // A file may have words for more CPUs than there are.
      const auto cpus = ParseCpuMask(value);
      attributes[name] = name == "affinity" && cpus.ok() ? FormatCpuMask(*cpus, 1023) : value;
    }
  }
  for (const NcclElement& child : element.children) {
    Flatten(child, path, found);
  }
}

std::map<std::string, std::map<std::string, std::string>> Flat(const NcclElement& element) {
  std::map<std::string, std::map<std::string, std::string>> found;
  Flatten(element, "", &found);
  return found;
}

NcclElement Parsed(const std::string& text) {
  const auto element = ParseNcclXml(text, "t.xml");
  EXPECT_TRUE(element.ok()) << element.status();
  return element.ok() ? *element : NcclElement();
}

std::string WhyBad(const std::string& text) {
  const auto element = ParseNcclXml(text, "t.xml");
  if (!element.ok()) {
    return std::string(element.status().message());
  }
  const auto topology = FromNccl(*element, "t.xml");
  EXPECT_FALSE(topology.ok()) << text;
  EXPECT_TRUE(absl::IsInvalidArgument(topology.status()));
  return std::string(topology.status().message());
}

TEST(NcclXml, RealFilesComeOutAsTheyWentIn) {
  std::vector<std::string> files = {FixturePath("dgxa100-nccl.xml")};
  if (const std::string corpus = CorpusFolder(); !corpus.empty()) {
    for (const char* const name :
         {"ncv4-graph.xml", "ncv4-topo.xml", "ndv2-topo.xml", "ndv4-topo.xml", "ndv5-topo.xml"}) {
      files.push_back(absl::StrCat(corpus, "/azure/", name));
    }
  }
  for (const std::string& file : files) {
    const auto text = ReadFile(file);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(FormatNcclXml(Parsed(*text)), *text) << file;
  }
}

// Through dtrain's own picture of the node nothing of the hardware is lost.
TEST(NcclTopology, RealNodesAreWrittenAsNcclDescribesThem) {
  std::vector<std::string> files = {FixturePath("dgxa100-nccl.xml")};
  if (const std::string corpus = CorpusFolder(); !corpus.empty()) {
    for (const char* const name : {"ndv2-topo.xml", "ndv4-topo.xml", "ndv5-topo.xml"}) {
      files.push_back(absl::StrCat(corpus, "/azure/", name));
    }
  }
  for (const std::string& file : files) {
    const auto element = ReadNcclFile(file);
    ASSERT_TRUE(element.ok()) << element.status();
    EXPECT_EQ(Flat(ToNccl(ReadNcclNode(file))), Flat(*element)) << file;
  }
}

TEST(NcclTopology, ANodeOfAzureIsReadWhole) {
  if (CorpusFolder().empty()) {
    GTEST_SKIP() << kNoCorpus;
  }
  const Topology topology = ReadNcclNode(CorpusFolder() + "/azure/ncv4-topo.xml");
  ASSERT_THAT(topology.gpus, SizeIs(4));
  EXPECT_EQ(topology.gpus[3].pci, "0004:00:00.0");
  EXPECT_EQ(topology.gpus[3].numa, 3);
  EXPECT_EQ(topology.gpus[3].compute_capability, 80);
  EXPECT_THAT(topology.numa_nodes, SizeIs(4));
  EXPECT_EQ(topology.numa_nodes[1].cpus.front(), 24);
  EXPECT_EQ(topology.numa_nodes[1].cpus.back(), 47);
  EXPECT_THAT(topology.nics, IsEmpty()) << "eth0 is no RDMA NIC";
  EXPECT_THAT(topology.interfaces, ElementsAre("eth0"));
  EXPECT_THAT(topology.gpus[0].nvlinks, IsEmpty()) << "a GPU has no link to itself";
  EXPECT_THAT(topology.notes, Contains(HasSubstr("12 NVLinks from it to itself")));
}

TEST(NcclTopology, WhatTheFileDoesNotHoldIsUnknown) {
  const Topology topology = ReadNcclNode(FixturePath("dgxa100-nccl.xml"));
  const Json json = TopologyJson(topology);
  EXPECT_EQ(json["host"], "unknown");
  EXPECT_EQ(json["memory_bytes"], "unknown");
  EXPECT_EQ(json["caches"], "unknown");
  EXPECT_EQ(json["cpu_quota"], "unknown");
  EXPECT_EQ(json["driver_version"], "unknown");
  EXPECT_EQ(json["gpus"][0]["name"], "unknown");
  EXPECT_EQ(json["gpus"][0]["health"]["ecc_uncorrected"], "unknown");
  EXPECT_EQ(json["nics"][0]["ports"][0]["state"], "unknown");
  EXPECT_EQ(json["nics"][0]["ports"][0]["errors"], "unknown");
  EXPECT_EQ(json["nics"][0]["ports"][0]["rate_gbps"], 200.0);
  EXPECT_EQ(json["cores"][0]["package"], "unknown");
  EXPECT_THAT(
      FormatTopology(topology),
      AllOf(HasSubstr("host unknown"), HasSubstr("memory unknown"), HasSubstr("caches: unknown")));
}

TEST(NcclTopology, TheFileOfASysfsNestsSwitchesAsNcclDoes) {
  const SysfsFixture sysfs;
  const std::string at = "pci0000:00/0000:00:01.0/0000:10:00.0/";
  for (const auto& [path, kind] :
       {std::pair{at + "0000:11:00.0/0000:12:00.0", "0x030200"},
        std::pair{at + "0000:11:01.0/0000:13:00.0", "0x020700"},
        std::pair{std::string("pci0000:00/0000:00:02.0/0000:20:00.0"), "0x030200"}}) {
    sysfs.AddPci(path, 0);
    sysfs.Write("devices/" + path + "/class", kind);
    sysfs.Write("devices/" + path + "/vendor", "0x10de");
  }
  sysfs.Write("devices/system/node/node0/cpulist", "0-3");
  sysfs.AddNic("mlx5_0", at + "0000:11:01.0/0000:13:00.0", "4: ACTIVE", "400 Gb/sec (4X NDR)",
               "InfiniBand");
  sysfs.Write("class/infiniband/mlx5_0/node_guid", "5c25:7303:0001:0203");
  const auto topology = ReadSysfsRoot(sysfs.root());
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(FormatNcclXml(ToNccl(*topology)),
            "<system version=\"1\">\n"
            "  <cpu numaid=\"0\" affinity=\"0000000f\">\n"
            "    <pci busid=\"0000:10:00.0\">\n"
            "      <pci busid=\"0000:12:00.0\" class=\"0x030200\" vendor=\"0x10de\"/>\n"
            "      <pci busid=\"0000:13:00.0\" class=\"0x020700\" vendor=\"0x10de\">\n"
            "        <nic>\n"
            "          <net name=\"mlx5_0\" speed=\"400000\" port=\"1\" "
            "guid=\"0x5c25730300010203\"/>\n"
            "        </nic>\n"
            "      </pci>\n"
            "    </pci>\n"
            "    <pci busid=\"0000:20:00.0\" class=\"0x030200\" vendor=\"0x10de\"/>\n"
            "  </cpu>\n"
            "</system>\n");
}

TEST(NcclXml, BadFilesAreRefusedWithTheLine) {
  EXPECT_THAT(WhyBad(""), HasSubstr("t.xml holds no element"));
  EXPECT_THAT(WhyBad("<system version=\"1\">\n<cpu>\n</system>"), HasSubstr("t.xml:3: </system>"));
  EXPECT_THAT(WhyBad("<system>\ntext</system>"), HasSubstr("t.xml:2: expected an element"));
  EXPECT_THAT(WhyBad("<a b=\"1\" b=\"2\"/>"), HasSubstr("attribute b twice"));
  EXPECT_THAT(WhyBad("<a b='1'/>"), HasSubstr("NAME=\"VALUE\""));
  EXPECT_THAT(WhyBad("<a b=\"" + std::string(300, 'x') + "\"/>"), HasSubstr("255 bytes"));
  EXPECT_THAT(WhyBad("<a/><b/>"), HasSubstr("follows the root"));
  EXPECT_THAT(WhyBad("<a"), HasSubstr("t.xml:1: <a>"));
  EXPECT_THAT(WhyBad("<!-- "), HasSubstr("no --> ends"));
  std::string deep;
  for (int i = 0; i < 70; ++i) {
    deep += "<a>";
  }
  EXPECT_THAT(WhyBad(deep), HasSubstr("deeper than 64"));
  EXPECT_TRUE(ParseNcclXml("<?xml version=\"1.0\"?>\n<!-- c -->\n<a/>\n", "t").ok());
}

TEST(NcclTopology, WrongContentIsRefusedByName) {
  const auto in_cpu = [](const std::string& text) {
    return absl::StrCat("<system version=\"1\"><cpu numaid=\"0\">", text, "</cpu></system>");
  };
  EXPECT_THAT(WhyBad("<graphs version=\"1\"/>"),
              AllOf(HasSubstr("root is <graphs>"), HasSubstr("NCCL_TOPO_DUMP_FILE")));
  EXPECT_THAT(WhyBad("<system version=\"9\"/>"), HasSubstr("version=\"9\""));
  EXPECT_THAT(WhyBad(in_cpu("<pci busid=\"here\"/>")), HasSubstr("busid=\"here\""));
  EXPECT_THAT(WhyBad(in_cpu("<pci busid=\"0000:01:00.0\"/><pci busid=\"0000:01:00.0\"/>")),
              HasSubstr("each address once"));
  EXPECT_THAT(WhyBad(in_cpu("<pci busid=\"0000:01:00.0\" class=\"red\"/>")),
              HasSubstr("class=\"red\""));
  EXPECT_THAT(WhyBad(in_cpu("<pci busid=\"0000:01:00.0\"><gpu dev=\"0\"><nvlink target=\"x\"/>"
                            "</gpu></pci>")),
              HasSubstr("<nvlink count=\"\">"));
  EXPECT_THAT(WhyBad("<system version=\"1\"><cpu numaid=\"0\" affinity=\"gg\"/></system>"),
              HasSubstr("affinity=\"gg\""));
  EXPECT_THAT(WhyBad("<system version=\"1\"><cpu numaid=\"0\"/><cpu numaid=\"0\"/></system>"),
              HasSubstr("each NUMA node once"));
  EXPECT_THAT(WhyBad("<system version=\"1\"><cpu numaid=\"0\" host_hash=\"0x1\"/>"
                     "<cpu numaid=\"1\" host_hash=\"0x2\"/></system>"),
              HasSubstr("2 hosts"));
}

TEST(CpuMask, IsReadAndWrittenInWords) {
  EXPECT_THAT(*ParseCpuMask("00000001,80000003"), ElementsAre(0, 1, 31, 32));
  EXPECT_EQ(FormatCpuMask({0, 1, 31, 32}, 70), "00000000,00000001,80000003");
  EXPECT_FALSE(ParseCpuMask("123456789").ok());
}

}  // namespace
}  // namespace dtrain::launcher::nccl_topology_test
