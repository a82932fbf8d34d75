#include "checkpoint/format/manifest.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/format/manifest_seal.h"

namespace dtrain::checkpoint {
namespace {

Json IdJson(const StepId& id) { return {{"epoch", id.epoch}, {"step", id.step}}; }

Json FileJson(const ManifestFile& file) {
  std::string blocks;  // Written as one string, because an array would take a line for each block.
  for (const uint32_t crc : file.checksum.crc32c) {
    absl::StrAppend(&blocks, absl::Hex(crc, absl::kZeroPad8));
  }
  return {{"path", file.path},
          {"bytes", file.checksum.bytes},
          {"xxh3_128", file.checksum.xxh3_128},
          {"crc32c", blocks}};
}

Json TensorJson(const ManifestTensor& tensor) {
  return {{"name", tensor.entry.name},
          {"file", tensor.file},
          {"dtype", tensor.entry.dtype},
          {"shape", tensor.entry.shape},
          {"data_offsets", {tensor.entry.begin, tensor.entry.end}}};
}

// An array with one line for each element.
std::string LinePerElement(const std::vector<Json>& elements) {
  std::string text = "[";
  for (size_t i = 0; i < elements.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "\n  " : ",\n  ", DumpJson(elements[i]));
  }
  return absl::StrCat(text, elements.empty() ? "]" : "\n ]");
}

template <typename T, typename F>
std::vector<Json> Map(const std::vector<T>& values, F function) {
  std::vector<Json> mapped;
  mapped.reserve(values.size());
  for (const T& value : values) {
    mapped.push_back(function(value));
  }
  return mapped;
}

}  // namespace

const ManifestFile* Manifest::FindFile(absl::string_view path) const {
  for (const ManifestFile& file : files) {
    if (file.path == path) {
      return &file;
    }
  }
  return nullptr;
}

uint64_t Manifest::data_bytes() const {
  uint64_t sum = 0;
  for (const ManifestFile& file : files) {
    sum += file.checksum.bytes;
  }
  return sum;
}

std::string EncodeManifest(const Manifest& manifest) {
  const JobState& state = manifest.state;
  std::string text = "{";
  const auto add = [&text](absl::string_view key, absl::string_view value) {
    absl::StrAppend(&text, text.size() > 1 ? "," : "", "\n \"", key, "\": ", value);
  };
  add("format", "\"dtrain-checkpoint\"");
  add("version", absl::StrCat(kManifestVersion));
  add("job", DumpJson(manifest.job));
  add("epoch", absl::StrCat(manifest.id.epoch));
  add("step", absl::StrCat(manifest.id.step));
  add("parent", manifest.parent ? DumpJson(IdJson(*manifest.parent)) : "null");
  add("nonce", DumpJson(manifest.nonce));
  add("world_size", absl::StrCat(manifest.world_size));
  add("created_unix_ms", absl::StrCat(manifest.created_unix_ms));
  add("zero_stage", absl::StrCat(state.zero_stage));
  add("layout_hash", DumpJson(state.layout_hash));
  add("engine", DumpJson(state.engine));
  add("data", DumpJson(state.data));
  add("skip_ranges", DumpJson(Map(state.skip, [](const SkipRange& range) {
        return Json{range.begin, range.end};
      })));
  add("user", DumpJson(state.user));
  add("ranks", LinePerElement(manifest.rank_state));
  add("files", LinePerElement(Map(manifest.files, FileJson)));
  add("tensors", LinePerElement(Map(manifest.tensors, TensorJson)));
  return SealManifest(absl::StrCat(text, ",\n"));
}

bool IsPlainName(absl::string_view name) {
  constexpr size_t kNameMax = 128;
  if (name.empty() || name.size() > kNameMax || name[0] == '.' || name[0] == '-') {
    return false;
  }
  for (const char c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '-') {
      return false;
    }
  }
  return true;
}

}  // namespace dtrain::checkpoint
