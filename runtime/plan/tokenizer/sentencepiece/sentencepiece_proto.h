// Reads SentencePiece's model files: what encoding and decoding need of their protobuf message
// ModelProto (sentencepiece_model.proto of google/sentencepiece). Pure; any input is safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::plan {

struct SentencePieceProto {
  // Models with pieces of other types are left to the library.
  enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6 };
  static constexpr int kUnigramModel = 1;
  static constexpr int kBpeModel = 2;

  struct Piece {
    std::string text;
    float score = 0;
    int type = kNormal;
  };
  // A field that a file leaves out has the message's default.
  std::vector<Piece> pieces;
  int model_type = kUnigramModel;
  bool byte_fallback = false;
  bool whitespace_is_suffix = false;
  std::string charsmap;  // NormalizerSpec.precompiled_charsmap.
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool changes_decoded_text = false;  // DenormalizerSpec has a map of characters.
  std::string begin_piece = "<s>";
  std::string end_piece = "</s>";
  std::string unknown_surface = " \xE2\x81\x87 ";  // The text of the unknown piece.
};

// The byte of a piece such as "<0x0A>", or -1.
int ByteOfPiece(absl::string_view text);

// InvalidArgument: it is no such message, or ends in the middle; fields that are not known are
// skipped.
absl::StatusOr<SentencePieceProto> ParseSentencePieceProto(absl::string_view model);

}  // namespace dtrain::plan
