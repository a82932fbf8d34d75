#include "launcher/hosts/hostfile.h"

#include <arpa/inet.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr int kSlotsMax = 65536;
constexpr size_t kAllSlotsMax = 1U << 20;
constexpr size_t kNameMax = 253;

bool IsIpAddress(const std::string& name) {
  in6_addr address{};
  return inet_pton(AF_INET, name.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, name.c_str(), &address) == 1;
}

bool IsNameLetter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
}

// Names of hosts that differ in the case of letters are one to the name service.
std::string FoldedName(absl::string_view name) { return absl::AsciiStrToLower(name); }

std::vector<int> SlotsUpTo(int count) {
  std::vector<int> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

// A number of slots, from 1.
absl::StatusOr<int> SlotCount(absl::string_view text) {
  int count = 0;
  if (text.empty() || !std::all_of(text.begin(), text.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(text, &count) || count < 1 || count > kSlotsMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the number of slots is \"%s\"; allowed: a number from 1 to %d",
                        absl::CHexEscape(text), kSlotsMax));
  }
  return count;
}

absl::StatusOr<Host> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r\v\f"), absl::SkipEmpty());
  const std::vector<absl::string_view> pair = absl::StrSplit(words.front(), ':');
  absl::string_view name = words.front();
  absl::string_view count;
  if (words.size() == 1 && pair.size() == 2) {
    name = pair[0];
    count = pair[1];
  } else {
    count = words.back();
    if (words.size() != 2 || !absl::ConsumePrefix(&count, "slots=")) {
      return absl::InvalidArgumentError(
          absl::StrFormat("cannot read \"%s\"; a line is: HOST slots=N", absl::CHexEscape(line)));
    }
  }
  DT_RETURN_IF_ERROR(CheckHostName(name));
  DT_ASSIGN_OR_RETURN(const int slots, SlotCount(count));
  return Host{std::string(name), SlotsUpTo(slots)};
}

// One part of --include or --exclude between two @.
struct Choice {
  std::string host;
  std::set<int> slots;  // Empty: all.
};

// Splits "NAME:SLOTS"; an IPv6 address with slots stands in brackets. `known`: by folded names.
absl::StatusOr<Choice> ParseChoice(absl::string_view flag, const std::string& text,
                                   const std::map<std::string, const Host*>& known) {
  Choice choice;
  const bool bracketed = text.size() > 1 && text.front() == '[';
  const size_t name_end = bracketed ? text.find(']') : text.find(':');
  if (known.count(FoldedName(text)) != 0 || name_end == std::string::npos) {
    choice.host = text;
    return choice;
  }
  choice.host = bracketed ? text.substr(1, name_end - 1) : text.substr(0, name_end);
  absl::string_view rest = absl::string_view(text).substr(name_end + (bracketed ? 1 : 0));
  if (bracketed && rest.empty()) {
    return choice;
  }
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrFormat("%s has \"%s\"; allowed: HOST or HOST:SLOT,SLOT..., separated by @", flag,
                      absl::CHexEscape(text)));
  if (!absl::ConsumePrefix(&rest, ":")) {
    return bad;
  }
  for (const absl::string_view part : absl::StrSplit(rest, ',')) {
    int slot = 0;
    if (!absl::SimpleAtoi(part, &slot) || slot < 0) {
      return bad;
    }
    choice.slots.insert(slot);
  }
  return choice;
}

// The slots that --include or --exclude names, by folded names of hosts.
absl::StatusOr<std::map<std::string, std::set<int>>> ParseFilter(absl::string_view flag,
                                                                 const std::string& text,
                                                                 const std::vector<Host>& hosts) {
  std::map<std::string, const Host*> known;
  for (const Host& host : hosts) {
    known[FoldedName(host.name)] = &host;
  }
  std::map<std::string, std::set<int>> named;
  for (const absl::string_view part : absl::StrSplit(text, '@')) {
    DT_ASSIGN_OR_RETURN(const Choice choice, ParseChoice(flag, std::string(part), known));
    const auto host = known.find(FoldedName(choice.host));
    if (host == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s names host \"%s\", which is not in the hostfile", flag,
                          absl::CHexEscape(choice.host)));
    }
    for (const int slot : choice.slots) {
      if (std::find(host->second->slots.begin(), host->second->slots.end(), slot) ==
          host->second->slots.end()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s names slot %d of host %s, which has the slots 0 to %d", flag, slot,
                            choice.host, host->second->slots.back()));
      }
    }
    named[host->first].insert(choice.slots.begin(), choice.slots.end());
  }
  for (auto& [name, slots] : named) {
    if (slots.empty()) {  // Only the host was named, so all of its slots are meant.
      slots.insert(known[name]->slots.begin(), known[name]->slots.end());
    }
  }
  return named;
}

