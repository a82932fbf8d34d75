// An exponential moving average of the weights that an engine trains (Polyak and Juditsky 1992):
// after each step, average = decay * average + (1 - decay) * weight.
//
//   DT_ASSIGN_OR_RETURN(auto average, dtrain::Ema::Create(*engine, *model, 0.999));
//   checkpoints->Track("average", average->tensors());
//   ...
//   DT_ASSIGN_OR_RETURN(const auto report, engine->Step(*train, loss));
//   DT_RETURN_IF_ERROR(average->Update());
//
// Every rank has the whole average in fp32, on the weights' device, and a run that resumes goes on
// with the same bits. In mixed precision it is an average of the rounded weights. The thread that
// drives the engine uses it, and all ranks make the same calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"

namespace torch::nn {
class Module;
}

namespace dtrain {

// The average of one engine's weights. The engine and its module outlive it.
class Ema {
 public:
  // Collective: begins with the weights as they are. `model` is the engine's module.
  // InvalidArgument: `decay` is not in [0, 1), or nothing in the module trains.
  static absl::StatusOr<std::unique_ptr<Ema>> Create(Engine& engine, torch::nn::Module& model,
                                                     double decay);

  // Collective: takes the weights of now into the average, after a step. At ZeRO stage 3 they are
  // gathered for it, and every rank has memory for the whole model meanwhile.
  absl::Status Update();
  // The averages by the names of the parameters, for Checkpointer::Track. Frozen ones have none.
  std::vector<TrackedTensor> tensors() const;
  // Collective: fills another module of the same form, such as one that evaluates or is sampled
  // from: with the averages, and with the frozen parameters and buffers of the engine's module.
  // InvalidArgument names what differs, before anything is written.
  absl::Status CopyTo(torch::nn::Module& other) const;

 private:
  struct Entry {
    std::string name;
    at::Tensor weight;  // The module's.
    at::Tensor average;
  };

  Ema(Engine& engine, torch::nn::Module& model, double decay);
  // Runs `read` where whole weights can be read, without gradients.
  absl::Status WithWeights(absl::FunctionRef<void()> read) const;

  Engine& engine_;
  torch::nn::Module& model_;
  double decay_;
  std::vector<Entry> entries_;  // Tied weights once.
};

}  // namespace dtrain
