// The engine: forward, backward with overlapped gradient reduction, update.
//
// Not thread-safe: one thread drives an engine. Every public call is collective: all ranks make the
// same calls in the same order. Parameters and gradients of the module live in flat buffers that
// the engine owns; the module's tensors become views of them and must not be replaced afterwards.
//
// Random numbers. What a loss closure and backward draw from LibTorch's default generators
// (dropout, torch::rand) follows from `seed`, the step and the micro-batch's place in the global
// batch alone: ranks draw different numbers, and any number of ranks, accumulation or resume gives
// each micro-batch the same ones, as long as micro-batches keep their size: one call of dropout
// draws for all samples of a micro-batch, so that one of two samples draws otherwise than two of
// one. All else is the program's: what it draws while it makes the model, in a data source and
// between steps comes from generators that every rank has seeded alike (Job::Create), that
// checkpoints hold, and that neither steps nor evaluations move. A shuffle in a data source is
// therefore the same on all ranks, and noise that is to differ by sample belongs in the closure.
//
// Module buffers (BatchNorm's statistics, counters) that a step changed become one set on all ranks
// at its end, by the rule of `module_buffers`.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtrain/batch_source.h"
#include "dtrain/graph_inputs.h"
#include "dtrain/job.h"
#include "dtrain/loss.h"
#include "dtrain/metrics.h"
#include "dtrain/optimizer.h"
#include "dtrain/tracked.h"

namespace torch::nn {
class Module;
}

