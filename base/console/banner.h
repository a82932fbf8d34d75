// The block of text at the start of a run: a title, and rows of a label and a text. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain {

struct Banner {
  std::string title;
  std::vector<std::pair<std::string, std::string>> rows;
};

// The banner's lines, without line ends. Labels are a column of their own; a text wider than
// `width` is wrapped at spaces, so that neither a word nor a number is cut. A word that alone is
// wider than its line (a path) has a line to itself. `width` 0: nothing is wrapped.
std::vector<std::string> FormatBanner(const Banner& banner, int width);

}  // namespace dtrain
