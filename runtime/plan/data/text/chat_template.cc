#include "runtime/plan/data/text/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "runtime/plan/data/token_mask.h"
#include "runtime/plan/tokenizer/unicode/char_classes.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

struct Named {
  const char* name;
  ChatTemplate chat;
  std::vector<const char*> specials;
};

const std::vector<Named>& Templates() {
  static const std::vector<Named> templates = {
      {"chatml", ChatTemplate::kChatMl, {"<|im_start|>", "<|im_end|>"}},
      {"llama3",
       ChatTemplate::kLlama3,
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {"qwen", ChatTemplate::kQwen, {"<|im_start|>", "<|im_end|>"}},
      {"alpaca", ChatTemplate::kAlpaca, {}},
      {"plain", ChatTemplate::kPlain, {}}};
  return templates;
}

// Qwen2.5 puts this first where a conversation has no system text.
constexpr char kQwenSystem[] =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

// The texts of Stanford Alpaca.
constexpr char kAlpacaTask[] =
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n";
constexpr char kAlpacaTaskWithInput[] =
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n";

class Pieces {
 public:
  void Text(absl::string_view text, bool trained = false) {
    if (text.empty()) {
      return;
    }
    if (!all_.empty() && all_.back().kind == Piece::Kind::kText && all_.back().trained == trained) {
      absl::StrAppend(&all_.back().text, text);
      return;
    }
    all_.push_back({Piece::Kind::kText, std::string(text), trained});
  }
  void Special(const char* token, bool trained = false) {
    all_.push_back({Piece::Kind::kSpecial, token, trained});
  }
  void End(bool trained) { all_.push_back({Piece::Kind::kEndToken, "", trained}); }
  std::vector<Piece> Take() { return std::move(all_); }

 private:
  std::vector<Piece> all_;
};

std::vector<Piece> ChatMl(const Conversation& conversation, bool is_qwen) {
  Pieces pieces;
  const auto turn = [&](absl::string_view role, absl::string_view content, bool trained) {
    pieces.Special("<|im_start|>");
    pieces.Text(absl::StrCat(role, "\n"));
    pieces.Text(content, trained);
    pieces.Special("<|im_end|>", trained);
    pieces.Text("\n");
  };
  const std::vector<Turn>& turns = conversation.turns;
  if (is_qwen && turns.front().role != Role::kSystem) {
    turn("system", kQwenSystem, false);
  }
  std::string answers;  // Qwen's tools answer in the user's name, all in a row in one turn.
  for (size_t i = 0; i < turns.size(); ++i) {
    const Role role = turns[i].role;
    if (!is_qwen || role != Role::kTool) {
      turn(RoleName(role), turns[i].content, role == Role::kAssistant);
      continue;
    }
    absl::StrAppend(&answers, answers.empty() ? "" : "\n", "<tool_response>\n", turns[i].content,
                    "\n</tool_response>");
    if (i + 1 == turns.size() || turns[i + 1].role != Role::kTool) {
      turn("user", std::exchange(answers, ""), false);
    }
  }
  return pieces.Take();
}

// `text` without what Python's strip() removes, which the model's own template calls: the spaces of
// all scripts, such as those that begin a paragraph of Chinese, and four control characters.
// REQUIRES: `text` is UTF-8.
absl::string_view WithoutBlanksAround(absl::string_view text) {
  const CharClasses& classes = CharClasses::Get();
  size_t begin = text.size();  // The first character that is no blank stands here.
  size_t end = 0;              // The last one ends here.
  for (size_t i = 0; i < text.size();) {
    const size_t at = i;
    const uint32_t c = NextCodePoint(text, &i);
    if ((classes.Of(c) & kSpace) == 0 && (c < 0x1c || c > 0x1f)) {
      begin = std::min(begin, at);
      end = i;
    }
  }
  return begin < end ? text.substr(begin, end - begin) : "";
}

std::vector<Piece> Llama3(const Conversation& conversation) {
  Pieces pieces;
  pieces.Special("<|begin_of_text|>");
  for (const Turn& said : conversation.turns) {
    const bool trained = said.role == Role::kAssistant;
    const bool is_tool = said.role == Role::kTool;  // Llama 3.1 writes what it says as JSON.
    pieces.Special("<|start_header_id|>");
    pieces.Text(is_tool ? "ipython" : RoleName(said.role));
    pieces.Special("<|end_header_id|>");
    pieces.Text("\n\n");
    std::string storage;
    const absl::string_view text = RepairedUtf8(said.content, &storage);
    if (is_tool) {
      pieces.Text(DumpJson(Json(std::string(text))));
    } else {
      pieces.Text(WithoutBlanksAround(text), trained);
    }
    pieces.Special("<|eot_id|>", trained);
  }
  return pieces.Take();
}

std::vector<Piece> Alpaca(const Conversation& conversation) {
  Pieces pieces;
  bool is_first = true;
  for (const Turn& said : conversation.turns) {
    switch (said.role) {
      case Role::kAssistant:
        pieces.Text(said.content, true);
        pieces.End(true);
        continue;
      case Role::kUser:
        pieces.Text(is_first ? (conversation.input.empty() ? kAlpacaTask : kAlpacaTaskWithInput)
                             : "\n\n");
        pieces.Text(absl::StrCat("### Instruction:\n", said.content, "\n\n"));
        if (is_first && !conversation.input.empty()) {
          pieces.Text(absl::StrCat("### Input:\n", conversation.input, "\n\n"));
        }
        pieces.Text("### Response:\n");
        is_first = false;
        continue;
      default:  // A system text stands in place of Alpaca's own; tools are refused before.
        pieces.Text(absl::StrCat(said.content, "\n\n"));
        is_first = false;
    }
  }
  return pieces.Take();
}

std::vector<Piece> Plain(const Conversation& conversation) {
  Pieces pieces;
  for (const Turn& said : conversation.turns) {
    const bool trained = said.role == Role::kAssistant;
    pieces.Text(said.content, trained);
    if (trained) {
      pieces.End(true);
    }
  }
  return pieces.Take();
}

// Alpaca's input follows the instruction where a template has no place of its own for it.
Conversation WithInput(Conversation conversation) {
  if (!conversation.input.empty()) {
    for (Turn& said : conversation.turns) {
      if (said.role == Role::kUser) {
        absl::StrAppend(&said.content, "\n", conversation.input);
        break;
      }
    }
  }
  return conversation;
}

const Named& Find(ChatTemplate chat) {
  return *std::find_if(Templates().begin(), Templates().end(),
                       [&](const Named& named) { return named.chat == chat; });
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplateFromName(absl::string_view name) {
  for (const Named& named : Templates()) {
    if (name == named.name) {
      return named.chat;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("template \"%s\" is unknown; allowed: %s", name,
                      absl::StrJoin(Templates(), ", ", [](std::string* out, const Named& named) {
                        absl::StrAppend(out, named.name);
                      })));
}

absl::Status CheckTemplate(ChatTemplate chat, const TextEncoder& encoder) {
  const Named& named = Find(chat);
  for (const char* token : named.specials) {
    if (!encoder.TokenId(token).has_value()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the template %s needs the token %s, which the tokenizer (%s, %d tokens) does not have; "
          "take the template of its model, or alpaca or plain",
          named.name, token, encoder.kind(), encoder.vocabulary()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Piece>> Render(ChatTemplate chat, const Conversation& conversation) {
  const bool has_tool = std::any_of(conversation.turns.begin(), conversation.turns.end(),
                                    [](const Turn& said) { return said.role == Role::kTool; });
  if (has_tool && (chat == ChatTemplate::kAlpaca || chat == ChatTemplate::kPlain)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "it has a turn of a tool, which the template %s cannot write", Find(chat).name));
  }
  switch (chat) {
    case ChatTemplate::kChatMl:
      return ChatMl(WithInput(conversation), /*is_qwen=*/false);
    case ChatTemplate::kQwen:
      return ChatMl(WithInput(conversation), /*is_qwen=*/true);
    case ChatTemplate::kLlama3:
      return Llama3(WithInput(conversation));
    case ChatTemplate::kAlpaca:
      return Alpaca(conversation);
    case ChatTemplate::kPlain:
      return Plain(WithInput(conversation));
  }
  return absl::InternalError("a template without a writer");
}

int64_t EncodedSample::trained() const {
  return std::count_if(mask.begin(), mask.end(),
                       [](uint8_t bits) { return (bits & kMaskTrained) != 0; });
}

absl::Status EncodePieces(const std::vector<Piece>& pieces, const TextEncoder& encoder,
                          EncodedSample* sample) {
  for (const Piece& piece : pieces) {
    if (piece.kind == Piece::Kind::kText) {
      DT_RETURN_IF_ERROR(encoder.Encode(piece.text, &sample->ids));
    } else {
      const auto id =
          piece.kind == Piece::Kind::kEndToken ? encoder.end_token() : encoder.TokenId(piece.text);
      if (!id.has_value()) {
        return absl::InternalError(absl::StrCat("no token ", piece.text));
      }
      sample->ids.push_back(*id);
    }
    sample->mask.resize(sample->ids.size(), piece.trained ? kMaskTrained : uint8_t{0});
  }
  if (!sample->mask.empty()) {
    sample->mask[0] |= kMaskStart;
  }
  return absl::OkStatus();
}

}  // namespace dtrain::plan