namespace dtrain {

class EngineCore;   // The parts of an engine: runtime/engine/engine_core.h.
class EngineState;  // Saved by Checkpointer: runtime/optimizer/engine_state.h.
struct GradientMemory;
struct StepEnd;  // Replayed by Checkpointer: runtime/optimizer/step_end.h.

// The choices that a program has for an engine. The defaults train any module.
struct EngineOptions {
  // Strict model FLOPs that a sample (a token, for language models) costs, forward and backward
  // (for GEMM fraction and MFU; docs/PERFORMANCE.md has the formula). 0: six times the parameter
  // count.
  double flops_per_sample = 0;
  // The word for the samples of a batch: "images" makes the rate "images/s" on the console and
  // perf/images_per_s in records. A word of 1 to 32 letters, digits, `_` and `-`. "": the word of
  // the batch's type (`static constexpr absl::string_view kSampleUnit`, a word of the same kind;
  // dtrain::Batch: tokens), or "samples" if it has none.
  std::string sample_unit = {};
  // In a program with several engines: settings that name it are this one's alone
  // (engines.NAME, and optimizer.param_groups with "engine"), and messages call it so. "": none.
  std::string name = {};
  // The program's settings for this engine, in place of the configuration's for all engines. What
  // engines.NAME of the configuration gives holds before them. A step takes
  // settings.gradient_accumulation_steps micro-batches, so that its batch is not train_batch_size.
  EngineSettings settings = {};
  // A factor of the learning rate, beside the configuration's scheduler, for the step of this
  // number (from 0, of the steps that changed weights): for schedules of the program's own, on
  // GPUs and in captured graphs too. It must depend on its argument alone: a resumed run calls it
  // for the steps that come next. The step fails with InvalidArgument where the factor is negative
  // or not finite, or differs between ranks. Null: 1.
  std::function<double(int64_t step)> lr_factor = {};
  // Public name of a parameter in checkpoints, from its name in the module. Null: unchanged.
  std::function<std::string(const std::string&)> public_name = {};
  // config.json of the checkpoint's model folder, so that other tools open it. Null: none.
  Json model_config = {};
  // Other small files of that folder, as {name, text}, such as those of the tokenizer
  // (ReadTokenizerFiles of dtrain/model_files.h): {"tokenizer.json", text}. Rank 0's are written.
  std::vector<std::pair<std::string, std::string>> model_files = {};
  // Whether checkpoints hold frozen parameters. False: the program brings them before
  // RestoreLatest, as one does that trains adapters of an imported model.
  bool store_frozen = true;
  // In place of optimizer.type; optimizer.params and the scheduler give its settings. Null: none.
  std::shared_ptr<const Optimizer> optimizer = {};
  // Whether a step begins with zero_grad: what backwards of the program's own, or of another engine
  // through this one's parameters (a generator's loss through its discriminator), left in .grad is
  // dropped then. False: the step adds it to its sum of gradients, which is divided by the step's
  // count and in fp16 by the loss scale.
  bool zero_grad = true;
  // Whether a stop signal may end a step between two micro-batches, within about a second however
  // long the step is. Otherwise the ranks finish the step first, and the time of grace must be
  // longer than one. Such a step leaves no trace: Step returns StepReport::stopped,
  // Job::stop_agreed() is true, and the next MaybeSave saves the step before and ends the run. For
  // programs that change nothing of their own behind such a report (no average of weights, no
  // counter that checkpoints hold). In a program with several engines, and in loops of its own,
  // steps are finished.
  bool may_leave_step = false;
  // Units of ZeRO stage 3: parameters that are gathered and freed together, one bucket for each
  // unit. The other stages only check them. Empty: the engine cuts buckets by itself. A unit lists
  // names of modules (torch::nn::Module::named_modules), which stand for all of their parameters,
  // or names of parameters; `*` stands for any text.
  // - The parameters of a unit follow one another in the order of registration. Frozen ones are
  //   ordered among themselves, and have a bucket of their own. No parameter is in two units.
  //   Parameters in no unit are cut into buckets as without units.
  // - Buckets end only at multiples of world size x 4,096 elements, on a GPU of 2 MiB at least. The
  //   rest of a unit that ends between two of them is in the next bucket, and both are gathered.
  // - Ranks may use different parts of a unit, as of a mixture of experts. The first read inside a
  //   unit gathers all of it, and its gradients are reduced together, as zeros where a rank has
  //   none. In the first micro-batch and the first evaluation every rank must use some part of each
  //   unit, so put the router's weights into a unit of experts.
  // - A unit that is larger than zero_optimization.stage3_max_live_parameters is cut into several
  //   equal buckets, which all ranks must read in one order. If there are frozen weights, the kind
  //   with fewer elements takes up to half of this limit, and the other kind the rest.
  // - zero_optimization.leaf_module names units too. reduce_bucket_size does not hold for units,
  //   and stage3_prefetch_bucket_size, unless 0, is raised to the size of the largest unit.
  //
  // Deterministic runs have the same bits with any units, and checkpoints do not depend on them.
  std::vector<std::vector<std::string>> units = {};
};

// How far Engine::Evaluate goes.
struct EvaluateOptions {
  // Goes on until no rank has a batch, whatever eval_batches says. The source must have an end:
  // one with passes (TokenLoader, DataLoader), whose samples are each read once, or one whose Next
  // returns EndOfData().
  bool to_end = false;
};

// Says what Engine::Backward does besides its loss's backward.
struct BackwardOptions {
  bool last_micro_batch = true;  // Reduce the gradients during this backward.
  int64_t samples = 0;           // In the micro-batch, for rates; 0: what the loss counts.
  bool retain_graph = false;     // Another loss of the same graph follows.
};

// The samples of a batch that says how many it holds (Batch: tokens), else 0.
template <typename Batch>
int64_t SampleCount(const Batch& batch) {
  if constexpr (requires {
                  { batch.sample_count() } -> std::convertible_to<int64_t>;
                }) {
    return batch.sample_count();
  } else {
    return 0;
  }
}

// The weight of a batch's mean loss in an evaluation: the samples that the batch says count for its
// loss (Batch: targets that are not ignored); if it does not say, those that it holds; or 1.
template <typename Batch>
int64_t MeanWeight(const Batch& batch) {
  if constexpr (requires {
                  { batch.counted_sample_count() } -> std::convertible_to<int64_t>;
                }) {
    return batch.counted_sample_count();
  } else if constexpr (requires {
                         { batch.sample_count() } -> std::convertible_to<int64_t>;
                       }) {
    return batch.sample_count();
  } else {
    return 1;
  }
}

// Says what its samples are.
template <typename Batch>
concept NamesItsSamples = requires {
  { Batch::kSampleUnit } -> std::convertible_to<absl::string_view>;
};

// The batch's word for its samples; "" if it has none.
template <typename Batch>
std::string SampleUnit() {
  if constexpr (NamesItsSamples<Batch>) {
    return std::string(absl::string_view(Batch::kSampleUnit));
  } else {
    return "";
  }
}

// InvalidArgument, with the constant's or option's `name`, unless `unit` is a word as
// EngineOptions::sample_unit wants it.
absl::Status CheckSampleUnit(absl::string_view name, absl::string_view unit);

namespace internal {

// The program's functions that Engine::Evaluate calls.
struct EvaluationCalls {
  absl::FunctionRef<void()> begin;  // Before the first load.
  absl::FunctionRef<void()> end;
  absl::FunctionRef<absl::Status()> load;        // The next batch.
  absl::FunctionRef<absl::Status()> load_spare;  // One that does not count.
  absl::FunctionRef<Loss()> forward;             // Runs on what was loaded last.
  absl::FunctionRef<std::string()> description;  // Names the source.
  bool to_end = false;                           // EvaluateOptions::to_end.
};

}  // namespace internal

// Trains one module, by the rules at this file's beginning.
class Engine {
 public:
  // Moves the parameters of `model` into flat buffers and takes weights and buffers from rank 0.
  // InvalidArgument names the first tensor that differs between ranks; Unimplemented names a
  // parameter of a type that is not supported (trainable: fp32). InvalidArgument also names what is
  // wrong with a unit, and two parameters, or a parameter and a buffer, that share memory: weights
  // are tied by one tensor in both places. `model` must outlive the engine.
  //
  // The engine sees the tensors that the module has registered. A step that finds one of them
  // replaced, added, removed, moved, frozen or unfrozen since fails with FailedPrecondition and its
  // name. It cannot see a member that is assigned another tensor (net->layer->weight = ...), which
  // leaves the registered one in its place: the loss then uses a tensor that nobody trains, and the
  // first step without a gradient for the registered one says so in a line of the log.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Job& job, torch::nn::Module& model,
                                                        EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // How many steps this engine has finished.
  int64_t step() const;

