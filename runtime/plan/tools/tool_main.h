// What the command-line tools of this room share: help texts that fit 80 columns; CLI11's errors
// and a Status become one line on stderr and an exit code of the project's table.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/nearest.h"
#include "base/status.h"

namespace dtrain::plan {

// `text` in lines of at most `columns`, cut at spaces. Pure.
inline std::string Wrapped(absl::string_view text, size_t columns) {
  std::string result;
  size_t used = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const bool fits = used == 0 || used + 1 + word.size() <= columns;
    absl::StrAppend(&result, used == 0 ? "" : fits ? " " : "\n", word);
    used = fits ? used + (used == 0 ? 0 : 1) + word.size() : word.size();
  }
  return result;
}

// CLI11 does not wrap the second column of its help by itself.
inline void FitHelp(CLI::App& app) {
  constexpr size_t kColumns = 80;
  constexpr size_t kNames = 30;  // CLI11's first column.
  const auto fit = [](const std::string& text) { return Wrapped(text, kColumns - kNames); };
  for (CLI::Option* option : app.get_options()) {
    option->description(fit(option->get_description()));
  }
  for (CLI::App* command : app.get_subcommands({})) {
    FitHelp(*command);
    command->description(fit(command->get_description()));
  }
}

// What is wrong with the choice of a command: a misspelt one, or none at all. "" when nothing is.
inline std::string WrongCommand(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (names.empty()) {
    return "";
  }
  if (argc < 2) {
    return absl::StrCat("no command given; there are: ", absl::StrJoin(names, ", "));
  }
  const std::string first = argv[1];
  const bool is_known =
      absl::StartsWith(first, "-") || std::count(names.begin(), names.end(), first) > 0;
  return is_known ? "" : UnknownCommand("", first, names);
}

// Parses; -1: go on, else the exit code (0 after --help, 64 for wrong usage).
inline int ParseCommandLine(CLI::App& app, int argc, char** argv) {
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return failed->get_name() + ": " + error.what() +
           "; run it with --help to see what is allowed\n";
  });
  FitHelp(app);
  if (const std::string wrong = WrongCommand(app, argc, argv); !wrong.empty()) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), wrong.c_str());
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11's one way to report, --help included.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return -1;
}

// 0, or the message on stderr and its code.
inline int Finish(const char* program, const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", program, std::string(status.message()).c_str());
  }
  return ExitCodeFor(status);
}

}  // namespace dtrain::plan
