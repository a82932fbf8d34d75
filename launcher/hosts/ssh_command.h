// The command that starts the agent of one host: ssh with fixed options, or the program itself for
// this host. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::launcher {

struct SshOptions {
  std::string port{};                     // "": as ssh is configured.
  std::vector<std::string> more_words{};  // The user's, after the fixed options.
  std::string dtrain = "dtrain";          // The program on the hosts.
};

// The command for `host`. The name stands after "--", so that ssh cannot read it as an option, and
// the remote command has no value of the user's but the path of dtrain, quoted. REQUIRES:
// CheckHostName(host) is OK.
std::vector<std::string> SshCommand(const std::string& host, const SshOptions& options);

// The same without ssh, for an agent on this host.
std::vector<std::string> LocalCommand(const std::string& dtrain);

// `word` as sh reads it back: unchanged, or in single quotes.
std::string QuoteForShell(absl::string_view word);

// The words of `text`, separated by blanks outside of quotes (' or "); nothing else is special.
// InvalidArgument: a quote without its end.
absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view text);

// Whether `host` is this host: localhost, a loopback address, `own_name` with or without its
// domain, or one of `own_addresses`.
bool IsThisHost(const std::string& host, absl::string_view own_name,
                const std::vector<std::string>& own_addresses);

}  // namespace dtrain::launcher
