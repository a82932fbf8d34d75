// Fuzz target: NCCL's topology and configuration files, Slurm's topology.conf, and the kernel's
// lists and masks of CPUs. What is read can be shown, planned for and written again.
#include "base/check.h"
#include "launcher/topology/bind_ranks.h"
#include "launcher/topology/format.h"
#include "launcher/topology/nccl_topology.h"
#include "launcher/topology/network_profile.h"
#include "launcher/topology/switch_tree.h"
#include "launcher/topology/sysfs.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using dtrain::launcher::NcclElement;

void CheckNccl(const std::string& text) {
  const auto element = dtrain::launcher::ParseNcclXml(text, "file");
  if (!element.ok()) {
    return;
  }
  const std::string written = dtrain::launcher::FormatNcclXml(*element);
  const auto again = dtrain::launcher::ParseNcclXml(written, "file");
  DT_CHECK(again.ok()) << again.status();
  DT_CHECK(dtrain::launcher::FormatNcclXml(*again) == written) << written;
  const auto topology = dtrain::launcher::FromNccl(*element, "file");
  if (!topology.ok()) {
    return;
  }
  DT_CHECK(!dtrain::launcher::FormatTopology(*topology).empty());
  DT_CHECK(dtrain::launcher::TopologyJson(*topology)["gpus"].size() == topology->gpus.size());
  const NcclElement own = dtrain::launcher::ToNccl(*topology);
  const auto read = dtrain::launcher::FromNccl(own, "own");
  DT_CHECK(read.ok()) << read.status();
  if (!topology->cores.empty()) {
    DT_CHECK(dtrain::launcher::BindRanks(*topology, 3).ok());
  }
}

void CheckSwitches(const std::string& text) {
  const auto tree = dtrain::launcher::SwitchTree::Parse(text, "file");
  if (!tree.ok()) {
    return;
  }
  std::vector<std::string> nodes = {"stranger"};
  for (const dtrain::launcher::Switch& each : tree->Walk()) {
    DT_CHECK((each.depth == 0) == each.parent.empty()) << each.name;
    nodes.insert(nodes.end(), each.nodes.begin(), each.nodes.end());
  }
  if (nodes.size() < 1000) {
    DT_CHECK_EQ(tree->Order(nodes).size(), nodes.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  CheckNccl(text);
  CheckSwitches(text);
  for (const auto& [name, value] : dtrain::launcher::ParseNcclConf(text)) {
    DT_CHECK(!name.empty() && name.find('=') == std::string::npos) << name;
  }
  if (const auto cpus = dtrain::launcher::ParseCpuList(text); cpus.ok()) {
    for (const int cpu : *cpus) {
      DT_CHECK(cpu >= 0 && cpu <= 65535) << cpu;
    }
  }
  if (const auto cpus = dtrain::launcher::ParseCpuMask(text); cpus.ok() && !cpus->empty()) {
    const std::string mask = dtrain::launcher::FormatCpuMask(*cpus, cpus->back());
    DT_CHECK(dtrain::launcher::ParseCpuMask(mask).value() == *cpus) << mask;
  }
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  return {
      "<system version=\"1\">\n  <cpu numaid=\"0\" affinity=\"0000000f\" arch=\"x86_64\">\n"
      "    <pci busid=\"0000:01:00.0\" class=\"0x060400\" link_speed=\"16.0 GT/s PCIe\">\n"
      "      <pci busid=\"0000:02:00.0\" class=\"0x030200\" vendor=\"0x10de\">\n"
      "        <gpu dev=\"0\" sm=\"90\" gdr=\"1\">\n"
      "          <nvlink target=\"0000:04:00.0\" count=\"18\" tclass=\"0x068000\"/>\n"
      "        </gpu>\n      </pci>\n"
      "      <pci busid=\"0000:03:00.0\" class=\"0x020700\"><nic>\n"
      "        <net name=\"mlx5_0\" port=\"1\" speed=\"400000\" guid=\"0x1\"/></nic></pci>\n"
      "    </pci>\n  </cpu>\n</system>\n",
      "<?xml version=\"1.0\"?><!-- x --><system version=\"1\"/>",
      "SwitchName=s1 Nodes=n[1-4]\nSwitchName=s2 Nodes=n5\nSwitchName=top Switches=s[1-2]\n",
      "BlockName=b1 Nodes=a,b\n",
      "# NCCL\nNCCL_IB_TC=41\n",
      "0-3,8,64-127",
      "00000001,ffffffff"};
}
