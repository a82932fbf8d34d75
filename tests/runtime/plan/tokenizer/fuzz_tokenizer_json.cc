// Fuzz target for tokenizer.json: a file that loads encodes any text, and its ids are below its
// size.
#include "base/check.h"
#include "runtime/plan/tokenizer/tokenizer_json.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/runtime/plan/tokenizer/small_vocabulary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const absl::string_view text(reinterpret_cast<const char*>(data), bytes);
  const auto tokenizer = dtrain::plan::TokenizerFromJson(text, "fuzz");
  if (tokenizer.ok()) {
    const absl::string_view tail = text.substr(text.size() > 200 ? text.size() - 200 : 0);
    for (const absl::string_view sample :
         {absl::string_view("hello w\xC3\xA9<|end|> <x>\xFF 1"), tail}) {
      std::vector<uint32_t> ids;
      if ((*tokenizer)->Encode(sample, {}, &ids).ok()) {
        for (const uint32_t id : ids) {
          DT_CHECK_LT(id, (*tokenizer)->vocab_size());
        }
        (*tokenizer)->Decode(ids);
      }
    }
  }
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  return {
      // The file has few tokens, so that a change often hits a rule.
      R"({"added_tokens":[{"id":4,"content":"<s>","lstrip":true,"rstrip":true,"single_word":true,)"
      R"("normalized":true,"special":true}],"normalizer":{"type":"Sequence","normalizers":[)"
      R"({"type":"NFKC"},{"type":"Prepend","prepend":"_"},{"type":"Replace","pattern":)"
      R"({"Regex":"l+"},"content":"h"},{"type":"Strip","strip_left":true,"strip_right":true}]},)"
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":)"
      R"({"Regex":"\\p{L}+|\\s"},"behavior":"MergedWithPrevious","invert":false},)"
      R"({"type":"Digits","individual_digits":true},{"type":"Metaspace","replacement":"_",)"
      R"("prepend_scheme":"first","split":true}]},"decoder":{"type":"Sequence","decoders":[)"
      R"({"type":"Replace","pattern":{"String":"_"},"content":" "},{"type":"ByteFallback"},)"
      R"({"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},"model":{"type":)"
      R"("BPE","unk_token":"h","fuse_unk":true,"byte_fallback":true,"vocab":{"h":0,"e":1,"he":2,)"
      R"("<0xFF>":3},"merges":["h e"]}})",
      R"({"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,)"
      R"("strip_accents":null,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},)"
      R"("decoder":{"type":"WordPiece","prefix":"##","cleanup":true},"model":{"type":"WordPiece",)"
      R"("unk_token":"u","continuing_subword_prefix":"##","max_input_chars_per_word":9,"vocab":)"
      R"({"u":0,"h":1,"##e":2,"##ll":3,"w":4}}})",
      R"({"normalizer":{"type":"Sequence","normalizers":[{"type":"Lowercase"},{"type":)"
      R"("StripAccents"},{"type":"Precompiled","precompiled_charsmap":"CAAAAAAAAAAAAAAAYQA="}]},)"
      R"("pre_tokenizer":{"type":"WhitespaceSplit"},"model":{"type":"Unigram","unk_id":0,)"
      R"("byte_fallback":true,"vocab":[["u",0.0],["he",-1.5],["l",-2],["<0xC3>",-9]]}})",
      plan::SmallTokenizerJson(),
      // A tekken.json, whose vocabulary lacks bytes: its reading alone is tried.
      R"({"config":{"pattern":"\\p{L}+| ","default_vocab_size":3,"default_num_special_tokens":1,)"
      R"("version":"v3"},"vocab":[{"rank":0,"token_bytes":"aA==","token_str":"h"},{"rank":1,)"
      R"("token_bytes":"aGU="}],"special_tokens":[{"rank":0,"token_str":"<s>"}]})"};
}
