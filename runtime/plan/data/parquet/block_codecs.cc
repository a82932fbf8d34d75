#include "runtime/plan/data/parquet/block_codecs.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "runtime/plan/data/parquet/varint.h"

namespace dtrain::plan::parquet {
namespace {

absl::Status BadBlock(const char* why) { return absl::InvalidArgumentError(why); }

// The stored bytes from front to back, and the output, which both kinds of blocks make by the same
// two steps: literal bytes, and copies of earlier output. The steps give an error or null.
class Block {
 public:
  Block(absl::string_view in, size_t bytes, std::string* out) : in_(in), out_(*out) {
    out_.resize(bytes);
  }

  bool at_end() const { return in_.empty(); }
  size_t left() const { return in_.size(); }
  size_t made() const { return made_; }
  bool is_whole() const { return made_ == out_.size(); }

  // A number of `bytes`, the lowest first. REQUIRES: left() >= bytes.
  uint32_t Take(size_t bytes) {
    uint32_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      value |= uint32_t{static_cast<uint8_t>(in_[i])} << (8 * i);
    }
    in_.remove_prefix(bytes);
    return value;
  }
  const char* Literal(size_t length) {
    if (length > in_.size()) {
      return "it ends inside a literal";
    }
    if (length > out_.size() - made_) {
      return "it holds more bytes than its header says";
    }
    std::memcpy(out_.data() + made_, in_.data(), length);
    in_.remove_prefix(length);
    made_ += length;
    return nullptr;
  }
  const char* Copy(size_t offset, size_t length) {
    if (offset == 0 || offset > made_) {
      return "it copies from before its beginning";
    }
    if (length > out_.size() - made_) {
      return "it holds more bytes than its header says";
    }
    char* to = out_.data() + made_;
    const char* from = to - offset;
    made_ += length;
    // What is copied may overlap its own end: then a period of `offset` bytes is repeated.
    while (length > 0) {
      const size_t step = std::min(length, static_cast<size_t>(to - from));
      std::memcpy(to, from, step);
      to += step;
      length -= step;
    }
    return nullptr;
  }

 private:
  absl::string_view in_;
  std::string& out_;
  size_t made_ = 0;
};

// The rest of a length of LZ4 whose 4 bits were full.
const char* LongLength(Block& block, size_t* length) {
  uint32_t byte = 255;
  while (byte == 255) {
    if (block.at_end()) {
      return "it ends inside a length";
    }
    byte = block.Take(1);
    *length += byte;
  }
  return nullptr;
}

const char* Lz4Sequence(Block& block) {
  const uint32_t token = block.Take(1);
  size_t literal = token >> 4;
  const char* why = literal == 15 ? LongLength(block, &literal) : nullptr;
  why = why == nullptr ? block.Literal(literal) : why;
  if (why != nullptr || block.at_end()) {
    return why;  // The last sequence has no copy.
  }
  if (block.left() < 2) {
    return "it ends inside an offset";
  }
  const size_t offset = block.Take(2);
  size_t length = token & 15;
  why = length == 15 ? LongLength(block, &length) : nullptr;
  return why == nullptr ? block.Copy(offset, length + 4) : why;
}

const char* SnappyElement(Block& block) {
  const uint32_t tag = block.Take(1);
  const uint32_t kind = tag & 3;
  if (kind == 0) {
    size_t length = tag >> 2;
    if (length >= 60) {
      const size_t bytes = length - 59;
      if (block.left() < bytes) {
        return "it ends inside a length";
      }
      length = block.Take(bytes);
    }
    return block.Literal(length + 1);
  }
  constexpr size_t kOffsetBytes[] = {0, 1, 2, 4};
  if (block.left() < kOffsetBytes[kind]) {
    return "it ends inside an offset";
  }
  const size_t low = block.Take(kOffsetBytes[kind]);
  return kind == 1 ? block.Copy((tag >> 5) << 8 | low, ((tag >> 2) & 7) + 4)
                   : block.Copy(low, (tag >> 2) + 1);
}

}  // namespace

absl::Status DecompressSnappy(absl::string_view block, size_t bytes, std::string* out) {
  constexpr int kLengthBits = 32;
  const absl::StatusOr<uint64_t> length = TakeVarint(&block, kLengthBits);
  if (!length.ok()) {
    return BadBlock(absl::IsOutOfRange(length.status()) ? "it ends inside its header"
                                                        : "its header is no length");
  }
  if (*length != bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("it holds %d bytes, but the page's header says %d", *length, bytes));
  }
  constexpr size_t kRatioMax = 22;  // 64 bytes for each copy of 3 bytes.
  if (bytes / kRatioMax > block.size()) {
    return BadBlock("it is too short for what it should hold");
  }
  Block state(block, bytes, out);
  while (!state.at_end()) {
    if (const char* why = SnappyElement(state); why != nullptr) {
      return BadBlock(why);
    }
  }
  return state.is_whole() ? absl::OkStatus() : BadBlock("it ends too early");
}

absl::Status DecompressLz4(absl::string_view block, size_t bytes, std::string* out) {
  constexpr size_t kRatioMax = 256;  // Each byte of a length stands for 255 bytes.
  if (bytes / kRatioMax > block.size()) {
    return BadBlock("it is too short for what it should hold");
  }
  Block state(block, bytes, out);
  while (!state.at_end()) {
    if (const char* why = Lz4Sequence(state); why != nullptr) {
      return BadBlock(why);
    }
  }
  return state.is_whole() ? absl::OkStatus() : BadBlock("it ends too early");
}

}  // namespace dtrain::plan::parquet
