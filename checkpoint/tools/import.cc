#include "checkpoint/tools/import.h"

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/commit/writer.h"
#include "checkpoint/restore/open_target.h"
#include "checkpoint/storage/posix_storage.h"
#include "checkpoint/tools/logical_tensors.h"
#include "checkpoint/tools/model_folder.h"
#include "checkpoint/tools/output_folder.h"
#include "checkpoint/tools/weight_files.h"

namespace dtrain::checkpoint {
namespace {

constexpr char kCheckpointsFolder[] = "checkpoints";

// Gives weights to the writer of checkpoints, converted on the way.
class WeightSource final : public StateSource {
 public:
  static absl::StatusOr<WeightSource> Create(const std::string& path, std::optional<DType> dtype) {
    DT_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::Open(path));
    WeightSource source(std::move(files), path, dtype);
    for (const TensorEntry& entry : source.files_.tensors()) {
      TensorSpec spec;
      spec.name = entry.name;
      absl::StatusOr<DType> type = WrittenType(entry.name, entry.dtype, dtype);
      if (!type.ok()) {
        return Annotate(type.status(), path);
      }
      spec.dtype = *type;
      spec.shape.assign(entry.shape.begin(), entry.shape.end());
      source.bytes_ += TensorSize(spec);
      source.specs_.push_back(std::move(spec));
    }
    if (source.specs_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " holds no tensor"));
    }
    return source;
  }

  uint64_t bytes() const { return bytes_; }

  absl::StatusOr<std::vector<TensorSpec>> ModelTensors() override { return specs_; }
  absl::Status GiveModel(size_t index, ByteSink sink) override {
    const TensorEntry& entry = files_.tensors()[index];
    const auto give = [&](ByteSink block_sink) { return files_.Give(index, block_sink); };
    return ConvertInto(entry.name, entry.dtype, specs_[index].dtype, give, sink);
  }
  absl::StatusOr<std::vector<TensorSpec>> StateTensors() override {
    return std::vector<TensorSpec>();
  }
  absl::Status GiveState(size_t /*index*/, ByteSink /*sink*/) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelFiles() override {
    DT_ASSIGN_OR_RETURN(auto files, files_.SmallFiles());
    for (auto& [name, text] : files) {
      if (name == "config.json" && dtype_.has_value()) {
        DT_ASSIGN_OR_RETURN(text, WithTypeInConfig(text, path_ + "/config.json", *dtype_));
      }
    }
    return files;
  }
  absl::StatusOr<JobState> Job() override {
    JobState state;
    state.engine = {{kWeightsOnlyKey, true},
                    {"step", 0},
                    {"updates", 0},
                    {"imported_from", std::filesystem::path(path_).filename().string()}};
    return state;
  }
  absl::StatusOr<Json> Rank() override { return Json{{kRangesKey, Json::array()}}; }

 private:
  WeightSource(WeightFiles files, std::string path, std::optional<DType> dtype)
      : files_(std::move(files)), path_(std::move(path)), dtype_(dtype) {}

  WeightFiles files_;
  std::string path_;
  std::optional<DType> dtype_;
  std::vector<TensorSpec> specs_;
  uint64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<WeightImport> ImportWeights(const std::string& source, const std::string& run_dir,
                                           const WeightImportOptions& options) {
  DT_ASSIGN_OR_RETURN(const std::string path, LocalPlaceOf(source));
  DT_ASSIGN_OR_RETURN(WeightSource weights, WeightSource::Create(path, options.dtype));
  DT_ASSIGN_OR_RETURN(const auto folder, OutputFolder::Create(run_dir));
  DT_RETURN_IF_ERROR(CheckRoom(folder->storage(), weights.bytes(), run_dir));
  DT_ASSIGN_OR_RETURN(const auto storage,
                      OpenPosixStorage(folder->storage().DisplayName(kCheckpointsFolder)));
  WriterOptions writer_options;
  DT_ASSIGN_OR_RETURN(writer_options.epoch, BeginEpoch(*storage, "imported", 1, std::nullopt));
  AloneExchange alone;
  const SaveReport report = Writer(*storage, writer_options).Save(0, weights, alone);
  if (!report.durable()) {
    return report.status;
  }
  DT_RETURN_IF_ERROR(folder->Publish());
  WeightImport result;
  result.id = report.id;
  result.tensors = weights.ModelTensors()->size();
  result.bytes = weights.bytes();
  return result;
}

}  // namespace dtrain::checkpoint
