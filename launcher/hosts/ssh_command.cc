#include "launcher/hosts/ssh_command.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "comm/net/socket.h"

namespace dtrain::launcher {
namespace {

constexpr char kAgentCommand[] = "node-agent";
constexpr char kConnectTimeout[] = "ConnectTimeout=10";

bool IsPlain(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view("_./:@%+,-=").find(c) != absl::string_view::npos;
}

}  // namespace

std::vector<std::string> SshCommand(const std::string& host, const SshOptions& options) {
  // No terminal and no question: what is not set up is an error. A host that falls silent is
  // noticed after a minute.
  std::vector<std::string> words = {"ssh",
                                    "-T",
                                    "-x",
                                    "-o",
                                    "BatchMode=yes",
                                    "-o",
                                    kConnectTimeout,
                                    "-o",
                                    "ServerAliveInterval=15",
                                    "-o",
                                    "ServerAliveCountMax=4"};
  if (!options.port.empty()) {
    words.insert(words.end(), {"-p", options.port});
  }
  words.insert(words.end(), options.more_words.begin(), options.more_words.end());
  words.insert(words.end(),
               {"--", host, absl::StrCat(QuoteForShell(options.dtrain), " ", kAgentCommand)});
  return words;
}

std::vector<std::string> LocalCommand(const std::string& dtrain) { return {dtrain, kAgentCommand}; }

std::string QuoteForShell(absl::string_view word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), IsPlain)) {
    return std::string(word);
  }
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = '\0';
  for (const char c : text) {
    const bool is_blank = absl::ascii_isspace(static_cast<unsigned char>(c));
    if (quote == '\0' && is_blank) {
      in_word = false;
      continue;
    }
    if (!in_word) {
      words.emplace_back();
      in_word = true;
    }
    if (c == quote) {
      quote = '\0';
    } else if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
    } else {
      words.back().push_back(c);
    }
  }
  if (quote != '\0') {
    return absl::InvalidArgumentError(
        absl::StrFormat("--launcher-args is \"%s\", where a quote (%c) has no end", text, quote));
  }
  return words;
}

bool IsThisHost(const std::string& host, absl::string_view own_name,
                const std::vector<std::string>& own_addresses) {
  return comm::IsLoopback(absl::AsciiStrToLower(host)) || absl::EqualsIgnoreCase(host, own_name) ||
         absl::EqualsIgnoreCase(host, own_name.substr(0, own_name.find('.'))) ||
         std::find(own_addresses.begin(), own_addresses.end(), host) != own_addresses.end();
}

}  // namespace dtrain::launcher