std::vector<Host> Filtered(const std::vector<Host>& hosts,
                           const std::map<std::string, std::set<int>>& named, bool is_include) {
  std::vector<Host> left;
  for (const Host& host : hosts) {
    const auto found = named.find(FoldedName(host.name));
    const std::set<int> slots = found == named.end() ? std::set<int>() : found->second;
    Host part{host.name, {}};
    std::copy_if(host.slots.begin(), host.slots.end(), std::back_inserter(part.slots),
                 [&](int slot) { return (slots.count(slot) != 0) == is_include; });
    if (!part.slots.empty()) {
      left.push_back(std::move(part));
    }
  }
  return left;
}

absl::Status CheckExclusive(const HostLimits& limits) {
  if (!limits.include.empty() && !limits.exclude.empty()) {
    return absl::InvalidArgumentError("--include and --exclude are given; use one of them");
  }
  if ((!limits.include.empty() || !limits.exclude.empty()) &&
      (limits.hosts_max > 0 || limits.slots_max > 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is given together with %s; use one of them",
        limits.include.empty() ? "--exclude" : "--include",
        limits.hosts_max > 0 ? "--nnodes (--num-nodes)" : "--nproc-per-node (--num-gpus)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckHostName(absl::string_view name) {
  const bool plain = !name.empty() && name.size() <= kNameMax &&
                     absl::ascii_isalnum(static_cast<unsigned char>(name.front())) &&
                     std::all_of(name.begin(), name.end(), IsNameLetter);
  if (plain || IsIpAddress(std::string(name))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "\"%s\" is no host name; allowed: letters, digits, dots, dashes and underscores after a "
      "letter or digit, or an IP address (for another user name, give --launcher-args \"-l USER\")",
      absl::CHexEscape(name)));
}

absl::StatusOr<std::vector<Host>> ParseHostfile(absl::string_view text, absl::string_view file) {
  std::vector<Host> hosts;
  std::map<std::string, int> line_of;
  size_t all_slots = 0;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) {
      continue;
    }
    absl::StatusOr<Host> host = ParseLine(line);
    DT_RETURN_IF_ERROR(Annotate(host.status(), absl::StrCat(file, ":", number)));
    const auto [first, is_new] = line_of.emplace(FoldedName(host->name), number);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s:%d: host %s is listed in line %d already; give all of its slots there", file, number,
          host->name, first->second));
    }
    all_slots += host->slots.size();
    if (all_slots > kAllSlotsMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s:%d: the hosts have more than %d slots together", file, number, kAllSlotsMax));
    }
    hosts.push_back(*std::move(host));
  }
  if (hosts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("hostfile ", file, " lists no host; a line is: HOST slots=N"));
  }
  return hosts;
}

absl::StatusOr<std::vector<Host>> ChooseHosts(const std::vector<Host>& hosts,
                                              const HostLimits& limits) {
  DT_RETURN_IF_ERROR(CheckExclusive(limits));
  std::vector<Host> chosen = hosts;
  const bool is_include = !limits.include.empty();
  if (is_include || !limits.exclude.empty()) {
    DT_ASSIGN_OR_RETURN(const auto named,
                        ParseFilter(is_include ? "--include" : "--exclude",
                                    is_include ? limits.include : limits.exclude, hosts));
    chosen = Filtered(hosts, named, is_include);
  }
  if (chosen.empty()) {
    return absl::InvalidArgumentError("--exclude leaves no host");
  }
  if (static_cast<size_t>(limits.hosts_max) > chosen.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--nnodes is %d, but the hostfile has %d host%s", limits.hosts_max,
                        chosen.size(), chosen.size() == 1 ? "" : "s"));
  }
  if (limits.hosts_max > 0) {
    chosen.resize(static_cast<size_t>(limits.hosts_max));
  }
  for (Host& host : chosen) {
    if (limits.slots_max == 0) {
      continue;
    }
    if (static_cast<size_t>(limits.slots_max) > host.slots.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--nproc-per-node is %d, but host %s has %d slot%s in the hostfile", limits.slots_max,
          host.name, host.slots.size(), host.slots.size() == 1 ? "" : "s"));
    }
    host.slots.resize(static_cast<size_t>(limits.slots_max));
  }
  return chosen;
}

}  // namespace dtrain::launcher
