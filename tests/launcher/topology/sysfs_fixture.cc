#include "tests/launcher/topology/sysfs_fixture.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace dtrain::launcher {

SysfsFixture::SysfsFixture() {
  std::string pattern = testing::TempDir() + "/sysfs.XXXXXX";
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  root_ = pattern;
}

SysfsFixture::~SysfsFixture() { std::filesystem::remove_all(root_); }

void SysfsFixture::Write(const std::string& path, const std::string& text) const {
  const std::filesystem::path file = root_ + "/" + path;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text << "\n";
}

void SysfsFixture::Link(const std::string& path, const std::string& target) const {
  const std::filesystem::path link = root_ + "/" + path;
  std::filesystem::create_directories(link.parent_path());
  std::filesystem::create_symlink(root_ + "/" + target, link);
}

void SysfsFixture::AddPci(const std::string& path, int numa) const {
  Write("devices/" + path + "/numa_node", std::to_string(numa));
  Link("bus/pci/devices/" + path.substr(path.rfind('/') + 1), "devices/" + path);
}

void SysfsFixture::AddNic(const std::string& name, const std::string& pci_path,
                          const std::string& state, const std::string& rate,
                          const std::string& link_layer) const {
  const std::string nic = "class/infiniband/" + name;
  Write(nic + "/fw_ver", "28.39.1002");
  Link(nic + "/device", "devices/" + pci_path);
  Write(nic + "/ports/1/state", state);
  Write(nic + "/ports/1/rate", rate);
  Write(nic + "/ports/1/link_layer", link_layer);
  std::filesystem::create_directories(root_ + "/" + nic + "/ports/1/gids");
}

}  // namespace dtrain::launcher
