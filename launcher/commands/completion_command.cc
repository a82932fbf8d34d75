// `dtrain completion`, and two commands without a place in the catalog: `dtrain complete`, which
// the shells' scripts ask, and `dtrain man-pages`. All read the --help of the programs that are
// there.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/console/command_line.h"
#include "base/file.h"
#include "base/status.h"
#include "base/system/own_program.h"
#include "base/version.h"
#include "launcher/commands/catalog.h"
#include "launcher/commands/commands.h"
#include "launcher/commands/completion.h"
#include "launcher/commands/help_page.h"
#include "launcher/run_to_end.h"

namespace dtrain::launcher {
namespace {

using Words = std::vector<std::string>;

// The --help of a command, out of the program itself; "": it has none.
std::string AskForHelp(const Words& command, const Environment& environment) {
  Words words = {OwnProgram()};
  words.insert(words.end(), command.begin(), command.end());
  words.emplace_back("--help");
  // Programs name themselves as they were started.
  return absl::StrReplaceAll(OutputOf(words, environment).value_or(""), {{OwnFolder() + "/", ""}});
}

// `summary` stands where the help says nothing of what the command does.
absl::Status WriteManPage(const std::string& folder, const Words& command, const std::string& help,
                          const std::string& summary) {
  Words words = {"dtrain"};
  words.insert(words.end(), command.begin(), command.end());
  const std::string name = absl::StrJoin(words, "-");
  HelpPage page = ParseHelp(help);
  if (page.description.empty()) {
    page.description = summary;
  }
  return WriteFileAtomic(absl::StrCat(folder, "/", name, ".1"), ManPage(name, kVersion, page),
                         0644);
}

}  // namespace

Words SiblingPrograms() {
  Words names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(OwnFolder(), ignored)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "dtrain-") && access(entry.path().c_str(), X_OK) == 0) {
      names.push_back(name.substr(7));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

int CompletionCommand(const Words& arguments) {
  CLI::App app("Prints the script that makes a shell complete the commands and options of dtrain.",
               "dtrain completion");
  std::string shell;
  app.add_option("SHELL", shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  app.footer(
      "Examples:\n"
      "  source <(dtrain completion bash)\n"
      "  dtrain completion bash > ~/.local/share/bash-completion/completions/dtrain\n"
      "  dtrain completion zsh > ~/.zfunc/_dtrain    with fpath+=(~/.zfunc) in ~/.zshrc");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  std::fputs(CompletionScript(shell).c_str(), stdout);
  return kExitOk;
}

int CompleteCommand(const Words& arguments, const Environment& environment) {
  const bool marked = !arguments.empty() && arguments.front() == "--";
  const Words words(arguments.begin() + (marked ? 1 : 0), arguments.end());
  const auto help_of = [&](const Words& command) { return AskForHelp(command, environment); };
  for (const std::string& word : Complete(words, AllCommands(SiblingPrograms()), help_of)) {
    std::printf("%s\n", word.c_str());
  }
  return kExitOk;
}

int ManPagesCommand(const Words& arguments, const Environment& environment) {
  CLI::App app("Writes a manual page for dtrain and for each of its commands, from their --help.",
               "dtrain man-pages");
  std::string folder;
  app.add_option("DIR", folder, "Folder for the pages, such as share/man/man1")->required();
  app.footer("Example:\n  dtrain man-pages share/man/man1");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  const auto write = [&]() -> absl::Status {
    DT_RETURN_IF_ERROR(MakeDirectories(folder));
    DT_RETURN_IF_ERROR(WriteManPage(folder, {}, OverviewText(SiblingPrograms()), ""));
    for (const CommandEntry& command : AllCommands(SiblingPrograms())) {
      const Words words = absl::StrSplit(command.name, ' ');
      const std::string help = AskForHelp(words, environment);
      if (help.empty()) {
        return absl::UnavailableError(absl::StrCat("dtrain ", command.name, " --help failed"));
      }
      DT_RETURN_IF_ERROR(WriteManPage(folder, words, help, command.summary));
      for (const HelpRow& row : ParseHelp(help).RowsOf("Commands")) {
        Words inner = words;
        inner.push_back(row.name);
        DT_RETURN_IF_ERROR(WriteManPage(folder, inner, AskForHelp(inner, environment), row.text));
      }
    }
    return absl::OkStatus();
  };
  const absl::Status status = write();
  return status.ok() ? kExitOk : EndOf("dtrain man-pages", status);
}

}  // namespace dtrain::launcher
