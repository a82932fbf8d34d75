// Fuzz target for the safetensors header: whatever parses covers its data exactly, and can be
// encoded and parsed again.
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "checkpoint/format/safetensors_header.h"
#include "tests/fuzz/fuzz_target.h"

using dtrain::checkpoint::EncodeSafetensorsHeader;
using dtrain::checkpoint::ParseSafetensorsHeader;
using dtrain::checkpoint::TensorEntry;

// The first byte of the input is the number of data bytes, the rest the JSON.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const absl::string_view json(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto header = ParseSafetensorsHeader(json, 8 + json.size() + data[0]);
  if (!header.ok()) {
    DT_CHECK(!header.status().message().empty());
    return 0;
  }
  uint64_t offset = 0;
  for (const TensorEntry& tensor : header->tensors) {
    DT_CHECK_EQ(tensor.begin, offset);
    offset = tensor.end;
  }
  DT_CHECK_EQ(offset, uint64_t{data[0]});
  std::vector<TensorEntry> tensors = header->tensors;
  const auto encoded = EncodeSafetensorsHeader(header->metadata, tensors);
  DT_CHECK(encoded.ok()) << encoded.status().ToString();
  const auto again = ParseSafetensorsHeader(encoded->substr(8), encoded->size() + data[0]);
  DT_CHECK(again.ok()) << again.status().ToString();
  DT_CHECK_EQ(again->tensors.size(), tensors.size());
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  std::vector<std::string> seeds = {absl::StrCat(std::string(1, '\0'), "{}")};
  seeds.push_back(absl::StrCat(
      std::string(1, '\x10'), R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32",)",
      R"("shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[4],)",
      R"("data_offsets":[8,16]},"e":{"dtype":"I64","shape":[0],"data_offsets":[16,16]}}  )"));
  seeds.push_back(absl::StrCat(
      std::string(1, '\x01'),
      R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1],"extra":{"x":[null,1.5]}}})"));
  return seeds;
}
