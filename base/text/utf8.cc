#include "base/text/utf8.h"

#include <cstdint>

namespace dtrain {

bool IsUtf8(absl::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto first = static_cast<uint8_t>(text[i]);
    const int length = first < 0x80                     ? 1
                       : first >= 0xc2 && first <= 0xdf ? 2
                       : first >= 0xe0 && first <= 0xef ? 3
                       : first >= 0xf0 && first <= 0xf4 ? 4
                                                        : 0;
    if (length == 0 || text.size() - i < static_cast<size_t>(length)) {
      return false;
    }
    for (int k = 1; k < length; ++k) {
      const auto next = static_cast<uint8_t>(text[i + static_cast<size_t>(k)]);
      // The second byte is narrower after four lead bytes.
      const uint8_t low = k == 1 && first == 0xe0 ? 0xa0 : k == 1 && first == 0xf0 ? 0x90 : 0x80;
      const uint8_t high = k == 1 && first == 0xed ? 0x9f : k == 1 && first == 0xf4 ? 0x8f : 0xbf;
      if (next < low || next > high) {
        return false;
      }
    }
    i += static_cast<size_t>(length);
  }
  return true;
}

}  // namespace dtrain
