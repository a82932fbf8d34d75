#include "launcher/commands/help_page.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace dtrain::launcher {
namespace {

constexpr char kUsage[] = "Usage: ";
constexpr size_t kRowIndent = 2;

size_t IndentOf(absl::string_view line) {
  const size_t first = line.find_first_not_of(' ');
  return first == absl::string_view::npos ? line.size() : first;
}

bool HoldsRows(absl::string_view title) {
  return title == "Options" || title == "Arguments" || absl::StrContains(title, "ommands") ||
         title == "Train" || title == "Use a trained model" || title == "Prepare" ||
         absl::StartsWith(title, "Look at") || absl::StrContains(title, "rograms");
}

void AppendWords(std::string* text, absl::string_view words) {
  absl::StrAppend(text, text->empty() || words.empty() ? "" : " ", words);
}

// Adds a line of a section of rows: the beginning of a row, or more of the last one's text.
void AddToRows(absl::string_view line, std::vector<HelpRow>& rows) {
  const absl::string_view words = absl::StripAsciiWhitespace(line);
  if (IndentOf(line) != kRowIndent) {
    if (!rows.empty()) {
      AppendWords(&rows.back().text, words);
    }
    return;
  }
  const size_t gap = words.find("  ");  // Names are in the first column.
  HelpRow row;
  row.name = std::string(words.substr(0, gap));
  row.text = gap == absl::string_view::npos
                 ? ""
                 : std::string(absl::StripLeadingAsciiWhitespace(words.substr(gap)));
  rows.push_back(std::move(row));
}

// Text in which roff finds no request and changes no character.
std::string Escaped(absl::string_view text) {
  std::string safe = absl::StrReplaceAll(text, {{"\\", "\\(rs"}, {"-", "\\-"}, {"`", "\\(ga"}});
  return absl::StartsWith(safe, ".") || absl::StartsWith(safe, "'") ? absl::StrCat("\\&", safe)
                                                                    : safe;
}

// The first sentence of a description, as `apropos` shows it.
std::string FirstSentence(const std::string& text) {
  const size_t end = text.find(". ");
  return std::string(absl::StripSuffix(text.substr(0, end), "."));
}

std::string Section(const HelpSection& section) {
  std::string page;
  if (!section.title.empty()) {
    absl::StrAppend(&page, ".SH \"", absl::AsciiStrToUpper(Escaped(section.title)), "\"\n");
  } else {
    absl::StrAppend(&page, ".PP\n");
  }
  for (const HelpRow& row : section.rows) {
    absl::StrAppend(&page, ".TP\n.B ", Escaped(row.name), "\n", Escaped(row.text), "\n");
  }
  if (!section.lines.empty()) {
    absl::StrAppend(&page, ".nf\n");
    for (const std::string& line : section.lines) {
      absl::StrAppend(&page, Escaped(line), "\n");
    }
    absl::StrAppend(&page, ".fi\n");
  }
  return page;
}

}  // namespace

std::vector<HelpRow> HelpPage::RowsOf(absl::string_view title) const {
  std::vector<HelpRow> found;
  for (const HelpSection& section : sections) {
    if (section.title == title) {
      found.insert(found.end(), section.rows.begin(), section.rows.end());
    }
  }
  return found;
}

HelpPage ParseHelp(absl::string_view text) {
  HelpPage page;
  bool in_usage = false;
  bool is_over = true;  // An empty line has ended what came before.
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty()) {
      is_over = true;
      in_usage = false;
      continue;
    }
    const absl::string_view words = absl::StripAsciiWhitespace(line);
    if (absl::StartsWith(line, kUsage)) {
      page.usage = std::string(line.substr(sizeof(kUsage) - 1));
      in_usage = true;
    } else if (in_usage && IndentOf(line) > 0) {
      AppendWords(&page.usage, words);
    } else if (page.sections.empty() && !absl::EndsWith(words, ":")) {
      in_usage = false;
      AppendWords(&page.description, words);
    } else {
      const bool is_title = IndentOf(line) == 0 && absl::EndsWith(words, ":");
      if (is_title || is_over) {
        page.sections.emplace_back();
      }
      HelpSection& section = page.sections.back();
      if (is_title) {
        section.title = std::string(absl::StripSuffix(words, ":"));
      } else if (HoldsRows(section.title)) {
        AddToRows(line, section.rows);
      } else {
        section.lines.emplace_back(line);
      }
    }
    is_over = false;
  }
  return page;
}

std::vector<std::string> OptionsOf(const HelpRow& row) {
  std::vector<std::string> options;
  for (const absl::string_view part : absl::StrSplit(row.name, ", ")) {
    const absl::string_view option = part.substr(0, part.find(' '));
    if (absl::StartsWith(option, "-")) {
      options.emplace_back(option);
    }
  }
  return options;
}

std::vector<std::string> Completions(const HelpPage& page, absl::string_view current) {
  std::vector<std::string> words;
  const auto offer = [&](const std::string& word) {
    if (absl::StartsWith(word, current)) {
      words.push_back(word);
    }
  };
  if (absl::StartsWith(current, "-")) {
    for (const HelpRow& row : page.RowsOf("Options")) {
      for (const std::string& option : OptionsOf(row)) {
        offer(option);
      }
    }
    return words;
  }
  for (const HelpRow& row : page.RowsOf("Commands")) {
    offer(row.name.substr(row.name.rfind(' ') + 1));  // "bench comm": comm.
  }
  return words;
}

std::string ManPage(const std::string& name, const std::string& version, const HelpPage& page) {
  std::string text =
      absl::StrCat(".TH ", absl::AsciiStrToUpper(name), " 1 \"\" \"dtrain ", version,
                   "\" \"dtrain\"\n", ".SH NAME\n", Escaped(name), " \\- ",
                   Escaped(FirstSentence(page.description)), "\n", ".SH SYNOPSIS\n",
                   Escaped(page.usage), "\n.SH DESCRIPTION\n", Escaped(page.description), "\n");
  for (const HelpSection& section : page.sections) {
    absl::StrAppend(&text, Section(section));
  }
  return text;
}

}  // namespace dtrain::launcher
