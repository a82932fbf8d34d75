#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_proto.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

// One field of a protobuf message, by its wire type: a number or bytes.
struct WireField {
  uint64_t number = 0;
  uint64_t value = 0;  // Varints and fixed widths.
  absl::string_view bytes;
};

class WireReader {
 public:
  explicit WireReader(absl::string_view message) : left_(message) {}

  bool at_end() const { return left_.empty(); }

  absl::StatusOr<WireField> Next() {
    WireField field;
    DT_ASSIGN_OR_RETURN(const uint64_t tag, Varint());
    field.number = tag >> 3;
    switch (tag & 7) {
      case 0: {
        DT_ASSIGN_OR_RETURN(field.value, Varint());
        return field;
      }
      case 1:
        return Fixed(8, field);
      case 2: {
        DT_ASSIGN_OR_RETURN(const uint64_t size, Varint());
        if (size > left_.size()) {
          return Damaged("a field is longer than its message");
        }
        field.bytes = left_.substr(0, size);
        left_.remove_prefix(size);
        return field;
      }
      case 5:
        return Fixed(4, field);
      default:
        return Damaged("a field has an unknown wire type");
    }
  }

 private:
  static absl::Status Damaged(const char* why) {
    return absl::InvalidArgumentError(absl::StrFormat("no SentencePiece model: %s", why));
  }

  absl::StatusOr<uint64_t> Varint() {
    uint64_t value = 0;
    for (size_t i = 0; i < 10 && i < left_.size(); ++i) {
      const auto byte = static_cast<uint8_t>(left_[i]);
      value |= uint64_t{byte & 127U} << (7 * i);
      if (byte < 128) {
        left_.remove_prefix(i + 1);
        return value;
      }
    }
    return Damaged("a number has no end");
  }

  absl::StatusOr<WireField> Fixed(size_t width, WireField field) {
    if (left_.size() < width) {
      return Damaged("it ends within a number");
    }
    std::memcpy(&field.value, left_.data(), width);
    left_.remove_prefix(width);
    return field;
  }

  absl::string_view left_;
};

// Calls `take` for each field of a message.
template <typename Take>
absl::Status ForEachWireField(absl::string_view message, const Take& take) {
  WireReader reader(message);
  while (!reader.at_end()) {
    DT_ASSIGN_OR_RETURN(const WireField field, reader.Next());
    DT_RETURN_IF_ERROR(take(field));
  }
  return absl::OkStatus();
}

absl::Status ReadPiece(absl::string_view message, SentencePieceProto::Piece* piece) {
  return ForEachWireField(message, [&](const WireField& field) {
    if (field.number == 1) {
      piece->text = std::string(field.bytes);
    } else if (field.number == 2) {
      const auto bits = static_cast<uint32_t>(field.value);
      std::memcpy(&piece->score, &bits, sizeof(bits));
    } else if (field.number == 3) {
      piece->type = static_cast<int>(field.value);
    }
    return absl::OkStatus();
  });
}

absl::Status ReadTrainerSpec(absl::string_view message, SentencePieceProto* proto) {
  return ForEachWireField(message, [&](const WireField& field) {
    if (field.number == 3) {
      proto->model_type = static_cast<int>(field.value);
    } else if (field.number == 24) {
      proto->whitespace_is_suffix = field.value != 0;
    } else if (field.number == 35) {
      proto->byte_fallback = field.value != 0;
    } else if (field.number == 44) {
      proto->unknown_surface = std::string(field.bytes);
    } else if (field.number == 46) {
      proto->begin_piece = std::string(field.bytes);
    } else if (field.number == 47) {
      proto->end_piece = std::string(field.bytes);
    }
    return absl::OkStatus();
  });
}

absl::Status ReadNormalizerSpec(absl::string_view message, SentencePieceProto* proto) {
  return ForEachWireField(message, [&](const WireField& field) {
    if (field.number == 2) {
      proto->charsmap = std::string(field.bytes);
    } else if (field.number == 3) {
      proto->add_dummy_prefix = field.value != 0;
    } else if (field.number == 4) {
      proto->remove_extra_whitespaces = field.value != 0;
    } else if (field.number == 5) {
      proto->escape_whitespaces = field.value != 0;
    }
    return absl::OkStatus();
  });
}

absl::Status ReadDenormalizerSpec(absl::string_view message, SentencePieceProto* proto) {
  return ForEachWireField(message, [&](const WireField& field) {
    if (field.number == 2 && !field.bytes.empty()) {
      proto->changes_decoded_text = true;
    }
    return absl::OkStatus();
  });
}

}  // namespace

int ByteOfPiece(absl::string_view text) {
  uint32_t byte = 0;
  const bool is_byte = text.size() == 6 && absl::StartsWith(text, "<0x") && text[5] == '>' &&
                       absl::SimpleHexAtoi(text.substr(3, 2), &byte);
  return is_byte && text == absl::StrFormat("<0x%02X>", byte) ? static_cast<int>(byte) : -1;
}

absl::StatusOr<SentencePieceProto> ParseSentencePieceProto(absl::string_view model) {
  SentencePieceProto proto;
  DT_RETURN_IF_ERROR(ForEachWireField(model, [&](const WireField& field) -> absl::Status {
    if (field.number == 1) {
      return ReadPiece(field.bytes, &proto.pieces.emplace_back());
    }
    return field.number == 2   ? ReadTrainerSpec(field.bytes, &proto)
           : field.number == 3 ? ReadNormalizerSpec(field.bytes, &proto)
           : field.number == 5 ? ReadDenormalizerSpec(field.bytes, &proto)
                               : absl::OkStatus();
  }));
  return proto;
}

}  // namespace dtrain::plan
