// Fine-tunes a published model: `dtrain-finetune CONFIG.json` with model.pretrained. It trains all
// weights, or low-rank adapters beside frozen ones. docs/MODELS.md explains the keys of "finetune".
#include <dtrain/dtrain.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "finetune/lora.h"
#include "gpt/config_reader.h"
#include "gpt/model_source.h"

namespace {

constexpr char kAbout[] =
    "Fine-tunes the model in model.pretrained, a Hugging Face folder (GPT-2, Llama,\n"
    "Qwen2 or Qwen3).\n"
    "\n"
    "Method and result:\n"
    "  --set finetune.method=lora  Train adapters beside frozen weights (the default).\n"
    "                              finetune.lora has r, lora_alpha, lora_dropout,\n"
    "                              use_rslora and target_modules.\n"
    "  --set finetune.method=full  Train all weights.\n"
    "  --set finetune.export_merged=false\n"
    "                              Write the adapters alone, without the merged model.\n"
    "  --set finetune.out=FOLDER   Write the tuned model there. Default: in the run\n"
    "                              directory.\n"
    "  --set finetune.overwrite=true\n"
    "                              Replace a model that is there when the run begins.\n"
    "\n"
    "The result goes to RUN_DIR/export: model/ with full; adapter/ (in PEFT's format)\n"
    "and merged/ with lora. docs/MODELS.md, in a package share/doc/dtrain/MODELS.md,\n"
    "has the details.\n";

// The file of finetune.out that names its run.
constexpr char kExportMark[] = "dtrain-finetune.json";

enum class Method { kFull, kLora };

struct FinetuneOptions {
  Method method = Method::kLora;
  dtrain::LoraOptions lora;
  bool export_merged = true;  // Beside the adapters.
  std::string out;            // Folder of the whole model; "": below the run directory.
  bool overwrite = false;     // A model that is there before the run begins may be replaced.

  static absl::StatusOr<FinetuneOptions> FromJson(const dtrain::Json& json, bool gpt2) {
    FinetuneOptions options;
    ConfigReader reader(json, "finetune");
    reader.Choice("method", {{"full", Method::kFull}, {"lora", Method::kLora}}, options.method);
    const dtrain::Json lora = reader.Take("lora");
    reader.Boolean("export_merged", options.export_merged);
    const dtrain::Json out = reader.Take("out");
    reader.Boolean("overwrite", options.overwrite);
    DT_RETURN_IF_ERROR(reader.Finish());
    if (!out.is_null() && (!out.is_string() || out.get<std::string>().empty())) {
      return absl::InvalidArgumentError(
          absl::StrCat("finetune.out is ", out.dump(), "; allowed: a path"));
    }
    options.out = out.is_null() ? "" : out.get<std::string>();
    if (!options.out.empty() && !options.export_merged) {
      return absl::InvalidArgumentError(
          "finetune.out is the folder of the merged model, but finetune.export_merged is false; "
          "remove one of the two");
    }
    if (options.method == Method::kFull && !options.export_merged) {
      return absl::InvalidArgumentError(
          "finetune.export_merged is false with finetune.method \"full\", which has no adapters; "
          "remove it, or set \"lora\"");
    }
    if (options.method == Method::kFull && !lora.is_null()) {
      return absl::InvalidArgumentError(
          "finetune.lora is given with finetune.method \"full\"; remove it, or set \"lora\"");
    }
    DT_ASSIGN_OR_RETURN(
        options.lora,
        ReadLoraOptions(lora.is_null() ? dtrain::Json::object() : lora, "finetune.lora"));
    if (options.lora.target_modules.empty()) {
      options.lora.target_modules =
          gpt2 ? std::vector<std::string>{"c_attn"} : std::vector<std::string>{"q_proj", "v_proj"};
    }
    return options;
  }
};

// Backward through frozen weights computes only the gradient of their inputs: 4 FLOPs a parameter.
double LoraFlops(GptImpl& model, double all) {
  double adapters = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    adapters += parameter.requires_grad() ? static_cast<double>(parameter.numel()) : 0;
  }
  const double frozen = dtrain::StrictParameters(model.options().flop_model());
  return all - 2 * frozen + 6 * adapters;
}

// The parts of one run beside the job.
struct Finetune {
  ModelSource source;
  FinetuneOptions options;
  std::vector<std::string> adapted;  // Names of the projections with adapters.

  bool lora() const { return options.method == Method::kLora; }
};

