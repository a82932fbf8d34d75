// Test program: writes the logits of the first validation micro-batch by the configuration's model
// to RUN_DIR/logits/logits.safetensors ("tokens", "logits"), and the model to RUN_DIR/export.
#include <ATen/ATen.h>
#include <dtrain/dtrain.h>

#include "gpt/model_source.h"

namespace {

absl::Status Run(dtrain::Job& job) {
  DT_ASSIGN_OR_RETURN(const ModelSource source, ReadModelSource(job.config()));
  DT_ASSIGN_OR_RETURN(Gpt model, MakeModel(job, source));
  DT_ASSIGN_OR_RETURN(auto valid, dtrain::TokenLoader::Open(job, dtrain::Split::kValidation));
  DT_ASSIGN_OR_RETURN(const dtrain::Batch batch, valid->Next());
  DT_ASSIGN_OR_RETURN(
      auto engine,
      dtrain::Engine::Create(
          job, *model, {.model_config = source.options.ToHuggingFace(job.config().precision())}));
  at::Tensor logits;
  DT_RETURN_IF_ERROR(engine->WithParameters([&] {
    model->eval();
    logits = model->forward(batch.tokens, batch.positions);
  }));
  DT_RETURN_IF_ERROR(dtrain::ExportModel(job, *engine, job.run_dir() + "/export"));
  if (job.rank() != 0) {
    return absl::OkStatus();
  }
  const std::vector<at::Tensor> tensors = {batch.tokens, logits};
  dtrain::ModelFolderContent content;
  content.weights = "logits";
  content.tensors = {{"tokens", at::kLong, batch.tokens.sizes().vec()},
                     {"logits", logits.scalar_type(), logits.sizes().vec()}};
  return dtrain::WriteModelFolder(job.run_dir() + "/logits", content,
                                  [&](size_t i) { return tensors[i]; });
}

}  // namespace

int main(int argc, char** argv) { return dtrain::Main(argc, argv, Run); }
