// Reads and writes the payloads of frames: little-endian integers and length-prefixed bytes.
//
// A WireReader never reads outside its text: after the first field that does not fit, every field
// is 0 or "" and Complete() is false. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace dtrain::comm {

class WireWriter {
 public:
  void U8(uint8_t value) { text_ += static_cast<char>(value); }
  void U32(uint32_t value) { Integer(value); }
  void U64(uint64_t value) { Integer(value); }
  // A 32-bit length, then the bytes.
  void Bytes(absl::string_view bytes) {
    U32(static_cast<uint32_t>(bytes.size()));
    text_.append(bytes.data(), bytes.size());
  }
  std::string Take() { return std::move(text_); }

 private:
  template <typename T>
  void Integer(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      text_ += static_cast<char>(static_cast<uint8_t>(value >> (8 * i)));
    }
  }
  std::string text_;
};

class WireReader {
 public:
  explicit WireReader(absl::string_view text) : rest_(text) {}
  uint8_t U8() { return Integer<uint8_t>(); }
  uint32_t U32() { return Integer<uint32_t>(); }
  uint64_t U64() { return Integer<uint64_t>(); }
  // A view into the text; longer than `bytes_max` counts as malformed.
  absl::string_view Bytes(size_t bytes_max) {
    const uint32_t bytes = U32();
    if (bytes > bytes_max || bytes > rest_.size()) {
      return Fail();
    }
    const absl::string_view value = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return value;
  }
  // All that is left.
  absl::string_view Rest() { return std::exchange(rest_, absl::string_view()); }
  // Whether every field was there so far.
  bool ok() const { return ok_; }
  // Whether every field was there and nothing is left.
  bool Complete() const { return ok_ && rest_.empty(); }

 private:
  absl::string_view Fail() {
    ok_ = false;
    rest_ = absl::string_view();
    return rest_;
  }
  template <typename T>
  T Integer() {
    if (rest_.size() < sizeof(T)) {
      Fail();
      return 0;
    }
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | static_cast<T>(static_cast<uint8_t>(rest_[i])) << (8 * i));
    }
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  absl::string_view rest_;
  bool ok_ = true;
};

}  // namespace dtrain::comm
