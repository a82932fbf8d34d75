// The strict parser of a safetensors header: one pass over the JSON without a tree, so that a
// header of 100 MB costs no more than its tensors.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "checkpoint/format/safetensors_header.h"

namespace dtrain::checkpoint {
namespace {

constexpr int kSkipDepthMax = 64;

// Receives the events of nlohmann's SAX parser. Every method returns false to stop.
class HeaderHandler {
 public:
  explicit HeaderHandler(SafetensorsHeader& header) : header_(header) {}
  const std::string& problem() const { return problem_; }

  // The names are nlohmann's.
  bool start_object(std::size_t /*elements*/) {
    switch (at_) {
      case At::kStart:
        at_ = At::kTop;
        return true;
      case At::kTopValue:
        at_ = key_ == "__metadata__" ? At::kMetadata : At::kEntry;
        entry_ = {};
        entry_.name = key_;
        fields_ = 0;
        return true;
      default:
        return Skip(+1, "an object");
    }
  }

  bool end_object() {
    switch (at_) {
      case At::kTop:
        at_ = At::kEnd;
        return true;
      case At::kMetadata:
        at_ = At::kTop;
        return true;
      case At::kEntry:
        if (fields_ != kAllFields) {
          return Fail(
              absl::StrCat("tensor `", entry_.name, "` lacks one of dtype, shape, data_offsets"));
        }
        if (header_.tensors.size() == kSafetensorsTensorsMax) {
          return Fail(absl::StrCat("too many tensors: ", kSafetensorsTensorsMax, " are allowed"));
        }
        header_.tensors.push_back(std::move(entry_));
        at_ = At::kTop;
        return true;
      default:
        return Skip(-1, "an object's end");
    }
  }

  bool key(std::string& name) {
    switch (at_) {
      case At::kTop:
        if (!names_.insert(name).second) {
          return Fail(absl::StrCat("key `", name, "` appears twice"));
        }
        key_ = name;
        at_ = At::kTopValue;
        return true;
      case At::kMetadata:
        if (header_.metadata.contains(name)) {
          return Fail(absl::StrCat("metadata key `", name, "` appears twice"));
        }
        if (header_.metadata.size() == kSafetensorsMetadataMax) {
          return Fail(
              absl::StrCat("too many keys of metadata: ", kSafetensorsMetadataMax, " are allowed"));
        }
        key_ = name;
        at_ = At::kMetadataValue;
        return true;
      case At::kEntry:
        return EntryKey(name);
      default:
        return true;  // The event is inside a skipped value.
    }
  }

  bool string(std::string& value) {
    switch (at_) {
      case At::kMetadataValue:
        header_.metadata[key_] = value;
        at_ = At::kMetadata;
        return true;
      case At::kDType:
        entry_.dtype = value;
        at_ = At::kEntry;
        return true;
      default:
        return Skip(0, "a string");
    }
  }

  bool number_unsigned(uint64_t value) {
    switch (at_) {
      case At::kShape:
        if (entry_.shape.size() == kSafetensorsDimensionsMax) {
          return Fail(absl::StrCat("tensor `", entry_.name, "` has too many dimensions: ",
                                   kSafetensorsDimensionsMax, " are allowed"));
        }
        entry_.shape.push_back(value);
        return true;
      case At::kOffsets:
        if (offsets_ == 2) {
          return Fail(absl::StrCat("tensor `", entry_.name, "` has more than two data_offsets"));
        }
        (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
        return true;
      default:
        return Skip(0, "a number");
    }
  }

  bool start_array(std::size_t /*elements*/) {
    switch (at_) {
      case At::kShapeStart:
        at_ = At::kShape;
        return true;
      case At::kOffsetsStart:
        at_ = At::kOffsets;
        offsets_ = 0;
        return true;
      default:
        return Skip(+1, "an array");
    }
  }

  bool end_array() {
    switch (at_) {
      case At::kOffsets:
        if (offsets_ != 2) {
          return Fail(absl::StrCat("tensor `", entry_.name, "` needs two data_offsets"));
        }
        at_ = At::kEntry;
        return true;
      case At::kShape:
        at_ = At::kEntry;
        return true;
      default:
        return Skip(-1, "an array's end");
    }
  }

  bool null() { return Skip(0, "null"); }
  bool boolean(bool /*value*/) { return Skip(0, "a boolean"); }
  bool number_integer(int64_t value) { return Skip(0, absl::StrCat("the number ", value)); }
  bool number_float(double /*value*/, const std::string& text) {
    return Skip(0, absl::StrCat("the number ", text));
  }
  bool binary(Json::binary_t& /*value*/) { return Skip(0, "binary data"); }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) {
    absl::string_view what = error.what();  // "[json.exception.x.101] parse error at ...: text".
    what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
    return Fail(absl::StrCat("InvalidHeaderDeserialization near byte ", position, ": ", what));
  }

 private:
  enum class At {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kEntry,
    kDType,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kSkipped,
    kEnd
  };
  enum Field : unsigned { kDTypeField = 1, kShapeField = 2, kOffsetsField = 4, kAllFields = 7 };

  bool Fail(std::string text) {
    if (problem_.empty()) {
      problem_ = std::move(text);
    }
    return false;
  }

