#include "base/console/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/text/nearest.h"
#include "base/text/text.h"

namespace dtrain {
namespace {

constexpr size_t kColumns = 80;
constexpr size_t kTextColumn = 28;  // Column at which explanations begin.

// `text` wrapped to kColumns; lines after the first begin at `indent`. A line that starts with a
// space, as examples do, stays as it is.
std::string Wrapped(absl::string_view text, size_t column, size_t indent) {
  std::string wrapped;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!wrapped.empty()) {
      absl::StrAppend(&wrapped, "\n", std::string(indent, ' '));
      column = indent;
    }
    if (absl::StartsWith(line, " ")) {
      absl::StrAppend(&wrapped, line);
      continue;
    }
    bool first = true;
    for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      if (!first && column + 1 + word.size() > kColumns) {
        absl::StrAppend(&wrapped, "\n", std::string(indent, ' '));
        column = indent;
        first = true;
      }
      absl::StrAppend(&wrapped, first ? "" : " ", word);
      column += word.size() + (first ? 0 : 1);
      first = false;
    }
  }
  return wrapped;
}

std::string Row(const std::string& left, const std::string& text) {
  std::string row = absl::StrCat("  ", left);
  if (text.empty()) {
    return row + "\n";
  }
  if (row.size() + 2 > kTextColumn) {
    absl::StrAppend(&row, "\n", std::string(kTextColumn, ' '));
  } else {
    row.resize(kTextColumn, ' ');
  }
  return absl::StrCat(row, Wrapped(text, kTextColumn, kTextColumn), "\n");
}

// A placeholder for people from CLI11's name for the type of a value.
std::string Placeholder(const std::string& type) {
  if (type == "INT" || type == "UINT") {
    return "N";
  }
  return type == "FLOAT" ? "NUMBER" : type;
}

// A readable text from a validator's description, "INT in [1 - 64]" or "{a,b}".
std::string Allowed(absl::string_view description) {
  for (const absl::string_view type : {"INT in ", "UINT in ", "FLOAT in "}) {
    if (absl::ConsumePrefix(&description, type)) {
      return absl::StrReplaceAll(description, {{"[", ""}, {"]", ""}, {" - ", " to "}});
    }
  }
  if (description == "POSITIVE") {
    return "above 0";
  }
  if (absl::ConsumePrefix(&description, "{") && absl::ConsumeSuffix(&description, "}")) {
    return absl::StrReplaceAll(description, {{",", ", "}});
  }
  return std::string(description);
}

std::string Sentence(std::string text) {
  if (!text.empty() && text.back() != '.' && text.back() != '\n') {
    text += '.';
  }
  return text;
}

class PlainHelp : public CLI::Formatter {
 public:
  PlainHelp() { label("Positionals", "Arguments"); }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string name = make_option_name(option, is_positional);
    const std::pair<std::string, std::string> type =
        absl::StrSplit(option->get_type_name(), absl::MaxSplits(':', 1));
    const bool takes_value = option->get_items_expected_max() > 0;
    // A text such as "HOST:PORT", which is not the name of a type.
    const std::string& own = option->get_option_text();
    const std::string value = is_positional || !takes_value
                                  ? ""
                                  : absl::StrCat(" ", own.empty() ? Placeholder(type.first) : own);
    std::string text = Sentence(option->get_description());
    if (takes_value && own.empty() && !type.second.empty()) {
      const std::string allowed = absl::StrCat("Allowed: ", Allowed(type.second), ".");
      const size_t before = std::min(text.find(" Default: "), text.size());
      text.insert(before, absl::StrCat(" ", allowed));
    }
    // For positional arguments the usage line shows it.
    if (option->get_required() && !is_positional) {
      text += " Required.";
    }
    // The value that an option gets if its name is given without one is not a default.
    if (option->get_items_expected_min() > 0 && !option->get_default_str().empty()) {
      absl::StrAppend(&text, " Default: ", DefaultOf(*option), ".");
    }
    return Row(absl::StrReplaceAll(name, {{",", ", "}}) + value, text);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    const std::string& text = command->get_description();
    return Row(command->get_name(), text.substr(0, text.find('\n')));
  }

  std::string make_description(const CLI::App* app) const override {
    return Wrapped(app->get_description(), 0, 0) + "\n\n";
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    return absl::StrReplaceAll(usage, {{"[OPTIONS]", "[options]"}, {"SUBCOMMAND", "COMMAND"}});
  }

 private:
  static std::string DefaultOf(const CLI::Option& option) {
    const std::string& text = option.get_default_str();
    const bool is_list = text.size() > 2 && text.front() == '[' && text.back() == ']';
    return is_list ? text.substr(1, text.size() - 2) : text;
  }
};

