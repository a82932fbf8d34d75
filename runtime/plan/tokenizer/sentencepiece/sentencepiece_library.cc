#include <sentencepiece_processor.h>

#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_codec.h"

namespace dtrain::plan {
namespace {

class LibraryCodec : public SentencePieceCodec {
 public:
  sentencepiece::util::Status Read(const std::string& model) {
    return processor_.LoadFromSerializedProto(model);
  }

  bool Encode(std::string_view text, std::vector<uint32_t>* ids,
              std::string* error) const override {
    std::vector<int> found;
    const auto status = processor_.Encode({text.data(), text.size()}, &found);
    *error = status.ok() ? "" : status.ToString();
    ids->insert(ids->end(), found.begin(), found.end());
    return status.ok();
  }
  std::string Decode(const std::vector<uint32_t>& ids) const override {
    std::string text;
    return processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text).ok() ? text : "";
  }

  uint32_t size() const override { return static_cast<uint32_t>(processor_.GetPieceSize()); }
  int begin_id() const override { return processor_.bos_id(); }
  int end_id() const override { return processor_.eos_id(); }
  int IdOf(const std::string& piece) const override { return processor_.PieceToId(piece); }
  std::string PieceOf(uint32_t id) const override {
    return processor_.IdToPiece(static_cast<int>(id));
  }
  bool IsControl(uint32_t id) const override { return processor_.IsControl(static_cast<int>(id)); }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<SentencePieceCodec> SentencePieceCodec::OfLibrary(const std::string& model,
                                                                  std::string* error) {
  auto codec = std::make_unique<LibraryCodec>();
  if (const auto status = codec->Read(model); !status.ok()) {
    *error = status.ToString();
    return nullptr;
  }
  return codec;
}

}  // namespace dtrain::plan
