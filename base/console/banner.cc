#include "base/console/banner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text/text.h"

namespace dtrain {
namespace {

constexpr size_t kMargin = 2;  // Spaces before labels, and between labels and texts.

// Appends `text` to `start`, the beginning of a line; further lines begin with `indent` spaces.
void Wrap(std::string start, absl::string_view text, size_t indent, size_t width,
          std::vector<std::string>* lines) {
  bool first_word = true;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const size_t wanted = DisplayWidth(start) + (first_word ? 0 : 1) + DisplayWidth(word);
    if (!first_word && width > 0 && wanted > width) {
      lines->push_back(std::move(start));
      start = std::string(indent, ' ');
      first_word = true;
    }
    absl::StrAppend(&start, first_word ? "" : " ", word);
    first_word = false;
  }
  lines->push_back(std::move(start));
}

}  // namespace

std::vector<std::string> FormatBanner(const Banner& banner, int width) {
  size_t labels = 0;
  for (const auto& [label, text] : banner.rows) {
    labels = std::max(labels, DisplayWidth(label));
  }
  const size_t indent = kMargin + labels + kMargin;
  const auto columns = static_cast<size_t>(std::max(0, width));
  std::vector<std::string> lines;
  Wrap("", Printable(banner.title), kMargin, columns, &lines);
  for (const auto& [label, text] : banner.rows) {
    std::string start = absl::StrCat(std::string(kMargin, ' '), Printable(label));
    start.append(indent - DisplayWidth(start), ' ');
    Wrap(std::move(start), Printable(text), indent, columns, &lines);
  }
  return lines;
}

}  // namespace dtrain
