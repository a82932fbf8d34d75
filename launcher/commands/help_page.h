// The text of a command's --help, taken apart: shell completion and man pages are made from it, so
// that all three say the same. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain::launcher {

// "-t, --tee STREAMS" and what is said of it.
struct HelpRow {
  std::string name;
  std::string text;
};

// Rows under a title, or lines as they stand: an example, a paragraph.
struct HelpSection {
  std::string title;  // "Options"; "" where lines have none.
  std::vector<HelpRow> rows;
  std::vector<std::string> lines;
};

struct HelpPage {
  std::string description;  // One paragraph.
  std::string usage;        // Without "Usage: ".
  std::vector<HelpSection> sections;

  // The rows of the sections of that title; empty: there is none.
  std::vector<HelpRow> RowsOf(absl::string_view title) const;
};

// `text` in the form of dtrain::HelpText and of `dtrain --help`.
HelpPage ParseHelp(absl::string_view text);

// "--tee" and "-t" of a row "-t, --tee STREAMS".
std::vector<std::string> OptionsOf(const HelpRow& row);

// The words that may stand in the place of `current`: options where it begins with '-', else
// commands. Those that do not begin with it are left out.
std::vector<std::string> Completions(const HelpPage& page, absl::string_view current);

// A manual page in roff, for `man`. `name` is "dtrain-launch", `version` that of dtrain.
std::string ManPage(const std::string& name, const std::string& version, const HelpPage& page);

}  // namespace dtrain::launcher
