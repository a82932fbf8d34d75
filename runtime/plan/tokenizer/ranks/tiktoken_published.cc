#include "runtime/plan/tokenizer/ranks/tiktoken_published.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace dtrain::plan {
namespace {

using Specials = std::vector<std::pair<std::string, uint32_t>>;

// Tokens with running ids, the first one `id`.
void Append(const std::vector<std::string>& texts, Specials* specials, uint32_t id) {
  for (const std::string& text : texts) {
    specials->emplace_back(text, id++);
  }
}

// `text` with {} replaced by the numbers [first, first + count).
std::vector<std::string> Numbered(const char* text, int first, int count) {
  std::vector<std::string> texts;
  for (int i = first; i < first + count; ++i) {
    texts.push_back(absl::StrReplaceAll(text, {{"{}", absl::StrCat(i)}}));
  }
  return texts;
}

void Join(std::vector<std::string>* texts, const std::vector<std::string>& others) {
  texts->insert(texts->end(), others.begin(), others.end());
}

Specials Gpt2() { return {{"<|endoftext|>", 50256}}; }

Specials Cl100k() {
  return {{"<|endoftext|>", 100257},
          {"<|fim_prefix|>", 100258},
          {"<|fim_middle|>", 100259},
          {"<|fim_suffix|>", 100260},
          {"<|endofprompt|>", 100276}};
}

Specials O200k() { return {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}; }

Specials Llama3() {
  std::vector<std::string> texts = {"<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|reserved_special_token_0|>",
                                    "<|reserved_special_token_1|>",
                                    "<|finetune_right_pad_id|>",
                                    "<|step_id|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eom_id|>",
                                    "<|eot_id|>",
                                    "<|python_tag|>",
                                    "<|image|>"};
  Join(&texts, Numbered("<|reserved_special_token_{}|>", 2, 244));
  Specials specials;
  Append(texts, &specials, 128000);
  return specials;
}

Specials Llama4() {
  std::vector<std::string> texts = {
      "<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
      "<|header_start|>",  "<|header_end|>",  "<|eom|>",        "<|eot|>",        "<|step|>"};
  Join(&texts, Numbered("<|text_post_train_reserved_special_token_{}|>", 0, 6));
  Join(&texts, {"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"});
  Join(&texts, Numbered("<|text_post_train_reserved_special_token_{}|>", 8, 61));
  Join(&texts,
       {"<|image_start|>", "<|image_end|>", "<|vision_reserved_special_token_0|>",
        "<|vision_reserved_special_token_1|>", "<|tile_x_separator|>", "<|tile_y_separator|>"});
  Join(&texts, Numbered("<|vision_reserved_special_token_{}|>", 2, 4));
  Join(&texts, {"<|image|>", "<|vision_reserved_special_token_6|>", "<|patch|>"});
  Join(&texts, Numbered("<|vision_reserved_special_token_{}|>", 7, 1041));
  Join(&texts, Numbered("<|reasoning_reserved_special_token_{}|>", 0, 8));
  Join(&texts, {"<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"});
  Join(&texts, Numbered("<|reserved_special_token_{}|>", 0, 2048 - static_cast<int>(texts.size())));
  Specials specials;
  Append(texts, &specials, 200000);
  return specials;
}

Specials Qwen() {
  std::vector<std::string> texts = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  Join(&texts, Numbered("<|extra_{}|>", 0, 205));
  Specials specials;
  Append(texts, &specials, 151643);
  return specials;
}

const PublishedRanks kPublished[] = {
    {50256, "gpt2", "", "", "<|endoftext|>", Gpt2},  // r50k_base.
    {50280, "gpt2", "", "", "<|endoftext|>", Gpt2},  // p50k_base, which leaves out 50256.
    {100256, "cl100k", "", "", "<|endoftext|>", Cl100k},
    {199998, "o200k", "", "", "<|endoftext|>", O200k},
    {128000, "llama3", "", "<|begin_of_text|>", "<|end_of_text|>", Llama3},
    {200000, "o200k", "", "<|begin_of_text|>", "<|end_of_text|>", Llama4},
    {151643, "qwen2", "NFC", "", "<|endoftext|>", Qwen},
};

}  // namespace

const PublishedRanks* FindPublished(size_t ranks) {
  for (const PublishedRanks& published : kPublished) {
    if (published.ranks == ranks) {
      return &published;
    }
  }
  return nullptr;
}

}  // namespace dtrain::plan
