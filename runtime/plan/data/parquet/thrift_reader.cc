#include "runtime/plan/data/parquet/thrift_reader.h"

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/data/parquet/varint.h"

namespace dtrain::plan::parquet {

absl::Status ThriftReader::Wrong(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrFormat("%s at its byte %d", what, position_));
}

absl::StatusOr<uint8_t> ThriftReader::Byte() {
  if (position_ >= bytes_.size()) {
    return absl::OutOfRangeError("it ends too early");
  }
  return static_cast<uint8_t>(bytes_[position_++]);
}

absl::StatusOr<uint64_t> ThriftReader::Varint() {
  absl::string_view left = bytes_.substr(position_);
  absl::StatusOr<uint64_t> value = TakeVarint(&left);
  position_ = bytes_.size() - left.size();
  if (absl::IsInvalidArgument(value.status())) {
    return Wrong(value.status().message());
  }
  return value;
}

absl::StatusOr<int64_t> ThriftReader::ZigZag() {
  DT_ASSIGN_OR_RETURN(const uint64_t value, Varint());
  return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

absl::StatusOr<ThriftField> ThriftReader::FieldOf(uint8_t code, int64_t id) const {
  if (code < static_cast<uint8_t>(ThriftType::kTrue) ||
      code > static_cast<uint8_t>(ThriftType::kStruct)) {
    return Wrong("a value is of an unknown type");
  }
  return ThriftField{id, static_cast<ThriftType>(code)};
}

absl::Status ThriftReader::Struct(absl::FunctionRef<absl::Status(const ThriftField&)> member) {
  if (depth_ == kDepthMax) {
    return Wrong("structs are nested too deep");
  }
  ++depth_;
  int64_t id = 0;
  while (true) {
    DT_ASSIGN_OR_RETURN(const uint8_t head, Byte());
    if (head == 0) {
      --depth_;
      return absl::OkStatus();
    }
    if (head >> 4 != 0) {
      id += head >> 4;
    } else {
      DT_ASSIGN_OR_RETURN(id, ZigZag());
    }
    if (id < INT16_MIN || id > INT16_MAX) {
      return Wrong("the number of a member is out of range");
    }
    DT_ASSIGN_OR_RETURN(const ThriftField field, FieldOf(head & 0xf, id));
    const size_t before = position_;
    DT_RETURN_IF_ERROR(member(field));
    if (position_ == before) {
      // The value of a truth value is its type.
      const bool is_read = field.type == ThriftType::kTrue || field.type == ThriftType::kFalse;
      DT_RETURN_IF_ERROR(is_read ? absl::OkStatus() : Skip(field));
    }
  }
}

absl::Status ThriftReader::StructOf(const ThriftField& field,
                                    absl::FunctionRef<absl::Status(const ThriftField&)> member) {
  return field.type == ThriftType::kStruct ? Struct(member) : Wrong("a value is no struct");
}

absl::Status ThriftReader::ListOf(const ThriftField& field,
                                  absl::FunctionRef<absl::Status(const ThriftField&)> element) {
  if (field.type != ThriftType::kList && field.type != ThriftType::kSet) {
    return Wrong("a value is no list");
  }
  if (depth_ == kDepthMax) {
    return Wrong("lists are nested too deep");
  }
  DT_ASSIGN_OR_RETURN(const uint8_t head, Byte());
  uint64_t count = head >> 4;
  if (count == 15) {
    DT_ASSIGN_OR_RETURN(count, Varint());
  }
  if (count > bytes_.size() - position_) {  // Each element takes at least a byte.
    return absl::OutOfRangeError("a list ends too early");
  }
  DT_ASSIGN_OR_RETURN(const ThriftField each, FieldOf(head & 0xf, 0));
  ++depth_;
  for (uint64_t i = 0; i < count; ++i) {
    const size_t before = position_;
    DT_RETURN_IF_ERROR(element(each));
    if (position_ == before) {
      const bool is_truth = each.type == ThriftType::kTrue || each.type == ThriftType::kFalse;
      DT_RETURN_IF_ERROR(is_truth ? SkipBytes(1) : Skip(each));
    }
  }
  --depth_;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ThriftReader::Integer(const ThriftField& field) {
  switch (field.type) {
    case ThriftType::kByte: {
      DT_ASSIGN_OR_RETURN(const uint8_t byte, Byte());
      return static_cast<int8_t>(byte);
    }
    case ThriftType::kI16:
    case ThriftType::kI32:
    case ThriftType::kI64:
      return ZigZag();
    default:
      return Wrong("a value is no integer");
  }
}

absl::StatusOr<bool> ThriftReader::Boolean(const ThriftField& field) {
  if (field.type != ThriftType::kTrue && field.type != ThriftType::kFalse) {
    return Wrong("a value is no truth value");
  }
  return field.type == ThriftType::kTrue;
}

absl::StatusOr<absl::string_view> ThriftReader::Binary(const ThriftField& field) {
  if (field.type != ThriftType::kBinary) {
    return Wrong("a value is no text");
  }
  DT_ASSIGN_OR_RETURN(const uint64_t size, Varint());
  const size_t begin = position_;
  DT_RETURN_IF_ERROR(SkipBytes(size));
  return bytes_.substr(begin, size);
}

absl::Status ThriftReader::SkipBytes(uint64_t bytes) {
  if (bytes > bytes_.size() - position_) {
    return absl::OutOfRangeError("it ends too early");
  }
  position_ += bytes;
  return absl::OkStatus();
}

absl::Status ThriftReader::SkipMap() {
  DT_ASSIGN_OR_RETURN(const uint64_t count, Varint());
  if (count == 0) {
    return absl::OkStatus();
  }
  if (count > bytes_.size() - position_) {
    return absl::OutOfRangeError("a map ends too early");
  }
  if (depth_ == kDepthMax) {
    return Wrong("maps are nested too deep");
  }
  DT_ASSIGN_OR_RETURN(const uint8_t types, Byte());
  DT_ASSIGN_OR_RETURN(const ThriftField key, FieldOf(types >> 4, 0));
  DT_ASSIGN_OR_RETURN(const ThriftField value, FieldOf(types & 0xf, 0));
  ++depth_;
  for (uint64_t i = 0; i < count; ++i) {
    for (const ThriftField& part : {key, value}) {
      const bool is_truth = part.type == ThriftType::kTrue || part.type == ThriftType::kFalse;
      DT_RETURN_IF_ERROR(is_truth ? SkipBytes(1) : Skip(part));
    }
  }
  --depth_;
  return absl::OkStatus();
}

absl::Status ThriftReader::Skip(const ThriftField& field) {
  const auto nothing = [](const ThriftField& /*member*/) { return absl::OkStatus(); };
  switch (field.type) {
    case ThriftType::kTrue:
    case ThriftType::kFalse:
      return absl::OkStatus();
    case ThriftType::kByte:
    case ThriftType::kI16:
    case ThriftType::kI32:
    case ThriftType::kI64:
      return Integer(field).status();
    case ThriftType::kDouble:
      return SkipBytes(8);
    case ThriftType::kBinary:
      return Binary(field).status();
    case ThriftType::kList:
    case ThriftType::kSet:
      return ListOf(field, nothing);
    case ThriftType::kMap:
      return SkipMap();
    case ThriftType::kStruct:
      return Struct(nothing);
  }
  return Wrong("a value is of an unknown type");
}

}  // namespace dtrain::plan::parquet
