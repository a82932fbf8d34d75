// The engine's parts, for the files that make up Engine. Private to runtime/engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/compression/bucket_reduction.h"
#include "comm/group.h"
#include "dtrain/engine.h"
#include "runtime/engine/agreement.h"
#include "runtime/engine/device_step.h"
#include "runtime/engine/forward_witness.h"
#include "runtime/engine/gemm_probe.h"
#include "runtime/engine/memory_report.h"
#include "runtime/engine/step_graphs.h"
#include "runtime/engine/step_trace.h"
#include "runtime/engine/transaction.h"
#include "runtime/engine/unused_parameters.h"
#include "runtime/gradients/device_gradient_sync.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/gradients/sharded_gradients.h"
#include "runtime/job/job_state.h"
#include "runtime/job/micro_batch_seed.h"
#include "runtime/job/stop_signal.h"
#include "runtime/memory/memory_in_use.h"
#include "runtime/model/module_buffers.h"
#include "runtime/model/registered_parameters.h"
#include "runtime/offload/activation_store.h"
#include "runtime/offload/offload_options.h"
#include "runtime/ops/fp8_weight_codes.h"
#include "runtime/ops/recompute_times.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/share_return.h"
#include "runtime/optimizer/state_stream.h"
#include "runtime/optimizer/update_exchange.h"
#include "runtime/optimizer/update_rule.h"
#include "runtime/shard/first_reads.h"
#include "runtime/shard/parameter_gather.h"
#include "runtime/shard/secondary_shards.h"

namespace dtrain {

// Steps that were skipped one after the other, up to the last one.
struct NonFiniteSteps {
  int count = 0;
  int64_t first_step = 0;
  std::string culprit;  // Of the first of them: what went bad before all else.
  double loss = 0;
};

// Steps one after the other in which no sample counted, up to the last one.
struct StepsWithoutTarget {
  int count = 0;
  int64_t first_step = 0;
};

// comm.wire_dtype.
comm::Wire WireOf(const Config& config);
// comm.compression, and the wire's type of what it leaves alone.
comm::CompressionOptions CompressionOf(const Config& config);

struct Engine::Impl {
  Job& job;
  torch::nn::Module& module;
  const RegisteredParameters registered;  // The module's, which `state` keeps alive.
  EngineState state;
  const StepsOfEngines::Entry counted;    // Its steps, among those of the job.
  std::vector<std::string> leaf_modules;  // Each is a unit: zero_optimization.leaf_module.
  SmallGroup small_group;  // With zero_hpz_partition_size: of all weights, which share it.
  // Stage 0 whose updates go on behind the step: how gradients are shared out until they are
  // gathered. Else null.
  std::unique_ptr<plan::ShardPlan> gradient_shards;
  std::vector<plan::OwnedRange> gradient_owned;  // This rank's, without padding.
  std::unique_ptr<GradientSync> reducer;
  const ShardedGradients* sharded_gradients = nullptr;  // With `gradient_shards`: the reducer.
  std::unique_ptr<UpdateRule> rule;
  std::vector<ParamSettings> settings;       // By UpdatePiece::settings.
  std::vector<std::string> unmatched_decay;  // UpdateGroups::unmatched_decay.
  std::unique_ptr<StateStream> stream;       // Of offloaded states; null when they are near.
  std::unique_ptr<UpdateExchange> exchange;  // On a GPU with offloaded states; else null.
  // On a GPU that updates weights whose share is a file; else null.
  std::unique_ptr<ShareReturn> share_return;
  std::shared_ptr<ActivationStore> activation_store;  // Null: what segments keep stays near.
  // Open from a step's begin to its update; what graphs read of it outlives the step. Null: each
  // micro-batch makes the codes that it wants.
  std::unique_ptr<ops::KeptWeightCodes> weight_codes;
  std::vector<StateChunk> update_chunks;  // What travels in an update, of those in the stream.
  // What this rank updates, cut where it is gathered: one piece list a bucket, or one in all.
  std::vector<std::vector<UpdatePiece>> update_pieces;
  std::unique_ptr<UnusedParameters> unused;
  // update_pieces without what this step skips. It is used until the next step's gathers end.
  std::vector<std::vector<UpdatePiece>> used_pieces;
  std::vector<int> update_order;  // Of update_pieces: as the next forward needs them.
  // Stages 1 and 2, and 0 behind the step; else null. Its thread may use all that is above.
  std::unique_ptr<ParameterGather> gather;
  // What decides that, where gathers go on behind the step; else null. Operations that are under
  // way may tell it of their end, so it stays when all is known.
  std::unique_ptr<FirstReads> first_reads;
  bool need_order_known = false;
  // cuda_graphs. Outlives `device_step`, which waits for the last launch.
  std::unique_ptr<StepGraphs> graphs;         // Null: off, or the host.
  std::unique_ptr<DeviceGraph> update_graph;  // Null: not captured.
  bool update_refused = false;                // It cannot be.
  // On a GPU; null on the host. The gradients are `reducer`.
  std::unique_ptr<DeviceStep> device_step;
  DeviceGradientSync* device_gradients = nullptr;
  std::shared_ptr<LateNumbers> late;  // Of the step that the device ended last.
  // That step, until its outcome is in `state`; then, when it was skipped, until that is said.
  std::optional<StepReport> unaccounted;
  std::optional<StepReport> unsaid;
  int64_t unaccounted_count = 0;  // Samples behind that step's loss.
  plan::LossScale scale_of_unsaid;
  std::unique_ptr<ModuleBuffers> buffers;
  ForwardWitness witness;  // Of the loss functions that the engine calls.
  StepTrace trace;
  StepReport report;        // Of the step under way.
  int64_t activations = 0;  // Bytes that forward left, at most.
  double loss_sum = 0;
  int64_t count = 0;
  int64_t samples = 0;
  int64_t micro_batches = 0;
  bool reducing = false;  // The last micro-batch of this step has been through backward.
  StepTransaction* transaction = nullptr;  // Null: the program calls Step's halves.
  // Of a loop of the program's own: micro-batches of this step whose samples are counted, and which
  // of them the random numbers are that its forward draws now.
  int64_t counted_micro_batches = 0;
  int64_t seeded_micro_batch = 0;
  int64_t step_start_nanos = 0;
  GemmProbe gemm_probe = MakeGemmProbe();
  double peak_flops = 0;  // FLOP/s of the datasheet; 0: none is known.
  NonFiniteSteps non_finite;
  StepsWithoutTarget without_target;
  bool first_forward_noted = false;
  bool with_parameters = false;  // A function of WithParameters runs.
  bool explained = false;        // Explained has asked the others, of this failure.
  absl::Status torn;     // Gathers failed: some weights are of a step, some of the one before.
  absl::Status broken;   // After an error inside Update there is no way on.
  absl::Status refusal;  // Of all later calls: says what broke it and what to do.

