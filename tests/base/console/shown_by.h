// Reads back what a test wrote to a terminal or a pipe.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <array>
#include <string>

#include "gtest/gtest.h"

namespace dtrain {

// All that was written to `writer` and not yet read from `reader`. A terminal passes output on with
// a delay, but in order, so this writes a mark and reads up to it.
inline std::string ShownBy(int reader, int writer) {
  constexpr char kMark = '\x01';
  EXPECT_EQ(write(writer, &kMark, 1), 1);
  std::string text;
  while (text.empty() || text.back() != kMark) {
    pollfd entry{reader, POLLIN, 0};
    std::array<char, 4096> buffer{};
    if (poll(&entry, 1, 10000) <= 0) {
      ADD_FAILURE() << "nothing more can be read after \"" << text << "\"";
      return text;
    }
    const ssize_t n = read(reader, buffer.data(), buffer.size());
    text.append(buffer.data(), n > 0 ? static_cast<size_t>(n) : 0);
  }
  text.pop_back();
  return text;
}

}  // namespace dtrain