  bool EntryKey(const std::string& name) {
    const unsigned field = name == "dtype"          ? kDTypeField
                           : name == "shape"        ? kShapeField
                           : name == "data_offsets" ? kOffsetsField
                                                    : 0U;
    if ((fields_ & field) != 0) {
      return Fail(absl::StrCat("tensor `", entry_.name, "` gives ", name, " twice"));
    }
    fields_ |= field;
    at_ = field == kDTypeField     ? At::kDType
          : field == kShapeField   ? At::kShapeStart
          : field == kOffsetsField ? At::kOffsetsStart
                                   : At::kSkipped;
    if (field == 0) {
      skip_depth_ = 0;
      if (header_.warnings.empty()) {  // One warning is enough: a file may cause millions.
        header_.warnings.push_back(
            absl::StrCat("tensor `", entry_.name, "` has the unknown key `", name, "`; ignored"));
      }
    }
    return true;
  }

  // Takes an event that is allowed only inside the value of an unknown key.
  bool Skip(int depth_change, absl::string_view what) {
    if (at_ != At::kSkipped) {
      return Fail(absl::StrCat("InvalidHeaderDeserialization: ", what, " is out of place in `",
                               at_ == At::kStart || at_ == At::kTopValue ? key_ : entry_.name,
                               "`"));
    }
    skip_depth_ += depth_change;
    if (skip_depth_ > kSkipDepthMax) {
      return Fail(absl::StrCat("an unknown key's value is nested deeper than ", kSkipDepthMax));
    }
    if (skip_depth_ == 0) {
      at_ = At::kEntry;
    }
    return true;
  }

  SafetensorsHeader& header_;
  At at_ = At::kStart;
  std::string key_;
  TensorEntry entry_;
  unsigned fields_ = 0;
  int offsets_ = 0;
  int skip_depth_ = 0;
  absl::flat_hash_set<std::string> names_;
  std::string problem_;
};

// Whether a character stands between tokens, by its code. A table, because a header may have 100
// MB.
constexpr std::array<bool, 256> kBetweenTokens = [] {
  std::array<bool, 256> between = {};
  for (const char c : absl::string_view("{}[]:, \t\r\n")) {
    between[static_cast<unsigned char>(c)] = true;
  }
  return between;
}();

// Whether a string, a number or a literal is longer than allowed; checked first because the parser
// holds each several times.
bool HasHugeToken(absl::string_view json) {
  size_t length = 0;
  bool in_string = false;
  bool escaped = false;
  for (const char c : json) {
    if (in_string) {
      in_string = escaped || c != '"';
      escaped = !escaped && c == '\\';
      length = in_string ? length + 1 : 0;
    } else {
      in_string = c == '"';
      const bool between = in_string || kBetweenTokens[static_cast<unsigned char>(c)];
      length = between ? 0 : length + 1;
    }
    if (length > kSafetensorsTextBytesMax) {
      return true;
    }
  }
  return false;
}

absl::Status CheckCoverage(SafetensorsHeader& header, uint64_t data_bytes) {
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  uint64_t offset = 0;
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.begin != offset || tensor.end < tensor.begin) {
      return absl::InvalidArgumentError(
          absl::StrCat("invalid offset for tensor `", tensor.name, "`: [", tensor.begin, ", ",
                       tensor.end, ") must begin at ", offset, ", where the one before ends"));
    }
    const absl::StatusOr<uint64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(bytes.status().message(), " (tensor `", tensor.name, "`)"));
    }
    if (*bytes != tensor.bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("invalid shape, data type, or offset for tensor `", tensor.name,
                       "`: its shape takes ", *bytes, " bytes, its offsets ", tensor.bytes()));
    }
    offset = tensor.end;
  }
  if (offset != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("incomplete metadata, file not fully covered: the tensors take ", offset,
                     " bytes of data, the file has ", data_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> ParseSafetensorsLength(absl::string_view first_8_bytes,
                                                uint64_t file_bytes) {
  if (file_bytes < 8 || first_8_bytes.size() < 8) {
    return absl::InvalidArgumentError(absl::StrCat("header too small: the file has ", file_bytes,
                                                   " bytes, at least 8 are needed"));
  }
  uint64_t length = 0;
  std::memcpy(&length, first_8_bytes.data(), 8);
  if (length > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("header too large: ", length, " bytes; the format allows ",
                     kSafetensorsHeaderBytesMax, "; the file is damaged, or no safetensors file"));
  }
  if (length > file_bytes - 8) {
    return absl::InvalidArgumentError(
        absl::StrCat("invalid header length: ", length, " bytes, but ", file_bytes - 8,
                     " follow in the file; it is cut short, damaged, or no safetensors file"));
  }
  return length;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t file_bytes) {
  if (json.empty() || json[0] != '{') {
    return absl::InvalidArgumentError("InvalidHeaderStart: the header does not begin with '{'");
  }
  if (file_bytes < 8 || file_bytes - 8 < json.size()) {
    return absl::InvalidArgumentError("invalid header length: the file is shorter than its header");
  }
  if (HasHugeToken(json)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a name or value is too long: ", kSafetensorsTextBytesMax, " bytes are allowed"));
  }
  SafetensorsHeader header;
  header.data_begin = 8 + json.size();
  HeaderHandler handler(header);
  if (!Json::sax_parse(json.begin(), json.end(), &handler)) {
    return absl::InvalidArgumentError(handler.problem());
  }
  absl::Status status = CheckCoverage(header, file_bytes - header.data_begin);
  if (!status.ok()) {
    return status;
  }
  return header;
}

}  // namespace dtrain::checkpoint
