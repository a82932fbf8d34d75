#include "runtime/plan/data/parquet/values.h"

#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/data/parquet/bit_runs.h"
#include "runtime/plan/data/row_columns.h"

namespace dtrain::plan::parquet {
namespace {

absl::Status ValuesEnd() { return absl::InvalidArgumentError("its values end too early"); }

class PlainValues final : public ValueDecoder {
 public:
  PlainValues(PhysicalType type, absl::string_view bytes) : type_(type), left_(bytes) {}

  absl::Status Next(Value* value) override {
    switch (type_) {
      case PhysicalType::kBoolean:
        if (bit_ / 8 >= left_.size()) {
          return ValuesEnd();
        }
        value->integer = static_cast<int64_t>(BitsAt(left_, bit_++, 1));
        return absl::OkStatus();
      case PhysicalType::kInt32:
        return Number<int32_t>(&value->integer);
      case PhysicalType::kInt64:
        return Number<int64_t>(&value->integer);
      case PhysicalType::kFloat:
        return Number<float>(&value->real);
      case PhysicalType::kDouble:
        return Number<double>(&value->real);
      default:
        return Bytes(&value->bytes);
    }
  }

 private:
  template <typename Stored, typename Wide>
  absl::Status Number(Wide* value) {
    Stored stored{};
    if (left_.size() < sizeof(stored)) {
      return ValuesEnd();
    }
    std::memcpy(&stored, left_.data(), sizeof(stored));
    left_.remove_prefix(sizeof(stored));
    *value = static_cast<Wide>(stored);
    return absl::OkStatus();
  }
  absl::Status Bytes(absl::string_view* bytes) {
    int64_t length = 0;
    DT_RETURN_IF_ERROR(Number<uint32_t>(&length));
    if (static_cast<size_t>(length) > left_.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a value of %d bytes begins %d bytes before its end", length, left_.size()));
    }
    *bytes = left_.substr(0, static_cast<size_t>(length));
    left_.remove_prefix(bytes->size());
    return absl::OkStatus();
  }

  const PhysicalType type_;
  absl::string_view left_;
  uint64_t bit_ = 0;  // The next truth value.
};

class DictionaryIndices final : public ValueDecoder {
 public:
  DictionaryIndices(RunDecoder indices, const std::vector<Value>& values)
      : indices_(indices), values_(values) {}

  absl::Status Next(Value* value) override {
    DT_ASSIGN_OR_RETURN(const uint32_t index, indices_.Next());
    if (index >= values_.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a value is number %d of a dictionary of %d values", index, values_.size()));
    }
    *value = values_[index];
    return absl::OkStatus();
  }

 private:
  RunDecoder indices_;
  const std::vector<Value>& values_;
};

class TruthRuns final : public ValueDecoder {
 public:
  explicit TruthRuns(RunDecoder runs) : runs_(runs) {}

  absl::Status Next(Value* value) override {
    DT_ASSIGN_OR_RETURN(value->integer, runs_.Next());
    return absl::OkStatus();
  }

 private:
  RunDecoder runs_;
};

class Differences final : public ValueDecoder {
 public:
  Differences(DeltaDecoder decoder, bool is_narrow) : decoder_(decoder), is_narrow_(is_narrow) {}

  absl::Status Next(Value* value) override {
    DT_ASSIGN_OR_RETURN(value->integer, decoder_.Next());
    value->integer = is_narrow_ ? static_cast<int32_t>(value->integer) : value->integer;
    return absl::OkStatus();
  }

 private:
  DeltaDecoder decoder_;
  const bool is_narrow_;  // INT32, whose arithmetic wraps at 32 bits.
};

// DELTA_LENGTH_BYTE_ARRAY: all lengths, then the bytes of all values.
class LengthsThenBytes final : public ValueDecoder {
 public:
  LengthsThenBytes(DeltaDecoder lengths, absl::string_view bytes)
      : lengths_(lengths), left_(bytes) {}

  absl::Status Next(Value* value) override {
    DT_ASSIGN_OR_RETURN(const int64_t length, lengths_.Next());
    if (length < 0 || static_cast<uint64_t>(length) > left_.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a value of %d bytes begins %d bytes before its end", length, left_.size()));
    }
    value->bytes = left_.substr(0, static_cast<size_t>(length));
    left_.remove_prefix(value->bytes.size());
    return absl::OkStatus();
  }

 private:
  DeltaDecoder lengths_;
  absl::string_view left_;
};

// DELTA_BYTE_ARRAY: of each value how much it shares with the one before it, then all rests.
class PrefixesThenRests final : public ValueDecoder {
 public:
  PrefixesThenRests(DeltaDecoder prefixes, LengthsThenBytes rests)
      : prefixes_(prefixes), rests_(std::move(rests)) {}

  absl::Status Next(Value* value) override {
    DT_ASSIGN_OR_RETURN(const int64_t shared, prefixes_.Next());
    Value rest;
    DT_RETURN_IF_ERROR(rests_.Next(&rest));
    if (shared < 0 || static_cast<uint64_t>(shared) > last_.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a value shares %d bytes with one of %d bytes", shared, last_.size()));
    }
    if (shared + static_cast<int64_t>(rest.bytes.size()) > kDocumentBytesMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a value has more than %d bytes, the most for one document", kDocumentBytesMax));
    }
    last_.resize(static_cast<size_t>(shared));
    last_.append(rest.bytes.data(), rest.bytes.size());
    value->bytes = last_;
    return absl::OkStatus();
  }

