// An encoder for tests: bytes as tokens, and the special tokens of the chat templates behind them.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "runtime/plan/data/text/text_encoder.h"

namespace dtrain::plan {

class ByteChatEncoder final : public TextEncoder {
 public:
  static constexpr std::array<const char*, 6> kSpecials = {
      "<|im_start|>",        "<|im_end|>",        "<|begin_of_text|>",
      "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  static constexpr uint32_t kEnd = 256 + 6;

  ByteChatEncoder() {
    kind_ = "bytes of a test";
    identity_ = "test";
    vocabulary_ = kEnd + 1;
    end_token_ = kEnd;
  }
  absl::Status Encode(absl::string_view text, std::vector<uint32_t>* ids) const override {
    if (text.find("<refuse>") != absl::string_view::npos) {
      return absl::InvalidArgumentError("this text has no tokens");
    }
    for (const char c : text) {
      ids->push_back(static_cast<unsigned char>(c));
    }
    return absl::OkStatus();
  }
  std::string Decode(absl::Span<const uint32_t> ids) const override {
    std::string text;
    for (const uint32_t id : ids) {
      if (id < 256) {
        text += static_cast<char>(id);
      } else {
        text += id == kEnd ? "<end>" : kSpecials[id - 256];
      }
    }
    return text;
  }
  std::optional<uint32_t> TokenId(absl::string_view token) const override {
    for (uint32_t i = 0; i < kSpecials.size(); ++i) {
      if (token == kSpecials[i]) {
        return 256 + i;
      }
    }
    return std::nullopt;
  }
};

}  // namespace dtrain::plan