  // One optimizer step over gradient_accumulation_steps micro-batches: `source` is a BatchSource,
  // `loss` a LossFunctionOf its batches. A transaction: when it fails, weights, RNG, module buffers
  // and (when `source` is Tracked) the data position are as before the call. If the loss throws,
  // the error has LibTorch's message. In an engine's first step and evaluation, at ZeRO stage 3,
  // and with DTRAIN_BACKTRACE=1, it also names the parameters and the module that were read last.
  // With `cuda_graphs` of the configuration the closure runs only while it is captured, over copies
  // of the batch on the device, and not when its graph is launched: see docs/ARCHITECTURE.md.
  template <typename Source, typename LossFunction>
  absl::StatusOr<StepReport> Step(Source& source, LossFunction&& loss) {
    if constexpr (internal::AreSourceAndLoss<Source, LossFunction>()) {
      if constexpr (NamesItsSamples<BatchOf<Source>>) {
        if (auto unit = CheckSampleUnit("Batch::kSampleUnit", BatchOf<Source>::kSampleUnit);
            !unit.ok()) {
          return unit;
        }
      }
      std::optional<BatchOf<Source>> batch;
      const auto load = [&]() -> absl::StatusOr<int64_t> {
        auto next = source.Next();
        if (!next.ok()) {
          return next.status();
        }
        batch = *std::move(next);
        return SampleCount(*batch);
      };
      const auto forward = [&]() -> Loss { return loss(*batch); };
      const auto inputs = [&] { return GraphInputsOf(*batch); };
      Tracked* data = nullptr;
      if constexpr (std::derived_from<Source, Tracked>) {
        data = &source;
      }
      const auto description = [&] { return internal::DescribeSource(source); };
      auto report = RunStep(load, forward, inputs, description, data);
      if (report.ok() && report->unit.empty()) {
        report->unit = SampleUnit<BatchOf<Source>>();
      }
      return report;
    } else {
      return absl::InternalError("this call does not compile");
    }
  }

