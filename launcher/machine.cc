#include "launcher/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <system_error>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "comm/net/socket.h"

namespace dtrain::launcher {
namespace {

int ReadNumber(const std::string& path) {
  int value = 0;
  const auto text = ReadFile(path, 64);
  return text.ok() && absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &value) ? value : 0;
}

}  // namespace

std::vector<int> UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return {};
  }
  std::vector<std::tuple<int, int, int>> order;  // Package, core, CPU.
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) {
      const std::string topology = absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/");
      order.emplace_back(ReadNumber(topology + "physical_package_id"),
                         ReadNumber(topology + "core_id"), cpu);
    }
  }
  std::sort(order.begin(), order.end());
  std::vector<int> cpus;
  for (const auto& entry : order) {
    cpus.push_back(std::get<2>(entry));
  }
  return cpus;
}

int GpuCount() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    absl::string_view rest = name;
    int number = 0;
    count += absl::ConsumePrefix(&rest, "nvidia") && absl::SimpleAtoi(rest, &number) ? 1 : 0;
  }
  return count;
}

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

int FreePort(const std::string& host) {
  const auto listener = comm::Listen({host, 0});
  return listener.ok() ? comm::LocalEndpoint(listener->get()).port : 0;
}

}  // namespace dtrain::launcher
