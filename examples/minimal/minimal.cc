// The smallest real training program. Start it with
// `dtrain launch --nproc-per-node 2 dtrain-minimal CONFIG.json`.
#include <dtrain/dtrain.h>

#include "mlp.h"

absl::Status Train(dtrain::Job& job) {
  const dtrain::Config& config = job.config();
  Mlp model(MlpOptions::FromJson(config.user("model")));
  DT_ASSIGN_OR_RETURN(auto train, dtrain::TokenLoader::Open(job, dtrain::Split::kTrain));
  DT_ASSIGN_OR_RETURN(auto valid, dtrain::TokenLoader::Open(job, dtrain::Split::kValidation));
  DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(job, *model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, dtrain::Checkpointer::Open(job));
  checkpoints->Track("engine", *engine);
  checkpoints->Track("data", *train);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());  // Does nothing in a new run.
  const auto loss = [&](const dtrain::Batch& b) { return model->Loss(b.tokens, b.targets); };
  while (engine->step() < config.train_steps()) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(*train, loss));
    job.metrics().Log(report);
    if (!job.stop_agreed() && config.evaluate_at(engine->step())) {
      DT_ASSIGN_OR_RETURN(const auto valid_loss, engine->Evaluate(*valid, loss));
      job.metrics().Log("eval/loss", valid_loss);
    }
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  return checkpoints->Finish();
}

int main(int argc, char** argv) { return dtrain::Main(argc, argv, Train); }
