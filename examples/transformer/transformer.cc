// A Transformer on sequences of its own. transformer.py is the same program with Accelerate.
#include <dtrain/dtrain.h>

#include "decoder.h"

// Sequences that count up by a step of their own: the inputs, and the token behind each.
struct Counting {
  int64_t size() const { return 512; }
  dtrain::Sample Get(int64_t index) const {
    const at::Tensor row = (at::arange(17) * (index % 5 + 1) + index * 3) % 32;
    return {row.slice(0, 0, 16), row.slice(0, 1, 17)};
  }
};

absl::Status Train(dtrain::Job& job) {
  Decoder net;
  const std::string weights = job.config().user("model").value("weights", "");
  if (!weights.empty()) DT_RETURN_IF_ERROR(dtrain::WarmStart(job, *net, weights).status());
  const Counting counting;
  DT_ASSIGN_OR_RETURN(auto data, dtrain::DataLoader::Open(job, counting, {.shuffle = false}));
  DT_RETURN_IF_ERROR(job.SetStepsPerEpoch(data->steps_per_epoch()));  // train_epochs needs it.
  DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(job, *net));
  DT_ASSIGN_OR_RETURN(auto checkpoints, dtrain::Checkpointer::Open(job));
  checkpoints->Track("engine", *engine);
  checkpoints->Track("data", *data);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  const auto loss = [&](const dtrain::SampleBatch& batch) {
    return at::cross_entropy_loss(net->forward(batch[0]).flatten(0, 1), batch[1].flatten());
  };
  while (engine->step() < job.config().train_steps()) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(*data, loss));
    job.metrics().Log(report);
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  return checkpoints->Finish();
}

int main(int argc, char** argv) { return dtrain::Main(argc, argv, Train); }
