// Fuzz target for tiktoken's files: the bytes of the input are lines behind those of the 256 bytes.
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "runtime/plan/tokenizer/ranks/tiktoken_file.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

std::string Bytes() {
  std::string text;
  for (int rank = 0; rank < 256; ++rank) {
    absl::StrAppend(&text, absl::Base64Escape(std::string(1, static_cast<char>(rank))), " ", rank,
                    "\n");
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const std::string* const kBytes = new std::string(Bytes());
  const absl::string_view input(reinterpret_cast<const char*>(data), bytes);
  dtrain::plan::LooksLikeTiktoken(input);
  const auto tokenizer = dtrain::plan::TokenizerFromTiktoken(absl::StrCat(*kBytes, input), "fuzz",
                                                             {.pattern = "qwen2"});
  if (tokenizer.ok()) {
    std::vector<uint32_t> ids;
    DT_CHECK((*tokenizer)->Encode(input, {}, &ids).ok());
    for (const uint32_t id : ids) {
      DT_CHECK_LT(id, (*tokenizer)->vocab_size());
    }
  }
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  return {"dGg= 256\ndGhl 257\naW4= 258\n", "IHRoZQ== 256\r\n", ""};
}