 private:
  DeltaDecoder prefixes_;
  LengthsThenBytes rests_;
  std::string last_;
};

using Made = absl::StatusOr<std::unique_ptr<ValueDecoder>>;

Made MakeDictionaryIndices(absl::string_view bytes, const std::vector<Value>* dictionary) {
  if (dictionary == nullptr) {
    return absl::InvalidArgumentError("its values are numbers of a dictionary that is not there");
  }
  if (bytes.empty()) {  // All values are null.
    return std::make_unique<DictionaryIndices>(RunDecoder(), *dictionary);
  }
  const int width = static_cast<uint8_t>(bytes[0]);
  if (width > 32) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the numbers of its dictionary have %d bits, more than 32", width));
  }
  return std::make_unique<DictionaryIndices>(RunDecoder(bytes.substr(1), width), *dictionary);
}

Made MakeTruthRuns(absl::string_view bytes) {
  if (bytes.empty()) {  // All values are null.
    return std::make_unique<TruthRuns>(RunDecoder());
  }
  uint32_t length = 0;
  if (bytes.size() < sizeof(length)) {
    return ValuesEnd();
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  return std::make_unique<TruthRuns>(RunDecoder(bytes.substr(sizeof(length), length), 1));
}

absl::StatusOr<LengthsThenBytes> MakeLengthsThenBytes(absl::string_view bytes) {
  DT_ASSIGN_OR_RETURN(const DeltaDecoder lengths, DeltaDecoder::Open(bytes));
  DT_ASSIGN_OR_RETURN(const absl::string_view behind, lengths.Behind());
  return LengthsThenBytes(lengths, behind);
}

Made MakePrefixesThenRests(absl::string_view bytes) {
  DT_ASSIGN_OR_RETURN(const DeltaDecoder prefixes, DeltaDecoder::Open(bytes));
  DT_ASSIGN_OR_RETURN(const absl::string_view behind, prefixes.Behind());
  DT_ASSIGN_OR_RETURN(LengthsThenBytes rests, MakeLengthsThenBytes(behind));
  return std::make_unique<PrefixesThenRests>(prefixes, std::move(rests));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ValueDecoder>> MakeValueDecoder(
    PhysicalType type, Encoding encoding, absl::string_view bytes,
    const std::vector<Value>* dictionary) {
  const bool is_bytes = type == PhysicalType::kByteArray;
  const bool is_integer = type == PhysicalType::kInt32 || type == PhysicalType::kInt64;
  switch (encoding) {
    case Encoding::kPlain:
      return std::make_unique<PlainValues>(type, bytes);
    case Encoding::kPlainDictionary:
    case Encoding::kRleDictionary:
      return MakeDictionaryIndices(bytes, dictionary);
    case Encoding::kRle:
      if (type == PhysicalType::kBoolean) {
        return MakeTruthRuns(bytes);
      }
      break;
    case Encoding::kDeltaBinaryPacked:
      if (is_integer) {
        if (bytes.empty()) {  // All values are null.
          return std::make_unique<Differences>(DeltaDecoder(), false);
        }
        DT_ASSIGN_OR_RETURN(const DeltaDecoder decoder, DeltaDecoder::Open(bytes));
        return std::make_unique<Differences>(decoder, type == PhysicalType::kInt32);
      }
      break;
    case Encoding::kDeltaLengthByteArray:
    case Encoding::kDeltaByteArray:
      if (is_bytes && bytes.empty()) {
        return std::make_unique<LengthsThenBytes>(DeltaDecoder(), bytes);
      }
      if (is_bytes && encoding == Encoding::kDeltaByteArray) {
        return MakePrefixesThenRests(bytes);
      }
      if (is_bytes) {
        DT_ASSIGN_OR_RETURN(LengthsThenBytes decoder, MakeLengthsThenBytes(bytes));
        return std::make_unique<LengthsThenBytes>(std::move(decoder));
      }
      break;
    default:
      break;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "its encoding %s is not read for the type %s; write the file with PLAIN or a dictionary",
      EncodingName(encoding), TypeName(type)));
}

absl::StatusOr<std::vector<Value>> DictionaryValues(PhysicalType type, absl::string_view bytes,
                                                    int64_t count) {
  // Every type takes 4 bytes at least, but truth values, which have no dictionaries.
  if (type == PhysicalType::kBoolean || count < 0 ||
      static_cast<uint64_t>(count) > bytes.size() / 4) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a dictionary of %d values of the type %s cannot be in %d bytes", count,
                        TypeName(type), bytes.size()));
  }
  PlainValues plain(type, bytes);
  std::vector<Value> values(static_cast<size_t>(count));
  for (Value& value : values) {
    DT_RETURN_IF_ERROR(plain.Next(&value));
  }
  return values;
}

std::string EncodingName(Encoding encoding) {
  constexpr const char* kNames[] = {
      "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
      "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
      "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
  const auto number = static_cast<size_t>(encoding);
  return number < std::size(kNames) ? kNames[number] : absl::StrCat("number ", number);
}

std::string TypeName(PhysicalType type) {
  constexpr const char* kNames[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                    "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
  const auto number = static_cast<size_t>(type);
  return number < std::size(kNames) ? kNames[number] : absl::StrCat("number ", number);
}

}  // namespace dtrain::plan::parquet
