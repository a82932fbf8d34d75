#include "launcher/machine.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/system/cgroup.h"
#include "comm/net/socket.h"

namespace dtrain::launcher {

int CpuCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CpusWithin(CpuQuota(), CPU_COUNT(&set)) : 0;
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