absl::StatusOr<Finetune> ReadFinetune(const dtrain::Config& config) {
  Finetune run;
  DT_ASSIGN_OR_RETURN(run.source, ReadModelSource(config));
  if (run.source.pretrained.empty()) {
    return absl::InvalidArgumentError(
        "model.pretrained is not set: give the Hugging Face folder of the model to fine-tune");
  }
  DT_ASSIGN_OR_RETURN(run.options, FinetuneOptions::FromJson(config.user("finetune"),
                                                             run.source.options.is_gpt2()));
  return run;
}

absl::StatusOr<dtrain::EngineOptions> EngineOptionsOf(const dtrain::Config& config,
                                                      const Finetune& run, bool has_documents,
                                                      GptImpl& model) {
  dtrain::EngineOptions options;
  options.flops_per_sample = model.FlopsPerToken(config.sequence_length(), has_documents);
  if (run.lora()) {
    options.flops_per_sample = LoraFlops(model, options.flops_per_sample);
    options.public_name = dtrain::PeftName;
    options.store_frozen = false;  // The base folder has them.
  } else {
    options.model_config = run.source.options.ToHuggingFace(config.precision());
    DT_ASSIGN_OR_RETURN(options.model_files, dtrain::ReadTokenizerFiles(run.source.pretrained));
  }
  options.may_leave_step = true;
  return options;
}

absl::Status Export(dtrain::Job& job, dtrain::Engine& engine, GptImpl& model, const Finetune& run) {
  const std::string folder = job.run_dir() + "/export";
  DT_ASSIGN_OR_RETURN(auto files, dtrain::ReadTokenizerFiles(run.source.pretrained));
  const std::string& out = run.options.out;
  if (!out.empty()) {
    // By this `dtrain finetune` knows the folder as this run's, even if it is killed before it has
    // recorded that. It looks for files that are newer, so that this must be the last one.
    files.emplace_back(kExportMark, dtrain::DumpJson({{"run", job.run_id()}}, 2) + "\n");
  }
  if (!run.lora()) {
    const std::string whole = out.empty() ? folder + "/model" : out;
    DT_RETURN_IF_ERROR(dtrain::ExportModel(job, engine, whole, {.files = files}));
    job.metrics().Print(absl::StrFormat("fine-tuned model: %s", whole));
    return absl::OkStatus();
  }
  const std::string config =
      dtrain::AdapterConfig(run.options.lora, run.adapted, run.source.pretrained,
                            /*transposed=*/run.source.options.is_gpt2());
  DT_RETURN_IF_ERROR(dtrain::ExportModel(
      job, engine, folder + "/adapter",
      {.files = {{"adapter_config.json", config}}, .weights = "adapter_model"}));
  job.metrics().Print(absl::StrFormat("adapter: %s/adapter", folder));
  if (!run.options.export_merged) {
    return absl::OkStatus();
  }
  const std::string merged = out.empty() ? folder + "/merged" : out;
  DT_RETURN_IF_ERROR(ExportMergedGpt(job, engine, model, files, merged));
  job.metrics().Print(absl::StrFormat("merged model: %s", merged));
  return absl::OkStatus();
}

// A number for the weights in a model folder, of which it reads little: all vectors, and the
// smallest matrix. Two models of one shape, one of which was trained on, differ in these.
absl::StatusOr<std::string> WeightsDigest(const std::string& folder) {
  DT_ASSIGN_OR_RETURN(const auto files, dtrain::ModelFiles::Open(folder));
  std::vector<at::Tensor> read;
  std::optional<std::pair<int64_t, std::string>> smallest;
  const auto values = [&](const std::string& name, at::IntArrayRef shape) {
    read.push_back(at::empty(shape));
    return files->Read(name, read.back());
  };
  for (const std::string& name : files->names()) {
    DT_ASSIGN_OR_RETURN(const dtrain::ModelTensor tensor, files->Describe(name));
    if (tensor.shape.size() == 1) {
      DT_RETURN_IF_ERROR(values(name, tensor.shape));
    } else if (tensor.shape.size() == 2) {
      const std::pair<int64_t, std::string> other(tensor.shape[0] * tensor.shape[1], name);
      smallest = smallest.has_value() ? std::min(*smallest, other) : other;
    }
  }
  if (smallest.has_value()) {
    DT_ASSIGN_OR_RETURN(const dtrain::ModelTensor tensor, files->Describe(smallest->second));
    DT_RETURN_IF_ERROR(values(tensor.name, tensor.shape));
  }
  uint64_t digest = 0xcbf29ce484222325;  // FNV-1a.
  for (const at::Tensor& tensor : read) {
    const auto* const bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i) {
      digest = (digest ^ bytes[i]) * 0x100000001b3;
    }
  }
  return absl::StrFormat("%016x", digest);
}

