// A byte-level tokenizer.json of five merges, for tests. Ids: 0 to 255 are bytes.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "runtime/plan/tokenizer/unicode/byte_alphabet.h"

namespace dtrain::plan {

// 256 "he", 257 "ll", 258 "hell", 259 "hello", 260 " w"; 261 "<|end|>" is special, 262 "<x>" is
// not.
inline std::string SmallTokenizerJson() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string letter = LettersOfBytes(std::string(1, static_cast<char>(byte)));
    absl::StrAppend(&vocab, DumpJson(Json(letter)), ":", byte, ",");
  }
  return absl::StrCat(
      R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
      {"id": 261, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 262, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": true, "special": false}],
      "normalizer": null,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                        "use_regex": true},
      "post_processor": {"type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "<|end|>", "type_id": 0}}],
        "pair": [], "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [261],
                                                   "tokens": ["<|end|>"]}}},
      "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                  "use_regex": true},
      "model": {"type": "BPE", "dropout": null, "unk_token": null,
        "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
        "byte_fallback": false, "ignore_merges": false, "vocab": {)",
      vocab,
      R"("he": 256, "ll": 257, "hell": 258, "hello": 259, "\u0120w": 260},
        "merges": ["h e", "l l", "he ll", ["hell", "o"], ["\u0120", "w"]]}})");
}

}  // namespace dtrain::plan
