#include <charconv>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "checkpoint/format/json_fields.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/manifest_seal.h"

namespace dtrain::checkpoint {
namespace {

constexpr size_t kHashDigits = 32;
constexpr absl::string_view kSealBegin = " \"self_hash\": \"";
constexpr absl::string_view kSealEnd = "\"\n}\n";

bool IsLowerHex(absl::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

absl::StatusOr<StepId> ParseId(const Json& json) {
  JsonFields fields(json, "parent");
  StepId id;
  DT_ASSIGN_OR_RETURN(id.epoch, fields.Integer("epoch", 1, kEpochMax));
  DT_ASSIGN_OR_RETURN(id.step, fields.Integer("step", 0, kStepMax));
  DT_RETURN_IF_ERROR(fields.Finish());
  return id;
}

// "model/NAME" or "state/NAME".
bool IsCheckpointPath(absl::string_view path) {
  for (const absl::string_view folder : {"model/", "state/"}) {
    if (absl::StartsWith(path, folder)) {
      return IsPlainName(path.substr(folder.size()));
    }
  }
  return false;
}

absl::StatusOr<ManifestFile> ParseFile(const Json& json) {
  JsonFields fields(json, "files");
  ManifestFile file;
  DT_ASSIGN_OR_RETURN(file.path, fields.String("path"));
  if (!IsCheckpointPath(file.path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "files: path \"", file.path, "\" must be model/NAME or state/NAME with a plain name"));
  }
  DT_ASSIGN_OR_RETURN(const int64_t bytes, fields.Integer("bytes", 0, INT64_MAX));
  file.checksum.bytes = static_cast<uint64_t>(bytes);
  DT_ASSIGN_OR_RETURN(file.checksum.xxh3_128, fields.String("xxh3_128"));
  DT_ASSIGN_OR_RETURN(const std::string blocks, fields.String("crc32c"));
  DT_RETURN_IF_ERROR(fields.Finish());
  const uint64_t block_count =
      file.checksum.bytes / kBlockBytes + (file.checksum.bytes % kBlockBytes != 0 ? 1 : 0);
  if (file.checksum.xxh3_128.size() != kHashDigits || !IsLowerHex(file.checksum.xxh3_128) ||
      !IsLowerHex(blocks) || blocks.size() % 8 != 0 || blocks.size() / 8 != block_count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "files: ", file.path, " needs a hash of 32 hex digits and 8 digits for each of ",
        block_count, " blocks"));
  }
  for (size_t i = 0; i < blocks.size(); i += 8) {
    uint32_t crc = 0;
    std::from_chars(blocks.data() + i, blocks.data() + i + 8, crc, 16);
    file.checksum.crc32c.push_back(crc);
  }
  return file;
}

absl::StatusOr<ManifestTensor> ParseTensor(const Json& json,
                                           const std::vector<ManifestFile>& files) {
  JsonFields fields(json, "tensors");
  ManifestTensor tensor;
  TensorEntry& entry = tensor.entry;
  DT_ASSIGN_OR_RETURN(entry.name, fields.String("name"));
  DT_ASSIGN_OR_RETURN(const int64_t file,
                      fields.Integer("file", 0, static_cast<int64_t>(files.size()) - 1));
  tensor.file = static_cast<size_t>(file);
  DT_ASSIGN_OR_RETURN(entry.dtype, fields.String("dtype"));
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> shape, fields.Integers("shape", 0));
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, fields.Integers("data_offsets", 0));
  DT_RETURN_IF_ERROR(fields.Finish());
  entry.shape.assign(shape.begin(), shape.end());
  DT_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(entry.dtype, entry.shape));
  if (offsets.size() != 2 || offsets[1] < offsets[0] ||
      static_cast<uint64_t>(offsets[1] - offsets[0]) != bytes ||
      static_cast<uint64_t>(offsets[1]) > files[tensor.file].checksum.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensors: ", entry.name, " takes ", bytes,
                                                   " bytes; its data_offsets do not fit that or ",
                                                   files[tensor.file].path));
  }
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  return tensor;
}

absl::Status ParseState(JsonFields& fields, JobState& state) {
  DT_ASSIGN_OR_RETURN(const int64_t stage, fields.Integer("zero_stage", 0, 3));
  state.zero_stage = static_cast<int>(stage);
  DT_ASSIGN_OR_RETURN(state.layout_hash, fields.String("layout_hash"));
  DT_ASSIGN_OR_RETURN(state.engine, fields.Object("engine"));
  DT_ASSIGN_OR_RETURN(state.data, fields.Object("data"));
  DT_ASSIGN_OR_RETURN(const Json* ranges, fields.Array("skip_ranges"));
  int64_t last = 0;
  for (const Json& json : *ranges) {
    DT_ASSIGN_OR_RETURN(const std::vector<int64_t> range, JsonIntegers(json, "skip_ranges", 0));
    if (range.size() != 2 || range[0] < last || range[1] <= range[0]) {
      return absl::InvalidArgumentError(
          "skip_ranges: ranges [begin, end) must be sorted and disjoint");
    }
    last = range[1];
    state.skip.push_back({range[0], range[1]});
  }
  DT_ASSIGN_OR_RETURN(state.user, fields.Object("user"));
  return absl::OkStatus();
}

