// Reads Thrift's compact protocol, in which Parquet's footer and page headers are written
// (thrift-compact-protocol.md of apache/thrift). Any bytes are safe: the work is bounded by their
// number, structs by a depth. Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::plan::parquet {

enum class ThriftType : uint8_t {
  kTrue = 1,
  kFalse = 2,
  kByte = 3,
  kI16 = 4,
  kI32 = 5,
  kI64 = 6,
  kDouble = 7,
  kBinary = 8,
  kList = 9,
  kSet = 10,
  kMap = 11,
  kStruct = 12,
};

// A member of a struct, or an element of a list (id 0), whose value comes next.
struct ThriftField {
  int64_t id = 0;
  ThriftType type = ThriftType::kStruct;
};

// OutOfRange: the bytes end inside a value. InvalidArgument: what is no such value, or of another
// type than the one that is asked for.
class ThriftReader {
 public:
  // REQUIRES: the bytes outlive this and what `Binary` gives.
  explicit ThriftReader(absl::string_view bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }

  // Calls `member` for each member of the struct that comes next. A member whose value it does not
  // read is skipped.
  absl::Status Struct(absl::FunctionRef<absl::Status(const ThriftField&)> member);
  // The value of `field`, whose type is checked.
  absl::Status StructOf(const ThriftField& field,
                        absl::FunctionRef<absl::Status(const ThriftField&)> member);
  // Calls `element` for each element; those that it does not read are skipped.
  absl::Status ListOf(const ThriftField& field,
                      absl::FunctionRef<absl::Status(const ThriftField&)> element);
  absl::StatusOr<int64_t> Integer(const ThriftField& field);
  absl::StatusOr<bool> Boolean(const ThriftField& field);
  absl::StatusOr<absl::string_view> Binary(const ThriftField& field);

 private:
  static constexpr int kDepthMax = 32;

  absl::StatusOr<uint8_t> Byte();
  absl::StatusOr<uint64_t> Varint();
  absl::StatusOr<int64_t> ZigZag();
  absl::Status Skip(const ThriftField& field);
  absl::Status SkipBytes(uint64_t bytes);
  absl::Status SkipMap();
  absl::StatusOr<ThriftField> FieldOf(uint8_t code, int64_t id) const;
  absl::Status Wrong(absl::string_view what) const;

  absl::string_view bytes_;
  size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace dtrain::plan::parquet