// Adapters fit one base model, whose files may be edited in place between two starts.
class BaseModel final : public dtrain::Tracked {
 public:
  BaseModel(dtrain::Json shape, const std::string& weights) : shape_(std::move(shape)) {
    shape_["weights_digest"] = weights;
    for (const char* const key : {"dtype", "torch_dtype"}) {  // The run's, which may change.
      shape_.erase(key);
    }
  }
  dtrain::Json SaveState() const override { return shape_; }
  absl::Status RestoreState(const dtrain::Json& saved) override {
    for (const auto& [key, value] : saved.items()) {
      if (shape_.contains(key) && shape_.at(key) != value) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "the base model differs from the one that the adapters were trained on: %s was %s, now "
            "%s; restore its files, or start anew with --fresh",
            key, value.dump(), shape_.at(key).dump()));
      }
    }
    return absl::OkStatus();
  }

 private:
  dtrain::Json shape_;  // A config.json, and the digest of the weights.
};

// Collective. A run that has gone on from a checkpoint has found the place free when it began.
absl::Status CheckOut(dtrain::Job& job, const FinetuneOptions& options, int64_t step) {
  if (options.out.empty() || options.overwrite || step > 0) {
    return absl::OkStatus();
  }
  std::error_code unknown;
  const bool is_taken =
      job.rank() == 0 && std::filesystem::exists(options.out + "/config.json", unknown);
  const at::Tensor taken = at::full({1}, is_taken ? 1 : 0, at::kInt);
  DT_RETURN_IF_ERROR(job.AllReduce(taken, dtrain::Reduction::kMax));
  return taken.item<int>() == 0
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrFormat(
                   "finetune.out %s holds a model, which is left alone; name another folder, or "
                   "set finetune.overwrite to true",
                   options.out));
}

absl::Status Train(dtrain::Job& job) {
  const dtrain::Config& config = job.config();
  DT_ASSIGN_OR_RETURN(Finetune run, ReadFinetune(config));
  if (!run.lora()) {  // Adapters' states are few.
    DT_RETURN_IF_ERROR(
        dtrain::CheckModelFits(job, run.source.options.ToHuggingFace(config.precision())));
  }
  DT_ASSIGN_OR_RETURN(Gpt model, MakeModel(job, run.source));
  if (run.lora()) {
    DT_ASSIGN_OR_RETURN(run.adapted, dtrain::AddLora(*model, run.options.lora, "finetune.lora"));
  }
  const dtrain::TokenLoaderOptions ids{.vocabulary = run.source.options.vocab_size};
  DT_ASSIGN_OR_RETURN(auto train, dtrain::TokenLoader::Open(job, dtrain::Split::kTrain, ids));
  DT_RETURN_IF_ERROR(CheckVocabulary(job, run.source, *train));
  std::unique_ptr<dtrain::TokenLoader> valid;
  if (!config.data_validation().empty()) {
    DT_ASSIGN_OR_RETURN(valid, dtrain::TokenLoader::Open(job, dtrain::Split::kValidation, ids));
  }
  DT_ASSIGN_OR_RETURN(dtrain::EngineOptions engine_options,
                      EngineOptionsOf(config, run, train->has_documents(), *model));
  DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(job, *model, std::move(engine_options)));
  DT_ASSIGN_OR_RETURN(auto checkpoints, dtrain::Checkpointer::Open(job));
  checkpoints->Track("engine", *engine);
  checkpoints->Track("data", *train);
  std::optional<BaseModel> base;
  if (run.lora()) {  // Otherwise checkpoints hold the whole model with its config.json.
    DT_ASSIGN_OR_RETURN(const std::string weights, WeightsDigest(run.source.pretrained));
    base.emplace(run.source.options.ToHuggingFace(config.precision()), weights);
    checkpoints->Track("base", *base);
  }
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  DT_RETURN_IF_ERROR(CheckOut(job, run.options, engine->step()));
  const auto loss = [&](const dtrain::Batch& batch) { return model->Loss(batch); };
  while (engine->step() < config.train_steps()) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(*train, loss));
    job.metrics().Log(report);
    if (valid != nullptr && !job.stop_agreed() && config.evaluate_at(engine->step())) {
      DT_ASSIGN_OR_RETURN(const double valid_loss, engine->Evaluate(*valid, loss));
      job.metrics().Log("eval/loss", valid_loss);
    }
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  DT_RETURN_IF_ERROR(checkpoints->Finish());
  return Export(job, *engine, *model, run);
}

}  // namespace

int main(int argc, char** argv) { return dtrain::Main(argc, argv, Train, kAbout); }
