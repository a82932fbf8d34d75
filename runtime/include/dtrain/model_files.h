// Models as files: folders in Hugging Face's form (config.json beside safetensors, in one file or
// shards with an index), read into a module and written from an engine.
//
//   DT_ASSIGN_OR_RETURN(const auto files, dtrain::ModelFiles::Open("Qwen2.5-0.5B"));
//   Gpt model = dtrain::Construct(job, [&] { return Gpt(options); });
//   DT_RETURN_IF_ERROR(dtrain::LoadModel(job, *model, *files));
//   DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(job, *model));  // Takes rank 0's.
//
// Files are somebody else's: headers are parsed strictly and within bounded memory, and nothing in
// them is executed. Thread-safe where not said otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "dtrain/engine.h"
#include "dtrain/job.h"

namespace dtrain {

// The JSON of `path`, a config.json or a folder that holds one; at most 32 MB. Errors name the file
// and, for a syntax error, line and column.
absl::StatusOr<Json> ReadModelConfig(const std::string& path);

// The facts about a tensor that a file gives.
struct ModelTensor {
  std::string name;                   // Its name in the files.
  at::ScalarType dtype = at::kFloat;  // The type in which it is stored.
  std::vector<int64_t> shape;         // Row-major; [] is a scalar.
};

// How LoadModel matches the tensors of files and module.
struct LoadModelOptions {
  // Name in the files of a parameter or buffer of the module. Null: its name in the module.
  std::function<std::string(const std::string&)> public_name = {};
  // Whether a tensor of the files that the module does not have may be left unread. Null: none.
  std::function<bool(const std::string&)> ignore = {};
};

// The weights of a model folder, of which only headers are read at first.
class ModelFiles {
 public:
  // NotFound, InvalidArgument: no weights, or a file that is not what it should be.
  static absl::StatusOr<std::unique_ptr<ModelFiles>> Open(const std::string& directory);
  ~ModelFiles();

  const std::string& directory() const;  // The folder, as Open got it.
  // Names of all tensors, sorted.
  std::vector<std::string> names() const;
  // Whether there is a tensor of this name.
  bool Contains(const std::string& name) const;
  // Unimplemented: of a type that dtrain does not compute with (FP8 and the like).
  absl::StatusOr<ModelTensor> Describe(const std::string& name) const;
  // Reads a tensor of the same shape, converted from fp32, bf16, fp16 or fp64 to the type of `into`
  // a few MiB at a time. REQUIRES: `into` is a contiguous CPU tensor.
  absl::Status Read(const std::string& name, at::Tensor into) const;
  // Whether two tensors have the same shape and values, whatever their types; a few MiB of each are
  // read at a time, up to the first difference.
  absl::StatusOr<bool> HaveEqualValues(const std::string& a, const std::string& b) const;

 private:
  friend absl::Status LoadModel(const Job& job, torch::nn::Module& module, const ModelFiles& files,
                                const LoadModelOptions& options);
  friend absl::Status LoadModel(torch::nn::Module& module, const ModelFiles& files,
                                const LoadModelOptions& options);
  struct State;
  explicit ModelFiles(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Fills the parameters and buffers of `module`, shared ones once. InvalidArgument lists all tensors
// that the files lack, that the module lacks and whose shapes differ, before anything is read.
// Every rank compares the headers; only rank 0 reads values, because Engine::Create takes its. Call
// it between dtrain::Construct and Engine::Create.
absl::Status LoadModel(const Job& job, torch::nn::Module& module, const ModelFiles& files,
                       const LoadModelOptions& options = {});
// The same in a process that is no rank of a job: a program that only reads a model.
absl::Status LoadModel(torch::nn::Module& module, const ModelFiles& files,
                       const LoadModelOptions& options = {});

// The content of a model folder.
struct ModelFolderContent {
  std::vector<std::pair<std::string, std::string>> files;  // Small ones: {"config.json", text}.
  std::string weights = "model";     // NAME.safetensors, or shards NAME-00001-of-... with an index.
  std::vector<ModelTensor> tensors;  // All tensors of the model.
  uint64_t shard_bytes_max = 50'000'000'000;  // The most bytes of tensors in a file.
};

// Writes a folder, which appears whole or not at all and takes the place of one that is there.
// `values(index)` gives the values of content.tensors[index], called once each in the order of the
// files; only one tensor is held at a time. FailedPrecondition: something else than a model folder
// is in the way (a file, or a folder without a .safetensors file).
absl::Status WriteModelFolder(const std::string& directory, const ModelFolderContent& content,
                              absl::FunctionRef<absl::StatusOr<at::Tensor>(size_t index)> values);

// Adds to an export, or replaces, what checkpoints store.
struct ExportOptions {
  std::vector<std::pair<std::string, std::string>> files =
      {};                         // Beside EngineOptions::model_config.
  std::string weights = "model";  // The same as ModelFolderContent::weights.
  // In place of EngineOptions::public_name; "" leaves the tensor out. Null: as checkpoints.
  std::function<std::string(const std::string&)> public_name = {};
  // Frozen parameters too where EngineOptions::store_frozen is false.
  bool with_frozen = false;
  // Gives a tensor that is added to the one of this name in the module, in fp32, before the sum is
  // rounded to its type once. It has that tensor's shape; undefined adds nothing. So adapters are
  // merged into the weights that they adapt. It may read other parameters by operations: at ZeRO
  // stage 3 these are gathered, exactly, and every rank calls it; below that rank 0 alone.
  std::function<at::Tensor(const std::string&)> change = {};
};

// Collective: writes the engine's model as checkpoints store it (public names, config.json, no
// frozen parameters where store_frozen is false), or changed, by WriteModelFolder on rank 0. At
// ZeRO stage 3 one tensor is gathered at a time, with what its change reads, rank 0 alone keeps it
// while it is written, and the others wait for rank 0's disk.
absl::Status ExportModel(Job& job, Engine& engine, const std::string& directory,
                         const ExportOptions& options = {});

// The small files of a model folder that belong to its tokenizer and to generation, as {name,
// text}: what an exported model needs beside its weights. Those that are not there are left out.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadTokenizerFiles(
    const std::string& directory);

}  // namespace dtrain
