#include "checkpoint/format/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/text/utf8.h"

namespace dtrain::checkpoint {
namespace {

struct TypeInfo {
  absl::string_view name;
  int bits;
};

// Types in the reference's order, by which its writer sorts in descending order.
constexpr std::array<TypeInfo, 22> kTypes = {
    {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
     {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
     {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
     {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
     {"I64", 64},        {"U64", 64}}};

std::optional<size_t> TypeIndex(absl::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].name == name) {
      return i;
    }
  }
  return std::nullopt;
}

constexpr std::array<std::pair<DType, absl::string_view>, 8> kDTypes = {{{DType::kFloat32, "F32"},
                                                                         {DType::kBFloat16, "BF16"},
                                                                         {DType::kFloat16, "F16"},
                                                                         {DType::kFloat64, "F64"},
                                                                         {DType::kInt32, "I32"},
                                                                         {DType::kInt64, "I64"},
                                                                         {DType::kUInt8, "U8"},
                                                                         {DType::kBool, "BOOL"}}};

std::string Quoted(const std::string& text) { return Json(text).dump(); }

absl::Status CheckName(const TensorEntry& tensor) {
  if (tensor.name == "__metadata__") {
    return absl::InvalidArgumentError("tensor name \"__metadata__\" is reserved by the format");
  }
  if (!IsUtf8(tensor.name)) {
    return absl::InvalidArgumentError("a tensor's name is not UTF-8");
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view SafetensorsDType(DType dtype) {
  for (const auto& [type, name] : kDTypes) {
    if (type == dtype) {
      return name;
    }
  }
  return "";
}

std::optional<DType> DTypeFromSafetensors(absl::string_view name) {
  for (const auto& [type, known] : kDTypes) {
    if (known == name) {
      return type;
    }
  }
  return std::nullopt;
}

std::optional<int> SafetensorsBits(absl::string_view name) {
  const std::optional<size_t> index = TypeIndex(name);
  return index ? std::optional<int>(kTypes[*index].bits) : std::nullopt;
}

absl::StatusOr<uint64_t> TensorBytes(absl::string_view dtype, const std::vector<uint64_t>& shape) {
  const std::optional<int> bits = SafetensorsBits(dtype);
  if (!bits) {
    return absl::InvalidArgumentError(absl::StrCat("unknown dtype \"", dtype, "\""));
  }
  uint64_t elements = 1;
  uint64_t total = 0;
  for (const uint64_t dim : shape) {
    if (__builtin_mul_overflow(elements, dim, &elements)) {
      return absl::InvalidArgumentError(
          absl::StrCat("ValidationOverflow: shape [", absl::StrJoin(shape, ","), "] overflows"));
    }
  }
  if (__builtin_mul_overflow(elements, static_cast<uint64_t>(*bits), &total)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ValidationOverflow: shape [", absl::StrJoin(shape, ","), "] of ", dtype, " overflows"));
  }
  if (total % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("MisalignedSlice: ", elements, " elements of ",
                                                   dtype, " are no whole number of bytes"));
  }
  return total / 8;
}

bool ComesBefore(absl::string_view dtype, absl::string_view name, absl::string_view other_dtype,
                 absl::string_view other_name) {
  const std::optional<size_t> type = TypeIndex(dtype);
  const std::optional<size_t> other = TypeIndex(other_dtype);
  return type != other ? type > other : name < other_name;
}

absl::StatusOr<std::string> EncodeSafetensorsHeader(
    const std::map<std::string, std::string>& metadata, std::vector<TensorEntry>& tensors) {
  for (const TensorEntry& tensor : tensors) {
    if (absl::Status status = CheckName(tensor); !status.ok()) {
      return status;
    }
    if (!TypeIndex(tensor.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, " has the unknown dtype \"", tensor.dtype, "\""));
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return ComesBefore(a.dtype, a.name, b.dtype, b.name);
  });

  std::string json = "{";
  if (!metadata.empty()) {
    absl::StrAppend(&json, "\"__metadata__\":{");
    const char* comma = "";
    for (const auto& [key, value] : metadata) {
      absl::StrAppend(&json, comma, Quoted(key), ":", Quoted(value));
      comma = ",";
    }
    absl::StrAppend(&json, "}");
  }
  absl::flat_hash_map<absl::string_view, bool> names;
  uint64_t offset = 0;
  for (TensorEntry& tensor : tensors) {
    if (!names.emplace(tensor.name, true).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, " is given twice; store a tied tensor once"));
    }
    const absl::StatusOr<uint64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, ": ", bytes.status().message()));
    }
    tensor.begin = offset;
    if (__builtin_add_overflow(offset, *bytes, &offset)) {
      return absl::InvalidArgumentError("ValidationOverflow: the tensors' sizes overflow");
    }
    tensor.end = offset;
    absl::StrAppend(&json, json.size() > 1 ? "," : "", Quoted(tensor.name), ":{\"dtype\":\"",
                    tensor.dtype, "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                    "],\"data_offsets\":[", tensor.begin, ",", tensor.end, "]}");
  }
  absl::StrAppend(&json, "}");
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("header too large: ", json.size(),
                                                   " bytes; the format allows ",
                                                   kSafetensorsHeaderBytesMax));
  }
  const uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);  // Little-endian, as asserted in base/numeric/float16.h.
  return file + json;
}

}  // namespace dtrain::checkpoint
