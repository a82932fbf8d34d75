// A GAN: two engines, each with its own optimizer's settings. gan.py is the same with Accelerate.
#include <dtrain/dtrain.h>

#include "nets.h"

// Points of a circle, and the noise that stands beside each.
struct Circle {
  int64_t size() const { return 512; }
  dtrain::Sample Get(int64_t index) const {
    const auto i = static_cast<double>(index);
    const at::Tensor angle = at::tensor({i * 0.1, i * 0.1 + 1.5707963267948966});
    const at::Tensor noise = at::tensor({i * 0.7, i * 1.1, i * 1.3, i * 1.9});
    return {angle.sin().to(at::kFloat), noise.sin().to(at::kFloat)};
  }
};

absl::Status Train(dtrain::Job& job) {
  Mlp generator(4, 2);
  Mlp discriminator(2, 1);
  const std::string weights = job.config().user("model").value("weights", "");
  if (!weights.empty()) {
    DT_RETURN_IF_ERROR(dtrain::WarmStart(job, *generator, weights + "/generator").status());
    DT_RETURN_IF_ERROR(dtrain::WarmStart(job, *discriminator, weights + "/discriminator").status());
  }
  const Circle circle;
  DT_ASSIGN_OR_RETURN(auto data, dtrain::DataLoader::Open(job, circle, {.shuffle = false}));
  // train_epochs needs it; each engine takes a batch.
  DT_RETURN_IF_ERROR(job.SetStepsPerEpoch(data->steps_per_epoch() / 2));
  DT_ASSIGN_OR_RETURN(auto g, dtrain::Engine::Create(job, *generator, {.name = "generator"}));
  DT_ASSIGN_OR_RETURN(auto d,
                      dtrain::Engine::Create(job, *discriminator, {.name = "discriminator"}));
  DT_ASSIGN_OR_RETURN(auto checkpoints, dtrain::Checkpointer::Open(job));
  checkpoints->Track("generator", *g);
  checkpoints->Track("discriminator", *d);
  checkpoints->Track("data", *data);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  const auto d_loss = [&](const dtrain::SampleBatch& batch) {
    const at::Tensor made = generator->forward(batch[1]).detach();
    return (at::softplus(-discriminator->forward(batch[0])) +
            at::softplus(discriminator->forward(made)))
        .mean();
  };
  const auto g_loss = [&](const dtrain::SampleBatch& batch) {
    return at::softplus(-discriminator->forward(generator->forward(batch[1]))).mean();
  };
  while (g->step() < job.config().train_steps()) {
    DT_ASSIGN_OR_RETURN(const auto judged, d->Step(*data, d_loss));
    DT_ASSIGN_OR_RETURN(const auto made, g->Step(*data, g_loss));
    job.metrics().Log(made);
    job.metrics().Log("train/discriminator_loss", judged.loss);
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(g->step()));
  }
  return checkpoints->Finish();
}

int main(int argc, char** argv) { return dtrain::Main(argc, argv, Train); }
