// SentencePieceCodec::OfLibrary of programs that are linked without libsentencepiece, because it
// brings another protobuf than LibTorch's.
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_codec.h"

namespace dtrain::plan {

std::unique_ptr<SentencePieceCodec> SentencePieceCodec::OfLibrary(const std::string& /*model*/,
                                                                  std::string* error) {
  *error =
      "it needs libsentencepiece, which cannot be in one program with LibTorch; put a "
      "tokenizer.json beside it, as AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) "
      "of transformers writes it";
  return nullptr;
}

}  // namespace dtrain::plan
