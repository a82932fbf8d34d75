// Text for the cells of Markdown tables. Pure.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace dtrain {

// Escapes prose: `code` keeps its meaning, but a star does not begin emphasis.
inline std::string MarkdownCell(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"*", "\\*"}});
}

// `text` as code, in one line.
inline std::string MarkdownCode(absl::string_view text) {
  return absl::StrCat("`", absl::StrReplaceAll(text, {{"`", "'"}, {"|", "\\|"}, {"\n", " "}}), "`");
}

}  // namespace dtrain
