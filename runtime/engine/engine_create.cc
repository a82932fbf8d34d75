// Engine::Create: from a configuration and a module to an engine's parts.
#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "c10/core/ScalarType.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/device/device_range.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/gradients/gradient_reducer.h"
#include "runtime/gradients/partitioned_gradients.h"
#include "runtime/gradients/sharded_gradients.h"
#include "runtime/job/announce.h"
#include "runtime/job/exception_status.h"
#include "runtime/memory/device_peak.h"
#include "runtime/memory/state_memory.h"
#include "runtime/model/copy_shared.h"
#include "runtime/model/dtypes.h"
#include "runtime/model/model_sync.h"
#include "runtime/offload/offload_options.h"
#include "runtime/plan/layout/bucket_plan.h"
#include "runtime/plan/layout/need_order.h"
#include "runtime/plan/memory/offload_plan.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

// Of the gradients whose updates may go on behind the step, what is reduced to all ranks within
// backward: a third. The gathers of the rest, which take as long as their reductions, are then a
// third of all that travels: with backward twice as long as forward neither has more to hide than
// it can, until a step's communication takes as long as its computing. The last eighth is not among
// it: when backward ends nothing is left to hide it behind, and forward reads it little by little.
constexpr LaunchShare kReducedWhole{.begin = 1 - 1.0 / 8 - 1.0 / 3, .end = 1 - 1.0 / 8};

// Stage 3 opens and releases buckets by pages, of which a norm block is at least one; what is
// quantised is packed in chunks of that size; LAMB sums by it on a GPU.
plan::ShardOptions ShardOptionsOf(const Config& config, int world_size, int64_t granule = 1) {
  const bool blocks = config.deterministic() || config.zero_stage() == 3 ||
                      config.quantized_gradients() ||
                      config.optimizer().kind == OptimizerConfig::Kind::kLamb;
  return {.world_size = world_size,
          .align_elements = blocks ? kernels::kNormBlock : plan::ParamLayout::kAlignElements,
          .bucket_multiple = granule};
}

// Elements of a GPU's memory that are mapped together, where buckets come and go: at stage 3.
absl::StatusOr<int64_t> GranuleOf(const Config& config, const Device& device, DType values) {
  if (device.is_host() || config.zero_stage() < 3) {
    return 1;
  }
  DT_ASSIGN_OR_RETURN(const size_t bytes, DeviceRange::Granule(device));
  return static_cast<int64_t>(bytes / DTypeBytes(values));
}

// `guarded`: gathers go on behind the step.
FlatOptions FlatOptionsOf(const Config& config, int world_size, bool guarded) {
  const bool cast_buffers = config.precision().cast_buffers;
  if (config.zero_stage() == 0 && !guarded) {
    return {.cast_buffers = cast_buffers};
  }
  return {.pad_to_multiple = ShardOptionsOf(config, world_size).grain(),
          .with_gradients = config.zero_stage() < 2,
          .values = config.zero_stage() == 3 ? ValueMemory::kReserved
                    : guarded                ? ValueMemory::kGuarded
                                             : ValueMemory::kSymmetric,
          .cast_buffers = cast_buffers};
}

// Up to how many elements the first steps may make buckets; 0: they stay as they are.
int64_t TunedBucketsMax(const Config& config, const comm::Group& group) {
  const bool leaves_host = group.transport() != "shm" && group.transport() != "alone";
  const Json& tuning = *config.Find("comm.bucket_tuning");
  const bool wanted = tuning == "on" || (tuning == "auto" && leaves_host);
  return wanted && config.overlap_comm() && config.comm_compression().type == "none"
             ? config.reduce_bucket_elements()
             : 0;
}

// Of the module's parameters while it trains.
DType ValueType(const Config& config) {
  switch (config.precision().kind) {
    case PrecisionConfig::Kind::kBFloat16:
      return DType::kBFloat16;
    case PrecisionConfig::Kind::kFloat16:
      return DType::kFloat16;
    case PrecisionConfig::Kind::kFloat32:
      return DType::kFloat32;
  }
  return DType::kFloat32;
}

ModelSize SizeOf(const FlatParameters& flat) {
  ModelSize size{.trained = flat.layout().parameter_elements()};
  size.parameters = size.trained;
  for (const NamedTensor& frozen : flat.frozen()) {
    size.parameters += frozen.tensor.numel();
  }
  return size;
}

}  // namespace

// It becomes part of a metric's name.
absl::Status CheckSampleUnit(absl::string_view name, absl::string_view unit) {
  constexpr size_t kUnitMax = 32;
  const bool fits =
      !unit.empty() && unit.size() <= kUnitMax && std::all_of(unit.begin(), unit.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
      });
  return fits ? absl::OkStatus()
              : absl::InvalidArgumentError(absl::StrFormat(
                    "%s is \"%s\"; want a word of 1 to %d letters, digits, _ and -, such as images",
                    name, absl::CHexEscape(unit), kUnitMax));
}

