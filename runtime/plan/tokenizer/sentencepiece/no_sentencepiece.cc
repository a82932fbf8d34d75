// TokenizerFromSentencePiece of programs that are linked without libsentencepiece, because it
// brings another protobuf than LibTorch's.
#include "absl/strings/str_format.h"
#include "runtime/plan/tokenizer/sentencepiece_model.h"

namespace dtrain::plan {

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromSentencePiece(absl::string_view /*model*/,
                                                                      const std::string& name) {
  return absl::UnimplementedError(absl::StrFormat(
      "%s is read by libsentencepiece, which cannot be in one program with LibTorch; put a "
      "tokenizer.json beside it, as AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) "
      "of transformers writes it",
      name));
}

}  // namespace dtrain::plan
