// The block that a run begins with: a title, and rows of a label and a text. Pure.
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

// Lines without an end. Labels are a column of their own; what is wider than `width` goes on in the
// next line at a space, so that neither a word nor a number is cut. A word that is wider than its
// line by itself (a path) stands alone. `width` 0: nothing is wrapped.
std::vector<std::string> FormatBanner(const Banner& banner, int width);

}  // namespace dtrain