comm::Wire WireOf(const Config& config) {
  const std::string& name = config.comm_wire_dtype();
  return name == "bf16"   ? comm::Wire::kBFloat16
         : name == "fp16" ? comm::Wire::kFloat16
                          : comm::Wire::kSameAsBuffer;
}

comm::CompressionOptions CompressionOf(const Config& config) {
  const CompressionConfig& from = config.comm_compression();
  comm::CompressionOptions options;
  options.kind = from.type == "powersgd" ? comm::Compression::kPowerSgd
                 : from.type == "int8"   ? comm::Compression::kInt8
                                         : comm::Compression::kNone;
  options.wire = WireOf(config);
  options.rank = static_cast<int>(from.rank);
  options.error_feedback = from.error_feedback;
  options.start_step = from.start_step;
  options.elements_min = static_cast<size_t>(from.min_elements);
  options.seed = static_cast<uint64_t>(config.seed());
  return options;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Job& job, torch::nn::Module& model,
                                                       EngineOptions options) {
  auto impl = std::make_unique<Impl>(job, model);
  EngineState& state = impl->state;
  state.options = std::move(options);
  if (!state.options.sample_unit.empty()) {
    DT_RETURN_IF_ERROR(CheckSampleUnit("EngineOptions::sample_unit", state.options.sample_unit));
  }
  state.zero_stage = job.config().zero_stage();
  state.loss_scale = plan::FirstLossScale(job.config().precision());
  DT_RETURN_IF_ERROR(impl->CheckDevice());
  DT_ASSIGN_OR_RETURN(state.flat,
                      FlatParameters::Describe(model, ValueType(job.config()), impl->device()));
  DT_RETURN_IF_ERROR(CheckSameModel(job.group(), *state.flat, state.zero_stage == 3));
  Announce(job.state(), SizeOf(*state.flat));
  WarnOfSlowProducts(job.state());
  if (state.zero_stage == 3) {
    DT_ASSIGN_OR_RETURN(auto frozen, state.flat->TakeFrozen());
    if (frozen != nullptr) {
      state.frozen = std::make_unique<FrozenShards>();
      state.frozen->flat = std::move(frozen);
    }
  }
  const FlatParameters* const frozen = state.frozen == nullptr ? nullptr : state.frozen->flat.get();
  DT_RETURN_IF_ERROR(impl->TakeUnits());
  DT_RETURN_IF_ERROR(impl->MakeShardPlans());
  DT_RETURN_IF_ERROR(impl->CheckMemory());
  DT_ASSIGN_OR_RETURN(
      impl->activation_store,
      ActivationStore::For(job.config().activation_checkpointing(), impl->device()));
  DT_RETURN_IF_ERROR(BroadcastModel(job.group(), *state.flat, frozen));
  if (state.options.flops_per_sample == 0) {
    state.options.flops_per_sample =
        6.0 * static_cast<double>(state.flat->layout().parameter_elements());
  }
  impl->peak_flops = DatasheetPeak(impl->device(), job.config());
  DT_RETURN_IF_ERROR(impl->TakeParameters());
  state.flat->RememberVersions();
  DT_RETURN_IF_ERROR(impl->CreateSync());
  impl->ReduceByUnits();
  impl->CreateGraphs();
  impl->CreateWeightCodes();
  impl->CreateBuffers();
  if (state.live != nullptr || WantsBacktraces()) {
    impl->witness.WatchAlways();
  }
  job.state().engines.push_back({state.options.name, impl->unmatched_decay});
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

// Rank 0 alone shows a fraction, and repeats while the others train, as they do beside its steps. A
// GPU, which nothing else uses, is measured once: each time would wait for it.
GemmProbe Engine::Impl::MakeGemmProbe() const {
  const auto type = [this] { return FloatTypeOf(state.flat->dtype()); };
  GemmProbe::Measures measures;
  measures.first = [this, type] { return MeasureGemmRate(device(), type()); };
  if (job.rank() == 0 && device().is_host()) {
    measures.repeat = [type](int64_t size) { return RepeatGemmRate(type(), size); };
  }
  return GemmProbe(std::move(measures));
}

// Where weights stay whole: at stage 3 codes would take more memory than the layers that are live.
void Engine::Impl::CreateWeightCodes() {
  if (job.config().gradient_accumulation_steps() <= 1 || state.live != nullptr) {
    return;
  }
  std::vector<at::Tensor> weights = state.flat->parameters();
  for (const NamedTensor& frozen : state.flat->frozen()) {
    weights.push_back(frozen.tensor);
  }
  weight_codes = std::make_unique<ops::KeptWeightCodes>(std::move(weights));
}

absl::StatusOr<plan::ShardOptions> Engine::Impl::OptionsOfShards() const {
  DT_ASSIGN_OR_RETURN(const int64_t granule,
                      GranuleOf(job.config(), device(), state.flat->dtype()));
  return ShardOptionsOf(job.config(), job.world_size(), granule);
}

absl::Status Engine::Impl::MakeShardPlans() {
  if (job.config().zero_stage() == 0) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const plan::LiveShares live, SharesOfLive());
  DT_ASSIGN_OR_RETURN(state.shards,
                      MakeShardPlan(state.flat->layout(), state.units, live.training));
  if (FrozenShards* const frozen = state.frozen.get(); frozen != nullptr) {
    DT_ASSIGN_OR_RETURN(frozen->shards,
                        MakeShardPlan(frozen->flat->layout(), frozen->units, live.frozen));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<plan::ShardPlan>> Engine::Impl::MakeShardPlan(
    const plan::ParamLayout& layout, const std::vector<plan::FlatRange>& units,
    int64_t live_max) const {
  const Config& config = job.config();
  DT_ASSIGN_OR_RETURN(plan::ShardOptions options, OptionsOfShards());
  options.buckets.bucket_elements =
      plan::BucketElements(config, layout.total_elements(), GathersBehindStep());
  if (config.zero_stage() == 3) {
    options.units = units;
    options.unit_elements_max = std::max<int64_t>(1, live_max);
  }
  DT_ASSIGN_OR_RETURN(plan::ShardPlan shards, plan::ShardPlan::Create(layout, options));
  return std::make_unique<plan::ShardPlan>(std::move(shards));
}

// Who updates which elements, and the states and masters of those; then the module's parameters go
// into the flat buffers.
absl::Status Engine::Impl::TakeParameters() {
  const Config& config = job.config();
  const plan::ParamLayout& layout = state.flat->layout();
  DT_ASSIGN_OR_RETURN(rule, MakeUpdateRule(config, state.options.optimizer, layout));
  if (!device().is_host() && !UpdatesOnHost()) {
    DT_RETURN_IF_ERROR(MakeDeviceRule(config, *rule, layout).status());
  }
  std::vector<std::string> frozen;
  for (const NamedTensor& parameter : state.flat->frozen()) {
    frozen.push_back(parameter.name);
  }
  if (state.frozen != nullptr) {
    for (const plan::LayoutEntry& entry : state.frozen->flat->layout().entries()) {
      frozen.push_back(entry.name);
    }
  }
  DT_ASSIGN_OR_RETURN(const UpdateGroups groups,
                      GroupParameters(layout, config.optimizer(),
                                      {.by_parameter = rule->by_parameter(),
                                       .engine = state.options.name,
                                       .module = module.name(),
                                       .frozen = frozen}));
  settings = groups.settings;
  unmatched_decay = groups.unmatched_decay;
  const bool skips = config.optimizer().skip_unused;
  unused = std::make_unique<UnusedParameters>(job.group(), layout, skips);
  state.missed.resize(skips ? layout.entries().size() : 0);
  // From here on the module changes, and nothing that it or the configuration asks for is refused.
  if (state.frozen != nullptr) {  // First: mostly they are the more, and their memory is given up.
    DT_RETURN_IF_ERROR(ShareOutFrozen());
  }
  int64_t elements = layout.total_elements();
  if (config.zero_stage() == 0) {
    state.owned = {{{0, elements}, 0}};
    if (GathersBehindStep()) {
      DT_ASSIGN_OR_RETURN(gradient_shards, MakeShardPlan(layout, {}, 0));
      gradient_owned = gradient_shards->owned(job.rank());
      for (const plan::FlatRange& bucket : gradient_shards->buckets()) {
        update_pieces.push_back(UpdatePieces(groups, {bucket, bucket.begin}));
      }
    } else {
      update_pieces = {UpdatePieces(groups, state.owned[0])};
    }
  } else {
    state.owned = state.shards->owned(job.rank());
    for (size_t bucket = 0; bucket < state.shards->buckets().size(); ++bucket) {
      const auto part = state.shards->part(static_cast<int>(bucket), job.rank());
      update_pieces.push_back(UpdatePieces(groups, part));
    }
    elements = state.shards->shard_elements();
  }
  DT_RETURN_IF_ERROR(MakeStates(elements));
  std::vector<int> order(update_pieces.size());
  std::iota(order.begin(), order.end(), 0);
  UseUpdateOrder(std::move(order));
  ShardMemory shard;
  if (config.zero_stage() == 3) {
    DT_ASSIGN_OR_RETURN(shard, MakeShard(elements, state.shard_values));
  }
  DT_RETURN_IF_ERROR(state.flat->MoveIn(
      FlatOptionsOf(config, job.world_size(), GathersBehindStep()),
      [this](const plan::LayoutEntry& entry, const at::Tensor& whole) {
        const plan::OwnedRange all{{entry.offset, entry.offset + entry.elements}, 0};
        for (const at::Tensor& mine : {state.master, state.shard_values}) {
          if (mine.defined()) {
            CopyShared(whole, {all}, mine, state.owned);
          }
        }
      }));
  return config.zero_stage() == 3 ? CreateLive(shard) : absl::OkStatus();
}

// The slots that the optimizer declares, and the master: near, or in a far tier and streamed.
absl::Status Engine::Impl::MakeStates(int64_t elements) {
  const Config& config = job.config();
  const OffloadOptions offload = StateOffload();
  std::vector<FarState> far;
  const auto make = [&](at::ScalarType type, float value) -> absl::StatusOr<at::Tensor> {
    if (offload.device == OffloadOptions::Device::kNone) {
      return MakeStateOn(device(), elements, type, value);
    }
    if (UpdatesOnHost() && offload.device == OffloadOptions::Device::kMemory) {
      return MakePinnedState(device(), elements, type, value);
    }
    DT_ASSIGN_OR_RETURN(far.emplace_back(), MakeFarState(offload, elements, type, value));
    return far.back().tensor();
  };
  const at::ScalarType type = config.optimizer().bf16_states ? at::kBFloat16 : at::kFloat;
  state.optimizer = rule->name();
  for (const std::string& name : rule->states()) {
    DT_ASSIGN_OR_RETURN(at::Tensor slot, make(type, rule->first_state()));
    state.slots.push_back({name, std::move(slot)});
  }
  if (state.flat->dtype() != DType::kFloat32) {
    DT_ASSIGN_OR_RETURN(state.master, make(at::kFloat, 0));
  }
  if (!far.empty()) {
    stream = std::make_unique<StateStream>(
        std::move(far),
        StreamOptions{.chunk_elements = plan::OffloadChunkElements(elements, offload.buffers),
                      .buffers = offload.buffers,
                      .threads = offload.threads,
                      .near_elements = NearElements(offload, elements)});
  }
  if (UpdatesOnHost()) {
    DT_RETURN_IF_ERROR(CreateExchange(elements));
  }
  return absl::OkStatus();
}

// Stage 0: part of the gradients is gathered, and the weights updated, behind the step.
absl::Status Engine::Impl::CreateSyncBehindStep() {
  FlatParameters& flat = *state.flat;
  DT_ASSIGN_OR_RETURN(auto sync,
                      ShardedGradients::Create(job.group(), flat, *gradient_shards,
                                               CompressionOf(job.config()), kReducedWhole));
  sharded_gradients = sync.get();
  reducer = std::move(sync);
  gather = ParameterGather::OfGradients(job.group(), flat, *gradient_shards);
  UseUpdateOrder(plan::NeedOrder(static_cast<int>(update_pieces.size()), {}));
  first_reads = std::make_unique<FirstReads>(flat, *gradient_shards);
  return absl::OkStatus();
}

// How gradients and values travel.
absl::Status Engine::Impl::CreateSync() {
  const Config& config = job.config();
  FlatParameters& flat = *state.flat;
  if (!device().is_host()) {
    return CreateOnDevice();
  }
  if (gradient_shards != nullptr) {
    return CreateSyncBehindStep();
  }
  if (config.zero_stage() == 0) {
    DT_ASSIGN_OR_RETURN(
        reducer,
        GradientReducer::Create(
            job.group(), flat,
            {.bucket_elements = plan::BucketElements(config, flat.layout().total_elements()),
             .bucket_elements_max = TunedBucketsMax(config, job.group()),
             .compression = CompressionOf(config)}));
    return absl::OkStatus();
  }
  const plan::ShardPlan& shards = *state.shards;
  if (config.zero_stage() < 3) {
    DT_ASSIGN_OR_RETURN(gather, ParameterGather::Create(job.group(), flat, shards));
    if (GathersBehindStep()) {
      UseUpdateOrder(plan::NeedOrder(static_cast<int>(update_pieces.size()), {}));
      first_reads = std::make_unique<FirstReads>(flat, shards);
    }
  }
  if (config.zero_stage() == 1) {
    DT_ASSIGN_OR_RETURN(reducer,
                        ShardedGradients::Create(job.group(), flat, shards, CompressionOf(config)));
  } else {
    const PartitionedOptions options{.wire = WireOf(config),
                                     .quantized = config.quantized_gradients()};
    DT_ASSIGN_OR_RETURN(reducer, PartitionedGradients::Create(job.group(), flat, shards, options));
  }
  return absl::OkStatus();
}

}  // namespace dtrain
