#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_library.h"

#include <sentencepiece_processor.h>

namespace dtrain::plan {
namespace {

class Library : public SentencePieceLibrary {
 public:
  sentencepiece::util::Status Read(const std::string& model) {
    return processor_.LoadFromSerializedProto(model);
  }

  bool Encode(const std::string& text, std::vector<int>* ids, std::string* error) const override {
    const auto status = processor_.Encode(text, ids);
    *error = status.ok() ? "" : status.ToString();
    return status.ok();
  }
  std::string Decode(const std::vector<int>& ids) const override {
    std::string text;
    return processor_.Decode(ids, &text).ok() ? text : "";
  }

  int size() const override { return processor_.GetPieceSize(); }
  int begin_id() const override { return processor_.bos_id(); }
  int end_id() const override { return processor_.eos_id(); }
  int IdOf(const std::string& piece) const override { return processor_.PieceToId(piece); }
  std::string PieceOf(int id) const override { return processor_.IdToPiece(id); }
  bool IsControl(int id) const override { return processor_.IsControl(id); }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<SentencePieceLibrary> SentencePieceLibrary::Load(const std::string& model,
                                                                 std::string* error) {
  auto library = std::make_unique<Library>();
  if (const auto status = library->Read(model); !status.ok()) {
    *error = status.ToString();
    return nullptr;
  }
  return library;
}

}  // namespace dtrain::plan
