#include "launcher/nodes/meeting_point.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/net/socket.h"
#include "launcher/hosts/hostfile.h"

namespace dtrain::launcher {
namespace {

// A number that is no port is nothing, and so is one with a sign or blanks.
std::optional<int> PortIn(absl::string_view text) {
  constexpr size_t kDigitsMax = 5;
  int port = 0;
  const bool is_port = !text.empty() && text.size() <= kDigitsMax &&
                       std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
                       absl::SimpleAtoi(text, &port) && port <= 65535;
  return is_port ? std::optional<int>(port) : std::nullopt;
}

// An IPv6 address stands in brackets in front of a port.
absl::string_view WithoutBrackets(absl::string_view host) {
  const bool is_bracketed = host.size() > 1 && host.front() == '[' && host.back() == ']';
  return is_bracketed ? host.substr(1, host.size() - 2) : host;
}

// Whether others can find the host by this name or address. A link-local address names the
// interface behind a %.
bool NamesOneHost(absl::string_view host) {
  const size_t scope = host.find('%');
  const bool is_plain =
      scope == absl::string_view::npos || CheckHostName(host.substr(scope + 1)).ok();
  return is_plain && CheckHostName(host.substr(0, scope)).ok() && !comm::IsWildcard(host);
}

absl::Status RefuseEndpoint(const MeetingFlags& flags, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s is \"%s\"%s; allowed: HOST:PORT or [IPV6]:PORT, the address of node 0 and a free port "
      "there from 1 to 65535, for example n0:29500",
      flags.endpoint_from, absl::CHexEscape(flags.endpoint), why));
}

absl::Status CheckEndpoint(const MeetingFlags& flags) {
  const absl::string_view text = flags.endpoint;
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) {
    return RefuseEndpoint(flags, ", which has no port");
  }
  const absl::string_view host = WithoutBrackets(text.substr(0, colon));
  const std::optional<int> port = PortIn(text.substr(colon + 1));
  const bool is_bracketed = host.size() < colon;
  if (!is_bracketed && absl::StrContains(host, ':') && NamesOneHost(host)) {
    return RefuseEndpoint(flags, absl::StrFormat("; write this IPv6 address as [%s]:PORT", host));
  }
  if (!host.empty() && comm::IsWildcard(host)) {
    return RefuseEndpoint(flags,
                          ", where node 0 would listen on every interface: give the address of the "
                          "trusted network");
  }
  if (!NamesOneHost(host) || is_bracketed != absl::StrContains(host, ':')) {
    return RefuseEndpoint(flags, "");
  }
  if (port == 0) {
    return RefuseEndpoint(
        flags, ": only node 0 would know which port it got, and the others could not find it");
  }
  return port.has_value() ? absl::OkStatus() : RefuseEndpoint(flags, "");
}

// One node uses none of it, but a port that does not exist is a slip of the pen.
absl::Status CheckForOneNode(const MeetingFlags& flags) {
  const absl::string_view port =
      absl::string_view(flags.endpoint).substr(flags.endpoint.rfind(':') + 1);
  const bool is_number =
      !port.empty() && std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  return is_number && port.size() < flags.endpoint.size() && !PortIn(port).has_value()
             ? RefuseEndpoint(flags, "")
             : absl::OkStatus();
}

// `is_used`: others have to find node 0 there.
absl::Status CheckMasterPort(const MeetingFlags& flags, bool is_used) {
  const std::optional<int> port = PortIn(flags.master_port);
  const int low = is_used ? 1 : 0;
  const bool is_missing = flags.master_port.empty() && !is_used;
  return is_missing || (port.has_value() && *port >= low)
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrFormat("--master-port is \"%s\"; allowed: a number from %d to 65535%s",
                                   absl::CHexEscape(flags.master_port), low,
                                   !is_used ? "" : ", the same on all nodes and free on node 0"));
}

}  // namespace

absl::StatusOr<std::string> MasterHost(const std::string& address) {
  const absl::string_view host = WithoutBrackets(address);
  if (NamesOneHost(host)) {
    return std::string(host);
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "--master-addr is \"%s\"; allowed: the name or the address of node 0, without "
      "a port, which --master-port gives",
      absl::CHexEscape(address)));
}

absl::StatusOr<std::string> MeetingPoint(const MeetingFlags& flags) {
  const bool is_alone = flags.nodes == 1;
  if (!flags.endpoint.empty()) {
    DT_RETURN_IF_ERROR(is_alone ? CheckForOneNode(flags) : CheckEndpoint(flags));
    return flags.endpoint;
  }
  DT_RETURN_IF_ERROR(CheckMasterPort(flags, !is_alone && !flags.master_addr.empty()));
  if (is_alone) {
    return "";
  }
  if (flags.master_addr.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--nnodes %s needs --rdzv-endpoint HOST:PORT: node 0's address and a free port there",
        flags.nnodes));
  }
  DT_ASSIGN_OR_RETURN(const std::string host, MasterHost(flags.master_addr));
  return comm::Endpoint{host, *PortIn(flags.master_port)}.ToString();
}

}  // namespace dtrain::launcher
