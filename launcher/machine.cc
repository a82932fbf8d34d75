#include "launcher/machine.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/system/cgroup.h"
#include "comm/net/socket.h"
#include "launcher/hosts/hostfile.h"

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

std::string DescribeOwnAddresses() {
  const auto addresses = comm::LocalAddresses();
  return addresses.ok() ? absl::StrJoin(*addresses, ", ",
                                        [](std::string* out, const comm::LocalAddress& address) {
                                          absl::StrAppendFormat(out, "%s (%s)", address.address,
                                                                address.interface);
                                        })
                        : std::string(addresses.status().message());
}

absl::Status CheckOwnAddress(absl::string_view flag, const std::string& address) {
  // The name service is not asked for what no host is called. A % stands before an interface.
  const bool is_name = CheckHostName(address.substr(0, address.find('%'))).ok();
  const absl::Status tried = is_name ? comm::Listen({address, 0}).status()
                                     : absl::InvalidArgumentError("no host has such a name");
  if (tried.ok() || absl::IsResourceExhausted(tried) || absl::IsDeadlineExceeded(tried) ||
      comm::NameServiceFailed(tried)) {
    return Annotate(tried, flag);
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s is \"%s\", where this host cannot be reached: %s; allowed: one of this host's addresses, "
      "which are %s",
      flag, absl::CHexEscape(address), tried.message(), DescribeOwnAddresses()));
}

}  // namespace dtrain::launcher
