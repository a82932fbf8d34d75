// Trains the example's GPT on token files: `dtrain-gpt CONFIG.json`.
#include <dtrain/dtrain.h>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "generate/sample.h"
#include "generate/training_tokenizer.h"
#include "gpt/model_source.h"

namespace {

constexpr char kAbout[] =
    "Trains a decoder-only Transformer on token files.\n"
    "\n"
    "Shape, weights and text:\n"
    "  --set model.config=FILE        Shape of a config.json (GPT-2, Llama, Qwen2 or\n"
    "                                 Qwen3), with random weights.\n"
    "                                 examples/configs/models, in a package\n"
    "                                 share/dtrain/configs/models, has some.\n"
    "  --set model.pretrained=FOLDER  Shape and weights of a Hugging Face folder.\n"
    "  --set model.hidden_size=N ...  A Llama of the shape that you give.\n"
    "  --set data.document_token=0    Keep attention inside each document of a sample.\n"
    "  --set sample.tokenizer=FOLDER  Tokenizer of the text that is shown at the end.\n"
    "                                 Default: the one in model.pretrained, else that\n"
    "                                 of the corpus.\n"
    "\n"
    "docs/MODELS.md, in a package share/doc/dtrain/MODELS.md, explains them.\n";

// A sample that cannot be made is no reason to fail a training that is done.
absl::Status ShowSample(dtrain::Job& job, dtrain::Engine& engine, GptImpl& model,
                        const SampleOptions& options) {
  // Rank 0 alone has looked for the tokenizer. Where it shows none, the ranks do not gather
  // weights.
  const bool shows_text = job.rank() == 0 && ShowsText(model.options(), options);
  const at::Tensor agreed = at::full({1}, shows_text ? 1 : 0, at::kInt);
  DT_RETURN_IF_ERROR(job.Broadcast(agreed));
  if (agreed.item<int>() == 0) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> text = std::string();
  DT_RETURN_IF_ERROR(engine.WithParameters([&] {
    if (job.rank() == 0) {
      text = SampleText(model, options);
    }
  }));
  if (!text.ok()) {
    job.metrics().Print(absl::StrCat("no text is sampled: ", text.status().message()));
  } else {
    job.metrics().Print(absl::StrFormat("\nsampled text:\n%s\n", *text));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainingTokenizer> TokenizerAtAddress(dtrain::Job& job) {
  DT_ASSIGN_OR_RETURN(auto files, dtrain::ReadCorpusTokenizer(job));
  return KeepTokenizer(std::move(files), job.run_dir());
}

// The tokenizer by which the model/ of each checkpoint, and the sample at the end, can write text;
// rank 0's counts. A training needs none.
TrainingTokenizer TokenizerOf(dtrain::Job& job, const SampleOptions& sample,
                              const std::string& pretrained) {
  if (job.rank() != 0) {
    return {};
  }
  auto tokenizer = TokenizerOfTraining(job.config(), sample, pretrained);
  if (tokenizer.ok() && tokenizer->source.empty()) {
    tokenizer = TokenizerAtAddress(job);
  }
  if (!tokenizer.ok()) {
    job.metrics().Print(
        absl::StrCat("checkpoints will hold no tokenizer: ", tokenizer.status().message()));
    return {.source = sample.tokenizer, .files = {}};
  }
  return *std::move(tokenizer);
}

// The last lines of a run, with what people do next.
std::string LastLines(const dtrain::Job& job, bool writes_text) {
  const std::string& run = job.run_dir();
  const double epochs = job.config().train_epochs();
  const std::string longer =
      epochs > 0 ? absl::StrFormat("train_epochs=%g", 2 * epochs)
                 : absl::StrFormat("train_steps=%d", 2 * job.config().train_steps());
  return absl::StrFormat(
      "run directory: %s\ntry next:\n"
      "  --set %s      train on from here (the same command resumes)\n"
      "  --fresh                  start again from step 0 (this run is moved aside)\n"
      "%s"
      "  dtrain checkpoint list %s\n"
      "  tensorboard --logdir %s/report/tensorboard",
      run, longer, writes_text ? absl::StrFormat("  dtrain generate %s \"Some text\"\n", run) : "",
      run, run);
}

double FlopsOf(const dtrain::Config& config, const dtrain::TokenLoader& data,
               const GptImpl& model) {
  return model.FlopsPerToken(config.sequence_length(), data.has_documents());
}

absl::Status Train(dtrain::Job& job) {
  const dtrain::Config& config = job.config();
  DT_ASSIGN_OR_RETURN(const ModelSource source, ReadModelSource(config));
  const GptOptions& options = source.options;
  DT_ASSIGN_OR_RETURN(SampleOptions sample, SampleOptions::FromJson(config.user("sample")));
  DT_RETURN_IF_ERROR(
      dtrain::CheckModelFits(job, options.ToHuggingFace(config.precision())));  // Not killed later.
  DT_ASSIGN_OR_RETURN(Gpt model, MakeModel(job, source));
  const dtrain::TokenLoaderOptions ids{.vocabulary = options.vocab_size};
  DT_ASSIGN_OR_RETURN(auto train, dtrain::TokenLoader::Open(job, dtrain::Split::kTrain, ids));
  DT_ASSIGN_OR_RETURN(auto valid, dtrain::TokenLoader::Open(job, dtrain::Split::kValidation, ids));
  DT_RETURN_IF_ERROR(CheckVocabulary(job, source, *train));
  TrainingTokenizer tokenizer = TokenizerOf(job, sample, source.pretrained);
  sample.tokenizer = tokenizer.source;
  const bool writes_text = !tokenizer.files.empty();
  DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(
                                       job, *model,
                                       {.flops_per_sample = FlopsOf(config, *train, *model),
                                        .model_config = options.ToHuggingFace(config.precision()),
                                        .model_files = std::move(tokenizer.files),
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
  DT_RETURN_IF_ERROR(ShowSample(job, *engine, *model, sample));
  job.metrics().Print(LastLines(job, writes_text));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) { return dtrain::Main(argc, argv, Train, kAbout); }
