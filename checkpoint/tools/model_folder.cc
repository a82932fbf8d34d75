#include "checkpoint/tools/model_folder.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/commit/save_attempt.h"
#include "checkpoint/tools/tensor_values.h"

namespace dtrain::checkpoint {
namespace {

// The name of a type in a config.json.
std::string ConfigType(DType dtype) {
  return dtype == DType::kFloat32 ? "float32" : dtype == DType::kBFloat16 ? "bfloat16" : "float16";
}

// Replaces the types that `config` and its parts name; whether there was one.
bool ReplaceType(const std::string& type, Json& config) {
  bool found = false;
  for (auto& [key, value] : config.items()) {
    if (value.is_object()) {
      found = ReplaceType(type, value) || found;
    } else if ((key == "torch_dtype" || key == "dtype") && value.is_string()) {
      value = type;
      found = true;
    }
  }
  return found;
}

// model.safetensors.index.json as transformers reads it.
std::string IndexText(const std::vector<TensorSpec>& tensors,
                      const std::vector<std::vector<size_t>>& shards) {
  uint64_t parameters = 0;
  uint64_t bytes = 0;
  std::map<std::string, std::string> files;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    for (const size_t i : shards[shard]) {
      files[tensors[i].name] =
          ShardName(static_cast<int>(shard + 1), static_cast<int>(shards.size()));
      bytes += TensorSize(tensors[i]);
      parameters += TensorSize(tensors[i]) / DTypeBytes(tensors[i].dtype);
    }
  }
  Json map = Json::object();
  for (const auto& [name, file] : files) {
    map[name] = file;
  }
  return DumpJson({{"metadata", {{"total_parameters", parameters}, {"total_size", bytes}}},
                   {"weight_map", map}},
                  2) +
         "\n";
}

}  // namespace

absl::StatusOr<DType> WrittenType(const std::string& name, absl::string_view dtype,
                                  std::optional<DType> to) {
  const std::optional<DType> own = DTypeFromSafetensors(dtype);
  if (!own.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat("tensor ", name, " has type ", dtype,
                     "; allowed: F64, F32, BF16, F16, I64, I32, U8 and BOOL"));
  }
  return to.has_value() && IsFloat(dtype) ? *to : *own;
}

absl::Status ConvertInto(const std::string& name, absl::string_view from, DType to,
                         absl::FunctionRef<absl::Status(ByteSink)> give, ByteSink sink) {
  if (SafetensorsDType(to) == from) {
    return give(sink);
  }
  const size_t width = *ElementBytes(from);
  std::vector<std::byte> converted;
  return give([&](absl::Span<const std::byte> block) -> absl::Status {
    converted.resize(block.size() / width * DTypeBytes(to));
    if (const uint64_t lost = ConvertFloats(from, block, to, absl::MakeSpan(converted)); lost > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", name, " has values beyond the range of ", DTypeName(to), " (",
                       lost, " in one block): take bf16 or fp32"));
    }
    return sink(converted);
  });
}

uint64_t TensorSize(const TensorSpec& spec) {
  uint64_t bytes = DTypeBytes(spec.dtype);
  for (const int64_t size : spec.shape) {
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

absl::StatusOr<size_t> WriteWeights(Storage& storage, const std::vector<TensorSpec>& tensors,
                                    TensorBytesSource bytes, uint64_t shard_bytes_max) {
  std::vector<std::vector<size_t>> shards = SplitIntoShards(tensors, shard_bytes_max);
  if (shards.empty()) {
    shards.emplace_back();  // A model without tensors is a file without tensors.
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    std::vector<TensorSpec> specs;
    for (const size_t index : shards[i]) {
      specs.push_back(tensors[index]);
    }
    const auto give = [&](size_t index, ByteSink sink) { return bytes(shards[i][index], sink); };
    const std::string name = ShardName(static_cast<int>(i + 1), static_cast<int>(shards.size()));
    DT_RETURN_IF_ERROR(WriteSafetensors(storage, name, specs, give, Access::kEveryone).status());
  }
  if (shards.size() == 1) {
    return size_t{1};
  }
  DT_RETURN_IF_ERROR(WriteSmallFile(storage, "model.safetensors.index.json",
                                    IndexText(tensors, shards), Access::kEveryone)
                         .status());
  return shards.size() + 1;
}

absl::StatusOr<std::string> WithTypeInConfig(const std::string& text, absl::string_view file_name,
                                             DType dtype) {
  DT_ASSIGN_OR_RETURN(Json config, ParseJson(text, file_name));
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, " is no JSON object"));
  }
  if (!ReplaceType(ConfigType(dtype), config)) {
    config["torch_dtype"] = ConfigType(dtype);
  }
  return DumpJson(config, 2) + "\n";
}

}  // namespace dtrain::checkpoint