void UsePlainHelp(CLI::App& app) {
  app.formatter(std::make_shared<PlainHelp>());
  for (CLI::App* const command : app.get_subcommands([](CLI::App*) { return true; })) {
    command->group("Commands");
    UsePlainHelp(*command);
  }
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* const command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : app.get_options()) {
    if (!option->get_group().empty()) {
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
      }
    }
  }
  return names;
}

// The error in the choice of a command; "" when there is none.
std::string WrongCommand(const CLI::App& app, const std::vector<std::string>& arguments) {
  const std::vector<std::string> names = CommandNames(app);
  if (names.empty()) {
    return "";
  }
  const auto first = std::find_if(arguments.begin(), arguments.end(), [](const std::string& word) {
    return !absl::StartsWith(word, "-");
  });
  if (first != arguments.end()) {
    return std::count(names.begin(), names.end(), *first) > 0 ? ""
                                                              : UnknownCommand("", *first, names);
  }
  return arguments.empty()
             ? absl::StrCat("no command given; there are: ", absl::StrJoin(names, ", "))
             : "";
}

// The command that was chosen, at any depth; `name` becomes the text that a user types for it.
const CLI::App& Chosen(const CLI::App& app, std::string& name) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  if (parsed.empty()) {
    return app;
  }
  absl::StrAppend(&name, " ", parsed.front()->get_name());
  return Chosen(*parsed.front(), name);
}

// The first argument that `app` did not consume, options first; "" when it consumed all.
std::string UnexpectedArgument(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining(true);
  const auto option = std::find_if(rest.begin(), rest.end(), [](const std::string& word) {
    return word.size() > 1 && absl::StartsWith(word, "-") && word != "--";
  });
  if (option != rest.end()) {
    return UnknownOption(option->substr(0, option->find('=')), OptionNames(app));
  }
  return rest.empty() ? "" : absl::StrFormat("argument %s was not expected", rest.front());
}

// `arguments` with each "--name=" split into "--name" and an empty value, because CLI11 would take
// the next argument for the value. Arguments after "--" are unchanged.
std::vector<std::string> WithEmptyValues(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  bool options_end = false;
  for (const std::string& argument : arguments) {
    options_end = options_end || argument == "--";
    const bool is_empty = !options_end && argument.size() > 3 && absl::StartsWith(argument, "--") &&
                          argument.find('=') == argument.size() - 1;
    words.push_back(is_empty ? argument.substr(0, argument.size() - 1) : argument);
    if (is_empty) {
      words.emplace_back();
    }
  }
  return words;
}

}  // namespace

std::string HelpText(CLI::App& app) {
  UsePlainHelp(app);
  return absl::StrReplaceAll(app.help(), {{"\n\n\n", "\n\n"}});
}

std::optional<int> ParseCommandLine(CLI::App& app, const std::vector<std::string>& arguments) {
  UsePlainHelp(app);
  std::string name = app.get_name();
  if (const std::string wrong = WrongCommand(app, arguments); !wrong.empty()) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), Printable(wrong).c_str());
    return kExitUsage;
  }
  std::vector<std::string> words = WithEmptyValues(arguments);
  std::reverse(words.begin(), words.end());  // CLI11 expects this order.
  std::string problem;
  try {
    app.parse(std::move(words));
    return std::nullopt;
  } catch (const CLI::ParseError& error) {  // CLI11's one way to report, --help included.
    if (error.get_name() == "CallForHelp") {
      std::fputs(HelpText(app).c_str(), stdout);
      return kExitOk;
    }
    if (error.get_exit_code() == 0) {
      app.exit(error);  // Prints the version.
      return kExitOk;
    }
    // CLI11 reports a missing required option first, even if it is missing because an option is
    // misspelt.
    const std::string unexpected = UnexpectedArgument(Chosen(app, name));
    const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
    const bool is_why =
        code == CLI::ExitCodes::ExtrasError || code == CLI::ExitCodes::RequiredError;
    problem = is_why && !unexpected.empty() ? unexpected
                                            : absl::StrReplaceAll(error.what(), {{"\n", " "}});
  }
  std::fprintf(stderr, "%s: %s; see %s --help\n", name.c_str(), Printable(problem).c_str(),
               name.c_str());
  return kExitUsage;
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv) {
  return ParseCommandLine(app, std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
}

int EndOf(const char* program, const absl::Status& status) {
  if (!status.ok()) {
    const std::string line = Printable(std::string(status.message()));
    std::fprintf(stderr, "%s: %s\n", program, line.c_str());
  }
  return ExitCodeFor(status);
}

}  // namespace dtrain
