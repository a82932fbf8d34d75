// Trains the example's GPT on token files: `dtrain-gpt CONFIG.json`.
#include <dtrain/dtrain.h>

#include "absl/strings/str_format.h"
#include "gpt/model_source.h"
#include "gpt/sample.h"

namespace {

constexpr char kAbout[] =
    "Trains a decoder-only Transformer on token files. Choose its shape and weights:\n"
    "  --set model.config=FILE        Shape of a config.json (GPT-2, Llama, Qwen2 or\n"
    "                                 Qwen3), with random weights.\n"
    "                                 examples/configs/models has some.\n"
    "  --set model.pretrained=FOLDER  Shape and weights of a Hugging Face folder.\n"
    "  --set model.hidden_size=N ...  A Llama of the shape that you give.\n"
    "  --set data.document_token=0    Keep attention inside each document of a sample.\n"
    "docs/MODELS.md explains them.\n";

absl::Status ShowSample(dtrain::Job& job, dtrain::Engine& engine, GptImpl& model) {
  const dtrain::Json& user = job.config().user("sample");
  const SampleOptions options{.prompt = user.value("prompt", std::string("#include <")),
                              .bytes = user.value("bytes", int64_t{300})};
  if (options.bytes <= 0 || model.options().vocab_size != 256) {
    return absl::OkStatus();  // Only bytes are text.
  }
  std::string text;
  DT_RETURN_IF_ERROR(engine.WithParameters([&] {
    if (job.rank() == 0) {
      text = Printable(Sample(model, options));
    }
  }));
  job.metrics().Print(absl::StrFormat("\nsampled text:\n%s\n", text));
  return absl::OkStatus();
}

double FlopsOf(const dtrain::Config& config, const dtrain::TokenLoader& data,
               const GptImpl& model) {
  return model.FlopsPerToken(config.sequence_length(), data.has_documents());
}

absl::Status Train(dtrain::Job& job) {
  const dtrain::Config& config = job.config();
  DT_ASSIGN_OR_RETURN(const ModelSource source, ReadModelSource(config));
  const GptOptions& options = source.options;
  DT_RETURN_IF_ERROR(
      dtrain::CheckModelFits(job, options.ToHuggingFace(config.precision())));  // Not killed later.
  DT_ASSIGN_OR_RETURN(Gpt model, MakeModel(job, source));
  const dtrain::TokenLoaderOptions ids{.vocabulary = options.vocab_size};
  DT_ASSIGN_OR_RETURN(auto train, dtrain::TokenLoader::Open(job, dtrain::Split::kTrain, ids));
  DT_ASSIGN_OR_RETURN(auto valid, dtrain::TokenLoader::Open(job, dtrain::Split::kValidation, ids));
  DT_RETURN_IF_ERROR(CheckVocabulary(job, source, *train));
  DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(
                                       job, *model,
                                       {.flops_per_sample = FlopsOf(config, *train, *model),
                                        .model_config = options.ToHuggingFace(config.precision()),
                                        .may_leave_step = true}));
  DT_ASSIGN_OR_RETURN(auto checkpoints, dtrain::Checkpointer::Open(job));
  checkpoints->Track("engine", *engine);
  checkpoints->Track("data", *train);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  const auto loss = [&](const dtrain::Batch& batch) { return model->Loss(batch); };
  while (engine->step() < config.train_steps()) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(*train, loss));
    job.metrics().Log(report);
    if (!job.stop_agreed() && config.evaluate_at(engine->step())) {
      DT_ASSIGN_OR_RETURN(const double valid_loss, engine->Evaluate(*valid, loss));
      job.metrics().Log("eval/loss", valid_loss);
    }
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  DT_RETURN_IF_ERROR(checkpoints->Finish());
  DT_RETURN_IF_ERROR(ShowSample(job, *engine, *model));
  job.metrics().Print(absl::StrFormat(
      "run directory: %s\ntry next:\n"
      "  --set train_steps=%d      train on from here (the same command resumes)\n"
      "  --fresh                  start again from step 0 (this run is moved aside)\n"
      "  dtrain checkpoint list %s\n"
      "  tensorboard --logdir %s/report/tensorboard",
      job.run_dir(), 2 * config.train_steps(), job.run_dir(), job.run_dir()));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) { return dtrain::Main(argc, argv, Train, kAbout); }
