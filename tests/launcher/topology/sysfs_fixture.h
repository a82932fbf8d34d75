// A sysfs tree in a temporary folder: two PCI roots, RoCE and InfiniBand NICs and GPUs.
#pragma once

#include <string>

namespace dtrain::launcher {

class SysfsFixture {
 public:
  SysfsFixture();
  SysfsFixture(const SysfsFixture&) = delete;
  SysfsFixture& operator=(const SysfsFixture&) = delete;
  ~SysfsFixture();  // Removes the folder.

  const std::string& root() const { return root_; }
  void Write(const std::string& path, const std::string& text) const;
  void Link(const std::string& path, const std::string& target) const;
  // A PCI device at `path` below devices/, e.g. "pci0000:00/0000:00:01.0/0000:1b:00.0".
  void AddPci(const std::string& path, int numa) const;
  // A NIC on the PCI device at `pci_path`, with one port.
  void AddNic(const std::string& name, const std::string& pci_path, const std::string& state,
              const std::string& rate, const std::string& link_layer) const;

 private:
  std::string root_;
};

}  // namespace dtrain::launcher