  // The mean loss over eval_batches global batches of `source`, without gradients; the module is in
  // eval mode meanwhile. `source` begins anew first when it can (dtrain/batch_source.h), so that
  // evaluations read the same samples each time: of a TokenLoader the first windows of its files,
  // whatever the number of ranks, and none twice. It ends early where the source does: once no rank
  // has a batch; with EvaluateOptions::to_end it ends there alone. Ranks need not have equally
  // many; at ZeRO stage 3 the closure then also runs on batches that do not count (Spare). What the
  // closure draws is the same each time, and no draw leaves a trace in the generators.
  //
  // InvalidArgument where nothing was counted: no batch, or none with a target. Between two
  // micro-batches the ranks look for a stop signal. One that comes ends the evaluation: then
  // Job::stop_agreed() is true, the result is NaN, Metrics::Log writes no value named eval/ from
  // there on, and the next MaybeSave saves the step and ends the run. That is no error, which would
  // lead a program past its MaybeSave.
  template <typename Source, typename LossFunction>
  absl::StatusOr<double> Evaluate(Source& source, LossFunction&& loss,
                                  EvaluateOptions options = {}) {
    if constexpr (internal::AreSourceAndLoss<Source, LossFunction>()) {
      std::optional<BatchOf<Source>> batch;
      const auto take = [&](absl::StatusOr<BatchOf<Source>> next) -> absl::Status {
        if (next.ok()) {
          batch = *std::move(next);
        }
        return next.status();
      };
      const auto begin = [&] {
        if constexpr (internal::HasPasses<Source>) {
          source.BeginPass();
        } else if constexpr (internal::HasRestart<Source>) {
          source.Restart();
        }
      };
      const auto end = [&] {
        if constexpr (internal::HasPasses<Source>) {
          source.EndPass();
        }
      };
      const auto load = [&] { return take(source.Next()); };
      const auto load_spare = [&]() -> absl::Status {
        if constexpr (internal::HasSpare<Source>) {
          return take(source.Spare());
        } else {
          return batch.has_value() ? absl::OkStatus() : EndOfData();
        }
      };
      const auto forward = [&]() -> Loss {
        Loss value = loss(*batch);
        if (value.is_mean) {
          value.count = MeanWeight(*batch);
        }
        return value;
      };
      const auto description = [&] { return internal::DescribeSource(source); };
      return RunEvaluation({begin, end, load, load_spare, forward, description, options.to_end});
    } else {
      return absl::InternalError("this call does not compile");
    }
  }

  // The halves of Step for loops of your own: backward of one micro-batch, then one Update. Several
  // losses of a micro-batch are added up, or given one after the other, all but the last of a step
  // with last_micro_batch = false; one whose samples another loss has counted has a count of 0.
  // After an error in backward one rank alone may begin the step anew; several end together, as
  // after a Step that failed.
  // A backward of the program's own (loss.backward()) may run between steps, at stage 3 on all
  // ranks alike: its gradients are in the parameters' .grad until the next step begins, which drops
  // them (EngineOptions::zero_grad). A step begins with the call of Step, or with the first
  // Backward after an Update.
  absl::Status Backward(const Loss& loss, BackwardOptions options = {});
  // Reduces what is left, updates the weights and ends the step that Backward began. Fails as Step
  // does.
  absl::StatusOr<StepReport> Update();
  // For such a loop: what the program draws from here on belongs to the micro-batch that its next
  // Backward takes. Backward and Update do the same for the one that follows, so a program calls it
  // once, before the loop (and after RestoreLatest); without it the first forward draws the same
  // numbers on all ranks. If a micro-batch has several losses, the last must have the count. In
  // such a loop the default generators differ by rank: numbers that all ranks share need a
  // generator of the program's own.
  void BeginMicroBatch();

  // Runs `function` with whole parameters (any stage), without gradients: sampling. At ZeRO stage 3
  // every rank has memory for the whole model meanwhile; ExportModel (dtrain/model_files.h) takes
  // that of one tensor at a time.
  absl::Status WithParameters(absl::FunctionRef<void()> function);

  // For a Checkpointer.
  EngineState& state();
  // For a Checkpointer: repeats a recorded update, whose gradients `fill` writes.
  absl::Status Replay(const StepEnd& end,
                      absl::FunctionRef<absl::Status(const GradientMemory&)> fill);

 private:
  explicit Engine(std::unique_ptr<EngineCore> core);
  absl::StatusOr<StepReport> RunStep(absl::FunctionRef<absl::StatusOr<int64_t>()> load,
                                     absl::FunctionRef<Loss()> forward,
                                     absl::FunctionRef<std::optional<GraphInputs>()> inputs,
                                     absl::FunctionRef<std::string()> description, Tracked* data);
  absl::StatusOr<double> RunEvaluation(const internal::EvaluationCalls& calls);

  const std::unique_ptr<EngineCore> core_;
};

}  // namespace dtrain
