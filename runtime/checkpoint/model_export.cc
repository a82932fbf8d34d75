// Writing model folders: to a folder beside the target, which then takes its place.
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <unordered_map>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/storage/posix_storage.h"
#include "dtrain/model_files.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/job/exception_status.h"
#include "runtime/model/dtypes.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/plan/data/tokenizer_files.h"

namespace dtrain {
namespace {

namespace fs = std::filesystem;
using Values = absl::FunctionRef<absl::StatusOr<at::Tensor>(size_t index)>;

absl::Status FromErrorCode(const std::error_code& error, absl::string_view what) {
  return error ? ErrnoStatus(error.value(), what) : absl::OkStatus();
}

// A folder that a model may replace: none, an empty one, or an earlier model.
absl::Status CheckReplaceable(const std::string& directory) {
  std::error_code error;
  if (!fs::exists(directory, error)) {
    return absl::OkStatus();
  }
  bool model = fs::is_directory(directory, error) && fs::is_empty(directory, error);
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    model = model || absl::EndsWith(it->path().string(), ".safetensors");
  }
  return model ? absl::OkStatus()
               : absl::FailedPreconditionError(
                     absl::StrCat(directory,
                                  " is there and is no model folder; it is left alone: "
                                  "remove it, or export to another folder"));
}

absl::Status MoveIntoPlace(const std::string& from, const std::string& to) {
  std::error_code error;
  const std::string aside = absl::StrCat(to, ".replaced-", getpid());
  if (fs::exists(to, error)) {
    fs::rename(to, aside, error);
    DT_RETURN_IF_ERROR(FromErrorCode(error, absl::StrCat("cannot move aside ", to)));
  }
  fs::rename(from, to, error);
  DT_RETURN_IF_ERROR(FromErrorCode(error, absl::StrCat("cannot rename ", from, " to ", to)));
  fs::remove_all(aside, error);
  return absl::OkStatus();
}

struct Shard {
  std::string file;
  std::vector<size_t> tensors;  // Indices in the content.
};

absl::StatusOr<uint64_t> BytesOfTensor(const ModelTensor& tensor) {
  DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(tensor.dtype));
  uint64_t bytes = DTypeBytes(dtype);
  for (const int64_t size : tensor.shape) {
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

// In the given order, as transformers splits: a tensor larger than the limit has a file of its own.
absl::StatusOr<std::vector<Shard>> SplitIntoShards(const ModelFolderContent& content) {
  std::vector<Shard> shards(1);
  uint64_t filled = 0;
  for (size_t i = 0; i < content.tensors.size(); ++i) {
    DT_ASSIGN_OR_RETURN(const uint64_t bytes, BytesOfTensor(content.tensors[i]));
    if (filled > 0 && filled + bytes > content.shard_bytes_max) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().tensors.push_back(i);
    filled += bytes;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1 ? absl::StrCat(content.weights, ".safetensors")
                                        : absl::StrFormat("%s-%05d-of-%05d.safetensors",
                                                          content.weights, i + 1, shards.size());
  }
  return shards;
}

// In which order the files ask for values: a safetensors file sorts its tensors.
absl::StatusOr<std::vector<size_t>> OrderOfValues(const ModelFolderContent& content) {
  DT_ASSIGN_OR_RETURN(const std::vector<Shard> shards, SplitIntoShards(content));
  std::vector<size_t> order;
  for (const Shard& shard : shards) {
    std::vector<checkpoint::TensorEntry> entries;
    std::unordered_map<std::string, size_t> index;
    for (const size_t i : shard.tensors) {
      const ModelTensor& tensor = content.tensors[i];
      DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(tensor.dtype));
      entries.push_back({.name = tensor.name,
                         .dtype = std::string(checkpoint::SafetensorsDType(dtype)),
                         .shape = {tensor.shape.begin(), tensor.shape.end()}});
      index[tensor.name] = i;
    }
    DT_RETURN_IF_ERROR(checkpoint::EncodeSafetensorsHeader({}, entries).status());
    for (const checkpoint::TensorEntry& entry : entries) {
      order.push_back(index[entry.name]);
    }
  }
  return order;
}

std::string IndexText(const ModelFolderContent& content, const std::vector<Shard>& shards,
                      uint64_t total_bytes) {
  Json map = Json::object();
  for (const Shard& shard : shards) {
    for (const size_t i : shard.tensors) {
      map[content.tensors[i].name] = shard.file;
    }
  }
  return DumpJson({{"metadata", {{"total_size", total_bytes}}}, {"weight_map", map}}, 2) + "\n";
}

absl::Status WriteInto(const std::string& directory, const ModelFolderContent& content,
                       Values values) {
  using checkpoint::Access;
  DT_ASSIGN_OR_RETURN(const auto storage, checkpoint::OpenPosixStorage(directory));
  DT_ASSIGN_OR_RETURN(const std::vector<Shard> shards, SplitIntoShards(content));
  uint64_t total = 0;
  for (const Shard& shard : shards) {
    std::vector<checkpoint::TensorSpec> specs;
    for (const size_t i : shard.tensors) {
      const ModelTensor& tensor = content.tensors[i];
      DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(tensor.dtype));
      specs.push_back({tensor.name, dtype, tensor.shape});
    }
    at::Tensor held;
    const auto bytes = [&](size_t index, checkpoint::ByteSink sink) -> absl::Status {
      const ModelTensor& tensor = content.tensors[shard.tensors[index]];
      held = at::Tensor();  // One at a time.
      DT_ASSIGN_OR_RETURN(const at::Tensor given, values(shard.tensors[index]));
      held = given.detach().to(at::kCPU, tensor.dtype).contiguous();
      total += held.nbytes();
      return sink(BytesOf(held));
    };
    DT_RETURN_IF_ERROR(
        WriteSafetensors(*storage, shard.file, specs, bytes, Access::kEveryone).status());
  }
  if (shards.size() > 1) {
    DT_RETURN_IF_ERROR(WriteSmallFile(*storage,
                                      absl::StrCat(content.weights, ".safetensors.index.json"),
                                      IndexText(content, shards, total), Access::kEveryone)
                           .status());
  }
  for (const auto& [name, text] : content.files) {
    DT_RETURN_IF_ERROR(WriteSmallFile(*storage, name, text, Access::kEveryone).status());
  }
  return storage->SyncDirectory("");
}

