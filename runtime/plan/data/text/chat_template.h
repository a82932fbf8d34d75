// How a conversation is written for a model: the usual templates by name, and which of their tokens
// are trained on. Pure; thread-safe.
//
// A piece is text between two special tokens, or one such token. Texts of the conversation never
// become special tokens: "<|im_end|>" in an answer is text. Trained on are the answers of the
// assistant and the token that ends each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/data/text/records.h"
#include "runtime/plan/data/text/text_encoder.h"

namespace dtrain::plan {

struct Piece {
  enum class Kind { kText, kSpecial, kEndToken };  // The end token is the tokenizer's own.
  Kind kind = Kind::kText;
  std::string text;  // The token's text, for kSpecial.
  bool trained = false;
  bool operator==(const Piece&) const = default;
};

enum class ChatTemplate { kChatMl, kLlama3, kQwen, kAlpaca, kPlain };
// "chatml", "llama3", "qwen", "alpaca" or "plain"; InvalidArgument names them for another name.
absl::StatusOr<ChatTemplate> ChatTemplateFromName(absl::string_view name);

// InvalidArgument if the tokenizer lacks a special token of the template, which is named.
absl::Status CheckTemplate(ChatTemplate chat, const TextEncoder& encoder);

// The pieces of a conversation; neighbours of kText differ in `trained`. InvalidArgument: the
// template cannot say it (a tool's turn in Alpaca's).
absl::StatusOr<std::vector<Piece>> Render(ChatTemplate chat, const Conversation& conversation);

// Tokens and, for each, its bits of a mask (token_mask.h); the first one starts a sample.
struct EncodedSample {
  std::vector<uint32_t> ids;
  std::vector<uint8_t> mask;

  int64_t trained() const;
};
absl::Status EncodePieces(const std::vector<Piece>& pieces, const TextEncoder& encoder,
                          EncodedSample* sample);

}  // namespace dtrain::plan
