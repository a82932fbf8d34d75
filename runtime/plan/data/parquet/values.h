// The values of a page, one after the other, by each encoding. Any bytes are safe. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/data/parquet/format.h"

namespace dtrain::plan::parquet {

// What a value is follows from its column's type: kBoolean, kInt32 and kInt64 are integers, kFloat
// and kDouble are real, kByteArray has bytes.
struct Value {
  absl::string_view bytes;
  int64_t integer = 0;
  double real = 0;
};

class ValueDecoder {
 public:
  virtual ~ValueDecoder() = default;
  // InvalidArgument: the page has no more, or is damaged. Bytes are valid until the next call.
  virtual absl::Status Next(Value* value) = 0;
};

// REQUIRES: `bytes` and `dictionary` outlive the decoder. InvalidArgument: the page is damaged, or
// needs a dictionary where there is none (null), or the encoding is not read for the type; both are
// named.
absl::StatusOr<std::unique_ptr<ValueDecoder>> MakeValueDecoder(
    PhysicalType type, Encoding encoding, absl::string_view bytes,
    const std::vector<Value>* dictionary);

// The values of a dictionary page, which stay in `bytes`.
absl::StatusOr<std::vector<Value>> DictionaryValues(PhysicalType type, absl::string_view bytes,
                                                    int64_t count);

// "BYTE_STREAM_SPLIT", "INT96".
std::string EncodingName(Encoding encoding);
std::string TypeName(PhysicalType type);

}  // namespace dtrain::plan::parquet
