#include "launcher/commands/completion.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/commands/help_page.h"

namespace dtrain::launcher {
namespace {

using Words = std::vector<std::string>;

constexpr char kBash[] =
    R"(# Completion of dtrain's commands and options in bash: source it, or put it into
# ~/.local/share/bash-completion/completions/dtrain.
_dtrain() {
  local IFS=$'\n'
  COMPREPLY=($("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -F _dtrain dtrain
)";

constexpr char kZsh[] = R"(#compdef dtrain
# Completion of dtrain's commands and options in zsh: put it into a folder of fpath as _dtrain.
_dtrain() {
  local -a found
  found=("${(@f)$("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${found[1]}" ]]; then
    compadd -- "${found[@]}"
  else
    _files
  fi
}
if [[ "${funcstack[1]}" == _dtrain ]]; then
  _dtrain "$@"
else
  compdef _dtrain dtrain
fi
)";

bool TakesValue(const HelpPage& page, const std::string& option) {
  for (const HelpRow& row : page.RowsOf("Options")) {
    const Words names = OptionsOf(row);
    if (std::find(names.begin(), names.end(), option) != names.end()) {
      const size_t last = row.name.rfind(", ");  // "-t, --tee STREAMS".
      return absl::StrContains(row.name.substr(last == std::string::npos ? 0 : last + 2), ' ');
    }
  }
  return false;
}

// Where a command line stands at its last word.
struct Cursor {
  Words command;
  HelpPage page;
  bool is_value = false;    // The word is an option's value.
  bool is_program = false;  // It belongs to the program that `dtrain launch` starts.
};

Cursor CursorIn(const Words& words, const HelpOf& help_of) {
  Cursor at;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (absl::StartsWith(word, "-") && !at.command.empty() && word != "--") {
      const bool takes = !absl::StrContains(word, '=') && TakesValue(at.page, word);
      at.is_value = takes && i + 2 == words.size();
      i += takes ? 1 : 0;
      continue;
    }
    const Words members = Completions(at.page, "");
    const bool is_member = std::find(members.begin(), members.end(), word) != members.end();
    if (at.command.empty() || is_member) {
      at.command.push_back(word);
      at.page = ParseHelp(help_of(at.command));
    } else if (at.command.front() == "launch") {
      at.is_program = true;
      return at;
    }
  }
  return at;
}

}  // namespace

Words Complete(const Words& words, const std::vector<CommandEntry>& commands,
               const HelpOf& help_of) {
  if (words.size() > 1 && words.front() == "help") {
    return Complete(Words(words.begin() + 1, words.end()), commands, help_of);
  }
  const std::string current = words.empty() ? "" : words.back();
  if (words.size() < 2) {
    Words first = FirstWords(commands);
    for (const char* more : {"help", "--help", "--version"}) {
      first.emplace_back(more);
    }
    const bool wants_option = absl::StartsWith(current, "-");
    first.erase(std::remove_if(first.begin(), first.end(),
                               [&](const std::string& word) {
                                 return !absl::StartsWith(word, current) ||
                                        absl::StartsWith(word, "-") != wants_option;
                               }),
                first.end());
    return first;
  }
  const Cursor at = CursorIn(words, help_of);
  return at.is_value || at.is_program ? Words() : Completions(at.page, current);
}

std::string CompletionScript(const std::string& shell) {
  return shell == "bash" ? kBash : shell == "zsh" ? kZsh : "";
}

}  // namespace dtrain::launcher