  Impl(Job& j, torch::nn::Module& m)
      : job(j),
        module(m),
        registered(m),
        counted(j.state().steps, state.step),
        witness(m),
        trace(j.config().metrics_trace(),
              {.path_prefix = absl::StrCat(j.run_dir(), "/trace/rank-", j.rank()),
               .rank = j.rank(),
               .gpu = j.device().is_cuda()},
              [this] { return MemoryNow(BytesInUse(device())); }) {}

  MemoryReport MemoryNow(int64_t activation_bytes) const {
    MemoryReport memory = ReportMemory(state, *reducer, activation_bytes);
    memory.far_activations = activation_store == nullptr ? 0 : activation_store->far_bytes();
    return memory;
  }

  // What the loss's sum is multiplied with before backward; gradients are divided by it.
  double loss_factor() const {
    const double scale = state.loss_scale.scale / job.config().gradient_predivision();
    return state.loss_unit > 0 ? scale / state.loss_unit : scale;
  }

  void Begin() {
    if (micro_batches == 0 && step_start_nanos == 0) {
      DeferStopSignals();
      step_start_nanos = Clock::Real().MonotonicNanos();
      job.group().SetStep(state.step + 1);
      for (LiveParameters* const live : state.lives()) {
        live->SetStep(state.step + 1);
      }
      BeginOnDevice();
      if (weight_codes != nullptr) {
        const bool lasting = graphs != nullptr && graphs->active();
        weight_codes->Open(lasting ? ops::KeptWeightCodes::Lifetime::kLasting
                                   : ops::KeptWeightCodes::Lifetime::kOpening);
      }
      TakeWaitedSeconds();     // Of an evaluation or a save: no part of the step.
      TakeRecomputeSeconds();  // Of other engines.
      trace.Begin(state.step + 1);
      report = StepReport{};
    }
  }
  // A step starts from nothing: what other backwards left is dropped where it begins. What its own
  // closure leaves after that counts.
  void DropLeftGradients() {
    if (micro_batches == 0 && state.options.zero_grad) {
      state.flat->ClearGradients();
    }
  }
  // Whatever part of the model a program reads next, it reads anew.
  void BeginPass(plan::GatherSchedule::Pass pass) {
    for (LiveParameters* const live : state.lives()) {
      live->BeginPass(pass);
    }
  }
  // The forward of the pass is over; its backward is, or the evaluation batch.
  void BeginBackwardPass() {
    for (LiveParameters* const live : state.lives()) {
      live->BeginBackward();
    }
  }
  void EndPass() {
    for (LiveParameters* const live : state.lives()) {
      live->EndPass();
    }
  }
  // First error of what runs beside forward and backward: a gather that an operation waited for,
  // the tier of activations.
  absl::Status BackgroundStatus() const {
    if (activation_store != nullptr) {
      DT_RETURN_IF_ERROR(activation_store->status());
    }
    if (gather != nullptr) {
      DT_RETURN_IF_ERROR(gather->status());
    }
    absl::Status status;
    for (const LiveParameters* const live : state.lives()) {
      status.Update(live->status());
    }
    return status;
  }
  // Weights changed. Frozen ones did not: what is gathered of them stays.
  absl::Status DropGathered() {
    return state.live != nullptr ? state.live->Invalidate() : absl::OkStatus();
  }
  // Weights are about to change, or the step failed. Another engine may be in the midst of a step
  // that reads them too.
  void DropWeightCodes() {
    ops::KeptWeightCodes::NoteWrites();
    if (weight_codes != nullptr) {
      weight_codes->Close();
    }
  }
  // A step or an evaluation failed.
  absl::Status DropAllGathered() {
    absl::Status status;
    for (LiveParameters* const live : state.lives()) {
      status.Update(live->Invalidate());
    }
    return status;
  }
  void Abandon() {
    reducer->Release();
    DropWeightCodes();
    loss_sum = 0;
    activations = 0;
    count = 0;
    samples = 0;
    micro_batches = 0;
    counted_micro_batches = 0;
    reducing = false;
    step_start_nanos = 0;
  }
  absl::Status Backward(const Loss& loss, const BackwardOptions& options);
  double TakeWaitedSeconds();
  // The parts of it: what is wrong with a loss, and with the model at a step's begin; gradients of
  // a micro-batch; its end. Differentiate throws LibTorch's exceptions.
  static absl::Status CheckLoss(const Loss& loss);
  absl::Status CheckModel();
  absl::Status Differentiate(const Loss& loss, bool retain_graph);
  absl::Status EndMicroBatch(int64_t loss_count, const BackwardOptions& options);
  void MoveWaited(double& phase_s);
  // Random numbers: engine_random.cc. The seed of this rank's micro-batch `micro` of a step or an
  // evaluation.
  uint64_t SeedOf(MicroBatchOf pass, int64_t micro) const;
  // The micro-batch that follows those which are counted.
  void SeedNextForward();
  void NoteActivations(int64_t left);
  absl::Status CheckIdle() const;
  // Evaluations: engine_evaluate.cc.
  absl::Status LoadForEvaluation(const EvaluationCalls& calls, StepVote& vote);
  absl::Status LoadSpare(const EvaluationCalls& calls, StepVote& vote);
  absl::Status EvaluateBatch(const EvaluationCalls& calls, int64_t micro, StepVote& vote);
  absl::StatusOr<StepVerdict> EvaluateBatches(const EvaluationCalls& calls);
  absl::StatusOr<double> EvaluatedLoss(const EvaluationCalls& calls, const StepVerdict& verdict);
  absl::Status CheckMemory();
  // Stage 3: shard_weights.cc. Weights that are shared out together.
  struct LiveSet {
    FlatParameters& flat;
    const plan::ShardPlan& shards;
    const at::Tensor& values;   // Of what this rank owns,
    const ShardMemory& memory;  // and where they are.
    PersistenceLimits persistence;
    int64_t live_max = 0;
    const std::vector<plan::FlatRange>& units;
  };
  // Memory for what a rank owns, and `values` [elements] over it.
  absl::StatusOr<ShardMemory> MakeShard(int64_t elements, at::Tensor& values);
  absl::StatusOr<plan::ShardOptions> OptionsOfShards() const;
  absl::StatusOr<std::unique_ptr<LiveParameters>> MakeLive(const LiveSet& set);
  absl::Status CreateLive(const ShardMemory& memory);
  // REQUIRES: state.frozen.
  absl::Status ShareOutFrozen();
  // Stages 1 to 3; `units` and `live_max` are stage 3's.
  absl::StatusOr<std::unique_ptr<plan::ShardPlan>> MakeShardPlan(
      const plan::ParamLayout& layout, const std::vector<plan::FlatRange>& units,
      int64_t live_max) const;
  // Units: engine_units.cc.
  absl::Status TakeUnits();
  absl::StatusOr<plan::LiveShares> SharesOfLive() const;
  void ReduceByUnits();
  absl::Status MakeShardPlans();  // Of what stages 1 to 3 share out.
  absl::Status CreateSync();
  absl::Status CreateSyncBehindStep();
  absl::Status TakeParameters();
  void CreateWeightCodes();
  void CreateBuffers();
  absl::StatusOr<StepVerdict> Vote(const GradientSquares& squares, bool failed);
  // Collective: what no rank used in the step that ends, which updates may skip.
  absl::Status TakeUnused(const StepVerdict& verdict);
  // What the update of this step takes, of update_pieces and update_chunks.
  const std::vector<std::vector<UpdatePiece>>& StepPieces() const {
    return unused->skipping() ? used_pieces : update_pieces;
  }
  std::vector<StateChunk> StepChunks() const {
    return unused->skipping() ? ChunksOf(used_pieces) : update_chunks;
  }
  // What of `lists` travels in an update, in the order of the buckets' turn.
  std::vector<StateChunk> ChunksOf(std::vector<std::vector<UpdatePiece>> lists) const;
  void CountUpdate();  // The step has changed weights.
  // The module's buffers at the end of a step, before weights change: one set on all ranks, or, on
  // the host, as they were before a step that is skipped.
  absl::Status SettleBuffers(const StepVerdict& verdict);
  absl::Status Apply(const StepVerdict& verdict);
  UpdateStep StepOf(double gradient_scale) const;
  absl::Status UpdateFromFar(const UpdateStep& step, const ReducedGradient& gradient);
  absl::Status MakeStates(int64_t elements);
  StepReport Finish(const StepVerdict& verdict);
  GemmProbe MakeGemmProbe() const;
  // Gathers that go on behind the step: engine_gather.cc.
  bool GathersBehindStep() const;
  absl::Status SettleGathers();
  absl::Status EndFirstForward();
  // Stage 0: which buckets every rank has whole is the reducer's to say; the others follow.
  void UpdateBehindStep(const UpdateStep& step, const ReducedGradient& gradient);
  ReducedRanges Reduced() const;
  void UseUpdateOrder(std::vector<int> order);
  absl::Status AdoptOrders();
  absl::Status AfterSkip(const StepReport& skipped, const std::string& culprit,
                         const plan::LossScale& scale);
  absl::Status AfterNoTarget(const StepReport& skipped);
  void EndSkipping();  // A step was not skipped.
  void FailTogether();
  // This rank's step has failed before its update. The others may have its part of some buckets and
  // wait for the rest: they end too.
  void FailStep(const absl::Status& failure);
  // After a failed step, when there is no way on: calls from now on are refused.
  void RefuseAfter(const absl::Status& failure);
  // With where ranks of stage 3 have parted, if that is what failed. Before the group ends.
  absl::Status Explained(const absl::Status& failure);
  absl::Status Usable() const { return refusal.ok() ? broken : refusal; }
  // The GPU's side: engine_device.cc.
  const Device& device() const { return *job.state().device; }
  absl::Status CheckDevice() const;
  absl::Status CreateOnDevice();
  void BeginOnDevice();
  void MarkPhase(DevicePhases::Phase phase);
  absl::Status AddLoss(const at::Tensor& sum);
  absl::Status AccountForLastStep();
  absl::Status SaySkipped();
  absl::Status LaunchUpdate(const StepVerdict& verdict);
  // offload_optimizer on a GPU: engine_offload.cc. Where states live: as configured, or of a
  // program's own optimizer, which has no CUDA form, in the host's memory.
  OffloadOptions StateOffload() const;
  bool UpdatesOnHost() const;
  absl::Status CreateExchange(int64_t elements);
  absl::Status CreateShareReturn();
  // Behind Decide: whether the step changes anything, once the device has come there.
  absl::StatusOr<StepNumbers> VerdictNow();
  absl::Status UpdateThroughHost(const StepPlan& plan);
  absl::Status UpdateIntoFile();
  // CUDA graphs: engine_graph.cc.
  void CreateGraphs();
  std::string WhyNoUpdateGraph() const;  // "": nothing speaks against it.
  void RefreshWeightCodes();             // Before what reads them where they lie.
  absl::Status RecordMicroStep(absl::FunctionRef<Loss()> forward, MicroStepGraph& graph);
  absl::Status CaptureMicroStep(absl::FunctionRef<Loss()> forward, MicroStepGraph& graph);
  // False: the micro-batch is to be taken eagerly.
  absl::StatusOr<bool> MicroStepByGraph(
      absl::FunctionRef<Loss()> forward,
      absl::FunctionRef<std::optional<GraphInputs>()> inputs_of_batch,
      const BackwardOptions& options);
  absl::Status QueueUpdate();
  absl::StatusOr<StepReport> UpdateOnDevice();
  // Time to the first step is a number of its own: it is what a start costs.
  void NoteFirstForward() {
    if (!first_forward_noted) {
      first_forward_noted = true;
      job.metrics().LogEvent(EventKind::kEvent, {{"name", "first_forward"}});
    }
  }
};

}  // namespace dtrain