absl::Status ParseLists(JsonFields& fields, Manifest& manifest) {
  DT_ASSIGN_OR_RETURN(const Json* ranks, fields.Array("ranks"));
  for (const Json& rank : *ranks) {
    if (!rank.is_object()) {
      return absl::InvalidArgumentError("ranks: each element must be an object");
    }
    manifest.rank_state.push_back(rank);
  }
  if (manifest.rank_state.size() != static_cast<size_t>(manifest.world_size)) {
    return absl::InvalidArgumentError(absl::StrCat("ranks has ", manifest.rank_state.size(),
                                                   " elements, world_size is ",
                                                   manifest.world_size));
  }
  DT_ASSIGN_OR_RETURN(const Json* files, fields.Array("files"));
  absl::flat_hash_set<std::string> paths;
  uint64_t total = 0;
  for (const Json& json : *files) {
    DT_ASSIGN_OR_RETURN(ManifestFile file, ParseFile(json));
    if (!paths.insert(file.path).second ||
        __builtin_add_overflow(total, file.checksum.bytes, &total)) {
      return absl::InvalidArgumentError(
          absl::StrCat("files: ", file.path, " is listed twice, or the sizes overflow"));
    }
    manifest.files.push_back(std::move(file));
  }
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    if (!paths.contains(StatePath(rank, manifest.world_size))) {
      return absl::InvalidArgumentError(
          absl::StrCat("files: ", StatePath(rank, manifest.world_size), " is missing"));
    }
  }
  DT_ASSIGN_OR_RETURN(const Json* tensors, fields.Array("tensors"));
  absl::flat_hash_set<std::pair<std::string, std::string>> names;
  for (const Json& json : *tensors) {
    DT_ASSIGN_OR_RETURN(ManifestTensor tensor, ParseTensor(json, manifest.files));
    const std::string& path = manifest.files[tensor.file].path;
    // A model has one name space over all its shards; each rank's state has its own.
    const std::string space = absl::StartsWith(path, "model/") ? "model" : path;
    if (!names.insert({space, tensor.entry.name}).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors: ", tensor.entry.name, " is listed twice in ", space));
    }
    manifest.tensors.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> ParseFields(const Json& json) {
  JsonFields fields(json, "manifest");
  DT_ASSIGN_OR_RETURN(const std::string format, fields.String("format"));
  if (format != "dtrain-checkpoint") {
    return absl::InvalidArgumentError(
        absl::StrCat("format is \"", format, "\", not \"dtrain-checkpoint\""));
  }
  DT_ASSIGN_OR_RETURN(const int64_t version, fields.Integer("version", 1, INT32_MAX));
  if (version != kManifestVersion) {
    return absl::InvalidArgumentError(absl::StrCat("version ", version, " is not known; this ",
                                                   "program reads version ", kManifestVersion));
  }
  Manifest manifest;
  DT_ASSIGN_OR_RETURN(manifest.job, fields.String("job"));
  DT_ASSIGN_OR_RETURN(manifest.id.epoch, fields.Integer("epoch", 1, kEpochMax));
  DT_ASSIGN_OR_RETURN(manifest.id.step, fields.Integer("step", 0, kStepMax));
  DT_ASSIGN_OR_RETURN(const Json* parent, fields.Any("parent"));
  if (!parent->is_null()) {
    DT_ASSIGN_OR_RETURN(manifest.parent, ParseId(*parent));
  }
  DT_ASSIGN_OR_RETURN(manifest.nonce, fields.String("nonce"));
  DT_ASSIGN_OR_RETURN(const int64_t world, fields.Integer("world_size", 1, kWorldSizeMax));
  manifest.world_size = static_cast<int>(world);
  DT_ASSIGN_OR_RETURN(manifest.created_unix_ms, fields.Integer("created_unix_ms", 0, INT64_MAX));
  DT_RETURN_IF_ERROR(ParseState(fields, manifest.state));
  DT_RETURN_IF_ERROR(ParseLists(fields, manifest));
  DT_RETURN_IF_ERROR(fields.String("self_hash").status());
  DT_RETURN_IF_ERROR(fields.Finish());
  return manifest;
}

}  // namespace

std::string StatePath(int rank, int world_size) {
  return absl::StrFormat("state/rank-%d-of-%d.safetensors", rank, world_size);
}

std::string SealManifest(absl::string_view body) {
  return absl::StrCat(body, kSealBegin, TextHash(body), kSealEnd);
}

absl::Status CheckManifestSeal(absl::string_view text) {
  const size_t seal_bytes = kSealBegin.size() + kHashDigits + kSealEnd.size();
  if (text.size() < seal_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("is cut short: ", text.size(), " bytes hold no manifest"));
  }
  const absl::string_view body = text.substr(0, text.size() - seal_bytes);
  if (SealManifest(body) != text) {
    return absl::InvalidArgumentError(
        "is damaged or cut short: its last line is not the hash of what comes before");
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text, absl::string_view display_name) {
  if (text.size() > kManifestBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        display_name, " has ", text.size(), " bytes; at most ", kManifestBytesMax, " are allowed"));
  }
  if (const absl::Status seal = CheckManifestSeal(text); !seal.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(display_name, " ", seal.message()));
  }
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, display_name));
  absl::StatusOr<Manifest> manifest = ParseFields(json);
  if (!manifest.ok()) {
    return Annotate(manifest.status(), display_name);
  }
  return manifest;
}

}  // namespace dtrain::checkpoint
