// An image classifier on a dataset of its own. cnn.py is the same program with Accelerate.
#include <dtrain/dtrain.h>

#include "net.h"

// Stripes: the class says how wide they are, and whether they lie or stand.
struct Stripes {
  int64_t size() const { return 512; }
  dtrain::Sample Get(int64_t index) const {
    const int64_t label = index % 4;
    const at::Tensor wave = ((at::arange(16) + index / 4) * (label / 2 + 1) % 8).div(8.0);
    const at::Tensor image = (label % 2 == 0 ? wave.view({1, 16}) : wave.view({16, 1}));
    return {image.expand({1, 16, 16}), at::scalar_tensor(label, at::kLong)};
  }
};

absl::Status Train(dtrain::Job& job) {
  Net net;
  const std::string weights = job.config().user("model").value("weights", "");
  if (!weights.empty()) DT_RETURN_IF_ERROR(dtrain::WarmStart(job, *net, weights).status());
  const Stripes stripes;
  DT_ASSIGN_OR_RETURN(auto data, dtrain::DataLoader::Open(job, stripes, {.shuffle = false}));
  DT_RETURN_IF_ERROR(job.SetStepsPerEpoch(data->steps_per_epoch()));  // train_epochs needs it.
  DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(job, *net));
  DT_ASSIGN_OR_RETURN(auto checkpoints, dtrain::Checkpointer::Open(job));
  checkpoints->Track("engine", *engine);
  checkpoints->Track("data", *data);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  const auto loss = [&](const dtrain::SampleBatch& batch) {
    return at::cross_entropy_loss(net->forward(batch[0]), batch[1]);
  };
  while (engine->step() < job.config().train_steps()) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(*data, loss));
    job.metrics().Log(report);
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  return checkpoints->Finish();
}

int main(int argc, char** argv) { return dtrain::Main(argc, argv, Train); }
