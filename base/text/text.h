// Small functions for text that goes to a terminal. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain {

// `text` with '?' for control characters other than tab, so that a text from a file or a peer
// cannot control the reader's terminal.
inline std::string Printable(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f) {
      c = '?';
    }
  }
  return text;
}

// Whether a byte of UTF-8 text goes on with a character that begins before it.
inline bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// Columns of a terminal that UTF-8 text takes, if each character takes one.
inline size_t DisplayWidth(absl::string_view text) {
  size_t width = 0;
  for (const char c : text) {
    width += IsContinuation(c) ? 0 : 1;
  }
  return width;
}

}  // namespace dtrain
