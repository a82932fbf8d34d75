#include "runtime/plan/tokenizer/sentencepiece/native_codec.h"

#include <utility>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/text/utf8.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

// Moves `bytes` to `text`: each character as it is, and U+FFFD for each byte of none.
void FlushBytes(std::string* bytes, std::string* text) {
  for (absl::string_view left = *bytes; !left.empty();) {
    const absl::string_view character = left.substr(0, Utf8Length(left[0]));
    if (IsUtf8(character)) {
      text->append(character.data(), character.size());
      left.remove_prefix(character.size());
    } else {
      text->append("\xEF\xBF\xBD");
      left.remove_prefix(1);
    }
  }
  bytes->clear();
}

}  // namespace

std::unique_ptr<NativeCodec> NativeCodec::Create(SentencePieceProto proto) {
  if (proto.changes_decoded_text) {
    return nullptr;
  }
  std::unique_ptr<NativeCodec> codec(new NativeCodec(std::move(proto)));
  return codec->bpe_ == nullptr && codec->unigram_ == nullptr ? nullptr : std::move(codec);
}

NativeCodec::NativeCodec(SentencePieceProto proto)
    : proto_(std::move(proto)),
      bpe_(SentencePieceBpe::Create(proto_)),
      unigram_(SentencePieceUnigram::Create(proto_)) {
  // If a reserved and a normal piece have one text, the library finds the reserved one.
  for (const bool reserved : {true, false}) {
    for (size_t id = 0; id < proto_.pieces.size(); ++id) {
      const SentencePieceProto::Piece& piece = proto_.pieces[id];
      if ((piece.type != SentencePieceProto::kNormal) == reserved) {
        ids_.emplace(piece.text, static_cast<int>(id));
      }
      if (piece.type == SentencePieceProto::kUnknown) {
        unknown_ = static_cast<int>(id);
      }
    }
  }
}

int NativeCodec::IdOf(const std::string& piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? unknown_ : found->second;
}

int NativeCodec::ControlId(const std::string& piece) const {
  const int id = IdOf(piece);
  return IsControl(static_cast<uint32_t>(id)) ? id : -1;
}

bool NativeCodec::Encode(std::string_view text, std::vector<uint32_t>* ids,
                         std::string* /*error*/) const {
  const absl::string_view view(text.data(), text.size());
  bpe_ != nullptr ? bpe_->Encode(view, ids) : unigram_->Encode(view, ids);
  return true;
}

std::string NativeCodec::Decode(const std::vector<uint32_t>& ids) const {
  std::string text;
  std::string bytes;
  // The space that was put before a text is left out again, and with it all spaces at the start
  // where extra ones are removed.
  bool strips = proto_.add_dummy_prefix || proto_.remove_extra_whitespaces;
  for (const uint32_t id : ids) {
    const SentencePieceProto::Piece& piece = proto_.pieces[id];
    if (piece.type == SentencePieceProto::kByte) {
      bytes.push_back(static_cast<char>(ByteOfPiece(piece.text)));
      continue;
    }
    FlushBytes(&bytes, &text);
    strips = strips && text.empty();
    if (piece.type == SentencePieceProto::kUnknown) {
      text += proto_.unknown_surface;
    } else if (piece.type == SentencePieceProto::kNormal) {
      absl::string_view shown = piece.text;
      if (strips && absl::ConsumePrefix(&shown, kSentencePieceSpace)) {
        strips = proto_.remove_extra_whitespaces;
      }
      text += absl::StrReplaceAll(shown, {{kSentencePieceSpace, " "}});
    }
  }
  FlushBytes(&bytes, &text);
  return text;
}

}  // namespace dtrain::plan
