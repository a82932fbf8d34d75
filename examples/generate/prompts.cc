#include "generate/prompts.h"

#include <iostream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "generate/text_folder.h"
#include "runtime/plan/data/text/byte_source.h"
#include "runtime/plan/data/text/records.h"

namespace {

using dtrain::plan::Piece;

// The conversation with an answer still to come, and what ends such an answer.
absl::StatusOr<Prompt> EncodeChat(const std::string& text, const PromptOptions& options,
                                  const dtrain::plan::Tokenizer& tokenizer) {
  const auto encoder = EncoderOf(tokenizer);
  DT_RETURN_IF_ERROR(dtrain::plan::CheckTemplate(*options.chat, *encoder));
  dtrain::plan::Conversation conversation;
  if (!options.system.empty()) {
    conversation.turns.push_back({dtrain::plan::Role::kSystem, options.system});
  }
  conversation.turns.push_back({dtrain::plan::Role::kUser, text});
  conversation.turns.push_back({dtrain::plan::Role::kAssistant, "answer"});
  DT_ASSIGN_OR_RETURN(std::vector<Piece> pieces, dtrain::plan::Render(*options.chat, conversation));
  // The answer, which is all that is trained on, and the token that ends it.
  Prompt prompt;
  while (!pieces.empty() && !pieces.back().trained) {
    pieces.pop_back();
  }
  while (!pieces.empty() && pieces.back().trained) {
    if (pieces.back().kind == Piece::Kind::kSpecial) {
      prompt.stops.push_back(*tokenizer.TokenId(pieces.back().text));
    }
    pieces.pop_back();
  }
  dtrain::plan::EncodedSample sample;
  DT_RETURN_IF_ERROR(dtrain::plan::EncodePieces(pieces, *encoder, &sample));
  prompt.ids = std::move(sample.ids);
  return prompt;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadPrompts(const std::string& path) {
  std::string text;
  if (path == dtrain::plan::kStandardInput) {
    text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  } else {
    DT_ASSIGN_OR_RETURN(text, dtrain::ReadFile(path));
  }
  const bool is_json = absl::EndsWith(path, ".jsonl");
  std::vector<std::string> prompts;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripSuffix(line, "\r");
    if (absl::StripAsciiWhitespace(line).empty()) {
      continue;
    }
    if (!is_json) {
      prompts.emplace_back(line);
      continue;
    }
    auto prompt = dtrain::plan::ParseTextRecord(line, "prompt");
    DT_RETURN_IF_ERROR(dtrain::Annotate(prompt.status(), absl::StrCat(path, ":", number)));
    prompts.push_back(*std::move(prompt));
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s holds no prompt; write one on each line",
                        path == dtrain::plan::kStandardInput ? "standard input" : path));
  }
  return prompts;
}

absl::StatusOr<Prompt> EncodePrompt(const std::string& text, const PromptOptions& options,
                                    const dtrain::plan::Tokenizer& tokenizer) {
  if (options.chat.has_value()) {
    return EncodeChat(text, options, tokenizer);
  }
  Prompt prompt;
  DT_RETURN_IF_ERROR(
      tokenizer.Encode(text, {.special_tokens = true, .add_template = true}, &prompt.ids));
  return prompt;
}