// Adds files to those of a folder, or replaces the ones of their names.
void PutFiles(const plan::NamedTexts& more, plan::NamedTexts& files) {
  for (const auto& file : more) {
    std::erase_if(files, [&](const auto& earlier) { return earlier.first == file.first; });
    files.push_back(file);
  }
}

// The tensors of an export, by its names.
std::vector<StoredTensor> TensorsOf(const EngineState& state, const ExportOptions& options) {
  std::vector<StoredTensor> stored =
      StoredTensors(state, options.public_name ? options.public_name : state.options.public_name,
                    state.options.store_frozen || options.with_frozen);
  std::erase_if(stored, [](const StoredTensor& item) { return item.name.empty(); });
  return stored;
}

// `item` with its change; undefined: it has none. All ranks add, since a change may be a weight,
// which all must read.
absl::StatusOr<at::Tensor> Changed(const StoredTensor& item, const ExportOptions& options) {
  try {
    const at::Tensor change = options.change(item.module_name);
    if (!change.defined()) {
      return change;
    }
    if (change.sizes() != item.tensor.sizes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ExportOptions::change gave ", c10::str(change.sizes()), " for ", item.module_name,
          ", which is ", c10::str(item.tensor.sizes()), "; it must have that shape"));
    }
    return at::add(item.tensor.to(at::kFloat), change);
  } catch (const std::exception& error) {
    return Annotate(FromException("in ExportOptions::change", error), item.module_name);
  }
}

// The values of `item` with its change, in `copy` unless that is null. Collective at ZeRO stage 3.
absl::Status TakeValues(const EngineState& state, const StoredTensor& item,
                        const ExportOptions& options, at::Tensor* copy) {
  const bool changes = options.change != nullptr && (copy != nullptr || state.live != nullptr);
  absl::Status status;
  const auto take = [&] {
    absl::StatusOr<at::Tensor> changed = at::Tensor();
    status = WithWhole(state, item, [&] {
      if (changes) {
        changed = Changed(item, options);
      }
      if (copy != nullptr && changed.ok() && changed->defined()) {
        *copy = *changed;
      } else if (copy != nullptr) {
        *copy = item.shared.has_value() ? item.tensor.clone() : item.tensor;
      }
    });
    status.Update(changed.status());
  };
  if (!changes) {
    take();
    return status;
  }
  status.Update(WithExactReads(state, take));
  return status;
}

}  // namespace

absl::Status WriteModelFolder(const std::string& directory, const ModelFolderContent& content,
                              Values values) {
  const at::NoGradGuard no_grad;
  DT_RETURN_IF_ERROR(CheckReplaceable(directory));
  const std::string partial = absl::StrCat(directory, ".partial-", getpid());
  std::error_code error;
  fs::remove_all(partial, error);  // A process with our id may have died and left it.
  absl::Status status = WriteInto(partial, content, values);
  if (status.ok()) {
    status = MoveIntoPlace(partial, directory);
  }
  if (!status.ok()) {
    fs::remove_all(partial, error);
  }
  return status;
}

absl::Status ExportModel(Job& job, Engine& engine, const std::string& directory,
                         const ExportOptions& options) {
  const at::NoGradGuard no_grad;
  const EngineState& state = engine.state();
  DT_RETURN_IF_ERROR(state.last_step.status);
  const std::vector<StoredTensor> stored = TensorsOf(state, options);
  ModelFolderContent content;
  if (!state.options.model_config.is_null()) {
    content.files.emplace_back("config.json", DumpJson(state.options.model_config, 2) + "\n");
  }
  PutFiles(state.options.model_files, content.files);
  PutFiles(options.files, content.files);
  content.weights = options.weights;
  content.shard_bytes_max = static_cast<uint64_t>(job.config().checkpoint_shard_bytes_max());
  for (const StoredTensor& item : stored) {
    content.tensors.push_back({item.name, item.tensor.scalar_type(), item.tensor.sizes().vec()});
  }
  // A tensor is gathered by all ranks: rank 0 while it writes, the others in the same order, and
  // rank 0 goes through those that are left when it cannot write.
  DT_ASSIGN_OR_RETURN(const std::vector<size_t> order, OrderOfValues(content));
  size_t gathered = 0;
  const auto next = [&](at::Tensor* copy) {
    return TakeValues(state, stored[order[gathered++]], options, copy);
  };
  absl::Status status;
  if (job.rank() == 0) {
    status = WriteModelFolder(directory, content, [&](size_t index) -> absl::StatusOr<at::Tensor> {
      DT_CHECK(index == order[gathered]) << "tensors are written in another order than planned";
      at::Tensor values;
      DT_RETURN_IF_ERROR(next(&values));
      return values;
    });
  }
  while (gathered < order.size()) {  // Also behind an error, which another rank may not have.
    status.Update(next(nullptr));
  }
  return status;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadTokenizerFiles(
    const std::string& directory) {
  return plan::ReadTokenizerFiles(directory);
}

}  // namespace dtrain
