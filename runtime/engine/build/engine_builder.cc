#include "runtime/engine/build/engine_builder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "c10/core/ScalarType.h"
#include "kernels/quantize/int8_blocks.h"
#include "runtime/data/epoch.h"
#include "runtime/engine/build/memory_check.h"
#include "runtime/engine/build/model_units.h"
#include "runtime/engine/build/update_place.h"
#include "runtime/engine/build/weight_sharder.h"
#include "runtime/gradients/device_gradients.h"
#include "runtime/gradients/gradient_reducer.h"
#include "runtime/gradients/partitioned_gradients.h"
#include "runtime/gradients/partitioned_on_device.h"
#include "runtime/gradients/sharded_gradients.h"
#include "runtime/job/announce.h"
#include "runtime/job/exception_status.h"
#include "runtime/job/job_state.h"
#include "runtime/job/slow_products.h"
#include "runtime/memory/state_memory.h"
#include "runtime/model/copy_shared.h"
#include "runtime/model/model_sync.h"
#include "runtime/offload/offload_options.h"
#include "runtime/plan/layout/bucket_plan.h"
#include "runtime/plan/memory/offload_plan.h"
#include "runtime/plan/optimizer/loss_scale.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

// Up to how many elements the first steps may make buckets; 0: they stay as they are.
int64_t TunedBucketsMax(const Config& config, const comm::Group& group) {
  const bool leaves_host = group.transport() != "shm" && group.transport() != "alone";
  const std::string& tuning = config.bucket_tuning();
  const bool wanted = tuning == "on" || (tuning == "auto" && leaves_host);
  return wanted && config.overlap_comm() && config.comm_compression().type == "none"
             ? config.reduce_bucket_elements()
             : 0;
}

// The type of the module's parameters while it trains.
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

std::vector<std::string> FrozenNames(const EngineState& state) {
  std::vector<std::string> names;
  for (const NamedTensor& parameter : state.flat->frozen()) {
    names.push_back(parameter.name);
  }
  if (state.frozen != nullptr) {
    for (const plan::LayoutEntry& entry : state.frozen->flat->layout().entries()) {
      names.push_back(entry.name);
    }
  }
  return names;
}

std::vector<std::string> ParameterNames(const EngineState& state) {
  std::vector<std::string> names = FrozenNames(state);
  for (const plan::LayoutEntry& entry : state.flat->layout().entries()) {
    names.push_back(entry.name);
  }
  return names;
}

// comm.wire_dtype.
comm::Wire WireOf(const Config& config) {
  const std::string& name = config.comm_wire_dtype();
  return name == "bf16"   ? comm::Wire::kBFloat16
         : name == "fp16" ? comm::Wire::kFloat16
                          : comm::Wire::kSameAsBuffer;
}

// comm.compression, and the wire's type of what it leaves alone.
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
  options.int8 = {kernels::PackInt8Blocks, kernels::UnpackInt8Blocks};
  return options;
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

EngineBuilder::EngineBuilder(Job& job, torch::nn::Module& module, EngineOptions options)
    : job_(job),
      module_(module),
      zero_(plan::ZeroPolicy::Of(job.config())),
      parts_(new EngineParts{.job = job, .module = module}) {
  state().options = std::move(options);
}

const Device& EngineBuilder::device() const { return *job_.state().device; }

absl::StatusOr<std::unique_ptr<EngineCore>> EngineBuilder::Build() {
  if (!state().options.sample_unit.empty()) {
    DT_RETURN_IF_ERROR(CheckSampleUnit("EngineOptions::sample_unit", state().options.sample_unit));
  }
  DT_RETURN_IF_ERROR(CheckLengthIsKnown(job_.config()));
  DT_RETURN_IF_ERROR(CheckDevice(job_, state()));
  DT_RETURN_IF_ERROR(DescribeModel());
  DT_ASSIGN_OR_RETURN(leaf_modules_, TakeUnits(job_, module_, state()));
  DT_RETURN_IF_ERROR(MakeShardPlans(job_, state(), leaf_modules_));
  DT_RETURN_IF_ERROR(CheckMemory(job_, state(), leaf_modules_));
  DT_ASSIGN_OR_RETURN(micro_batches_.activations,
                      ActivationStore::For(job_.config().activation_checkpointing(), device()));
  const FlatParameters* const frozen =
      state().frozen == nullptr ? nullptr : state().frozen->flat.get();
  DT_RETURN_IF_ERROR(BroadcastModel(job_.group(), *state().flat, frozen));
  DT_RETURN_IF_ERROR(PlanUpdate());
  DT_RETURN_IF_ERROR(TakeParameters());
  state().flat->RememberVersions();
  DT_RETURN_IF_ERROR(device().is_host() ? MakeGradients() : MakeDeviceGradients());
  ReduceByUnits(state(), *parts_->gradients);
  DT_RETURN_IF_ERROR(device().is_host() ? MakeHostStrategy() : MakeDeviceStrategy());
  MakeWeightCodes();
  MakeBuffers();
  micro_batches_.graphs =
      GraphRunner::For(job_, device_gradients_ == nullptr ? nullptr : device_gradients_->whole(),
                       *parts_->buffers, micro_batches_.codes.get());
  parts_->recorder = std::make_unique<StepRecorder>(job_, state(), *parts_->gradients,
                                                    micro_batches_.activations.get());
  job_.state().engines.push_back({.name = state().options.name,
                                  .unmatched_decay = parts_->plan->unmatched_decay(),
                                  .parameters = ParameterNames(state()),
                                  .memory = parts_->memory});
  const bool watch_always = state().live != nullptr || WantsBacktraces();
  return std::make_unique<EngineCore>(std::move(parts_), std::move(micro_batches_), watch_always);
}

absl::Status EngineBuilder::DescribeModel() {
  const Config& config = job_.config();
  state().zero_stage = config.zero_stage();
  state().progress.loss_scale = plan::FirstLossScale(config.precision());
  DT_ASSIGN_OR_RETURN(state().flat, FlatParameters::Describe(module_, ValueType(config), device()));
  DT_RETURN_IF_ERROR(CheckSameModel(job_.group(), *state().flat, zero_.shards_weights));
  DT_RETURN_IF_ERROR(CheckApartFromOthers());
  Announce(job_.state(), SizeOf(*state().flat));
  WarnOfSlowProducts(job_.state());
  if (zero_.shards_weights) {
    DT_ASSIGN_OR_RETURN(auto frozen, state().flat->TakeFrozen());
    if (frozen != nullptr) {
      state().frozen = std::make_unique<FrozenShards>();
      state().frozen->flat = std::move(frozen);
    }
  }
  if (state().options.flops_per_sample == 0) {
    state().options.flops_per_sample =
        6.0 * static_cast<double>(state().flat->layout().parameter_elements());
  }
  return absl::OkStatus();
}

absl::Status EngineBuilder::CheckApartFromOthers() {
  const std::string& name = state().options.name;
  parts_->memory = std::make_shared<const ModelMemory>(
      name.empty() ? absl::StrCat("the engine of ", module_.name())
                   : absl::StrCat("engine \"", name, "\""),
      state().flat->Tensors());
  for (const Job::State::EngineFacts& other : job_.state().engines) {
    if (const auto memory = other.memory.lock()) {
      DT_RETURN_IF_ERROR(parts_->memory->CheckApart(*memory));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineBuilder::PlanUpdate() {
  const Config& config = job_.config();
  const plan::ParamLayout& layout = state().flat->layout();
  DT_ASSIGN_OR_RETURN(rule_, MakeUpdateRule(config, state().options.optimizer, layout));
  if (!device().is_host() && !UpdatesOnHost(job_, state())) {
    DT_RETURN_IF_ERROR(MakeDeviceRule(config, *rule_, layout).status());
  }
  DT_ASSIGN_OR_RETURN(SettledSettings engine, SettleSettings(config, state().options));
  DT_ASSIGN_OR_RETURN(UpdateGroups groups, GroupParameters(layout, engine.optimizer,
                                                           {.by_parameter = rule_->by_parameter(),
                                                            .engine = state().options.name,
                                                            .module = module_.name(),
                                                            .frozen = FrozenNames(state()),
                                                            .own_groups = engine.own_groups}));
  parts_->plan = std::make_unique<UpdatePlan>(job_, state(), std::move(engine), std::move(groups));
  if (!zero_.shards_states) {
    state().owned = {{{0, layout.total_elements()}, 0}};
    parts_->plan->AddBucket(state().owned[0]);
    return absl::OkStatus();
  }
  state().owned = state().shards->owned(job_.rank());
  for (size_t bucket = 0; bucket < state().shards->buckets().size(); ++bucket) {
    parts_->plan->AddBucket(state().shards->part(static_cast<int>(bucket), job_.rank()));
  }
  return absl::OkStatus();
}

// From here on the module changes, and nothing that it or the configuration asks for is refused.
absl::Status EngineBuilder::TakeParameters() {
  WeightSharder sharder(job_, state(), leaf_modules_);
  if (state().frozen !=
      nullptr) {  // First: mostly they are the more, and their memory is given up.
    DT_RETURN_IF_ERROR(sharder.ShareOutFrozen());
  }
  const int64_t elements = zero_.shards_states ? state().shards->shard_elements()
                                               : state().flat->layout().total_elements();
  DT_RETURN_IF_ERROR(MakeStates(elements));
  ShardMemory shard;
  if (zero_.shards_weights) {
    DT_ASSIGN_OR_RETURN(shard, sharder.MakeShard(elements, state().shard_values));
  }
  DT_RETURN_IF_ERROR(state().flat->MoveIn(
      FlatOptionsOf(job_.config(), job_.world_size()),
      [this](const plan::LayoutEntry& entry, const at::Tensor& whole) {
        const plan::OwnedRange all{{entry.offset, entry.offset + entry.elements}, 0};
        for (const at::Tensor& own : {state().optimizer.master, state().shard_values}) {
          if (own.defined()) {
            CopyShared(whole, {all}, own, state().owned);
          }
        }
      }));
  return zero_.shards_weights ? sharder.GatherTrained(shard) : absl::OkStatus();
}

// The slots that the optimizer declares, and the master: near, or in a far tier and streamed.
absl::Status EngineBuilder::MakeStates(int64_t elements) {
  const Config& config = job_.config();
  const OffloadOptions offload = StateOffload(job_, state());
  std::vector<FarState> far;
  const auto make = [&](at::ScalarType type, float value) -> absl::StatusOr<at::Tensor> {
    if (offload.device == OffloadOptions::Device::kNone) {
      return MakeStateOn(device(), elements, type, value);
    }
    if (UpdatesOnHost(job_, state()) && offload.device == OffloadOptions::Device::kMemory) {
      return MakePinnedState(device(), elements, type, value);
    }
    DT_ASSIGN_OR_RETURN(far.emplace_back(), MakeFarState(offload, elements, type, value));
    return far.back().tensor();
  };
  const at::ScalarType type = config.optimizer().bf16_states ? at::kBFloat16 : at::kFloat;
  state().optimizer.name = rule_->name();
  for (const std::string& name : rule_->states()) {
    DT_ASSIGN_OR_RETURN(at::Tensor slot, make(type, rule_->first_state()));
    state().optimizer.slots.push_back({name, std::move(slot)});
  }
  if (state().flat->dtype() != DType::kFloat32) {
    DT_ASSIGN_OR_RETURN(state().optimizer.master, make(at::kFloat, 0));
  }
  if (!far.empty()) {
    stream_ = std::make_unique<StateStream>(
        std::move(far),
        StreamOptions{.chunk_elements = plan::OffloadChunkElements(elements, offload.buffers),
                      .buffers = offload.buffers,
                      .threads = offload.threads,
                      .near_elements = NearElements(offload, elements)});
  }
  return UpdatesOnHost(job_, state()) ? MakeExchange(elements) : absl::OkStatus();
}

absl::Status EngineBuilder::MakeExchange(int64_t elements) {
  const Config& config = job_.config();
  const OffloadOptions offload = StateOffload(job_, state());
  if (OptimizerOffload(config).device == OffloadOptions::Device::kNone && job_.rank() == 0) {
    DT_LOG(Warning) << "optimizer " << rule_->name()
                    << " of the program has no CUDA form: the host updates, and has its states as "
                       "with zero_optimization.offload_optimizer.device \"cpu\"";
  }
  if (offload.device == OffloadOptions::Device::kMemory && offload.ratio < 1 && job_.rank() == 0) {
    DT_LOG(Warning) << absl::StrFormat(
        "zero_optimization.offload_optimizer.ratio %g has no effect with device \"cpu\" on a GPU: "
        "all states are in the host's memory",
        offload.ratio);
  }
  DT_ASSIGN_OR_RETURN(
      exchange_,
      UpdateExchange::Create(
          device(), state(), stream_.get(),
          {.chunk_elements = plan::OffloadChunkElements(elements, offload.buffers),
           .buffers = static_cast<int>(plan::ExchangeBuffers(offload.buffers)),
           .values_on_host = ParameterOffload(config).device != OffloadOptions::Device::kNone,
           .timeout = absl::Seconds(config.comm_timeout_seconds())}));
  return absl::OkStatus();
}

absl::Status EngineBuilder::MakeGradients() {
  const Config& config = job_.config();
  FlatParameters& flat = *state().flat;
  if (!zero_.shards_states) {
    DT_ASSIGN_OR_RETURN(
        parts_->gradients,
        GradientReducer::Create(
            job_.group(), flat,
            {.bucket_elements = plan::BucketElements(config, flat.layout().total_elements()),
             .bucket_elements_max = TunedBucketsMax(config, job_.group()),
             .compression = CompressionOf(config)}));
  } else if (!zero_.shards_gradients) {
    DT_ASSIGN_OR_RETURN(
        parts_->gradients,
        ShardedGradients::Create(job_.group(), flat, *state().shards, CompressionOf(config)));
  } else {
    DT_ASSIGN_OR_RETURN(parts_->gradients,
                        PartitionedGradients::Create(
                            job_.group(), flat, *state().shards,
                            {.wire = WireOf(config), .quantized = config.quantized_gradients()}));
  }
  return absl::OkStatus();
}

absl::Status EngineBuilder::MakeHostStrategy() {
  HostStrategy::Parts parts{.rule = std::move(rule_), .stream = std::move(stream_)};
  if (zero_.gathers_updates()) {
    DT_ASSIGN_OR_RETURN(parts.gather,
                        ParameterGather::Create(job_.group(), *state().flat, *state().shards));
  }
  parts_->strategy = std::make_unique<HostStrategy>(job_, state(), *parts_->plan,
                                                    *parts_->gradients, std::move(parts));
  return absl::OkStatus();
}

absl::Status EngineBuilder::MakeDeviceGradients() {
  const Config& config = job_.config();
  comm::DeviceGroup& group = *job_.state().device_group;
  FlatParameters& flat = *state().flat;
  std::unique_ptr<DeviceGradientSync> gradients;
  if (!zero_.shards_gradients) {
    DT_ASSIGN_OR_RETURN(gradients,
                        DeviceGradients::Create(device(), group, flat,
                                                {.bucket_elements = plan::BucketElements(
                                                     config, flat.layout().total_elements()),
                                                 .shards = state().shards.get(),
                                                 .deterministic = config.deterministic(),
                                                 .compression = CompressionOf(config)}));
  } else {
    DT_ASSIGN_OR_RETURN(gradients,
                        PartitionedOnDevice::Create(device(), group, flat, *state().shards,
                                                    {.wire = WireOf(config),
                                                     .deterministic = config.deterministic(),
                                                     .quantized = config.quantized_gradients()}));
  }
  device_gradients_ = gradients.get();
  parts_->gradients = std::move(gradients);
  return absl::OkStatus();
}

absl::Status EngineBuilder::MakeDeviceStrategy() {
  const Config& config = job_.config();
  comm::DeviceGroup& group = *job_.state().device_group;
  const bool on_host = UpdatesOnHost(job_, state());
  DeviceStrategy::Parts parts;
  if (zero_.gathers_updates()) {
    DT_ASSIGN_OR_RETURN(parts.gather,
                        ParameterGather::Create(group, *state().flat, *state().shards));
  }
  if (!on_host && ParameterOffload(config).device == OffloadOptions::Device::kFile) {
    DT_ASSIGN_OR_RETURN(
        parts.share_return,
        ShareReturn::Create(
            device(), {static_cast<std::byte*>(state().shard_values.mutable_data_ptr()),
                       state().flat->dtype(), state().shards->largest_bucket() / job_.world_size(),
                       absl::Seconds(config.comm_timeout_seconds())}));
  }
  std::unique_ptr<DeviceRule> device_rule;
  if (!on_host) {
    DT_ASSIGN_OR_RETURN(device_rule, MakeDeviceRule(config, *rule_, state().flat->layout()));
  }
  DT_ASSIGN_OR_RETURN(
      parts.step, DeviceStep::Create(device(), group, std::move(device_rule),
                                     {.settings = parts_->plan->settings().size(),
                                      .timeout = absl::Seconds(config.comm_timeout_seconds())}));
  if (state().small_group.device != nullptr) {
    parts.step->Watch(*state().small_group.device);
  }
  parts.rule = std::move(rule_);
  parts.stream = std::move(stream_);
  parts.exchange = std::move(exchange_);
  parts_->strategy = std::make_unique<DeviceStrategy>(job_, state(), *parts_->plan,
                                                      *device_gradients_, std::move(parts));
  return absl::OkStatus();
}

// Where weights stay whole: at stage 3 codes would take more memory than the layers that are live.
void EngineBuilder::MakeWeightCodes() {
  if (parts_->plan->engine().accumulation <= 1 || state().live != nullptr) {
    return;
  }
  std::vector<at::Tensor> weights = state().flat->parameters();
  for (const NamedTensor& frozen : state().flat->frozen()) {
    weights.push_back(frozen.tensor);
  }
  micro_batches_.codes = std::make_unique<ops::KeptWeightCodes>(std::move(weights));
}

void EngineBuilder::MakeBuffers() {
  using Policy = ModuleBuffers::Policy;
  const std::string& name = job_.config().module_buffers();
  const Policy policy = name == "local"     ? Policy::kLocal
                        : name == "average" ? Policy::kAverage
                                            : Policy::kBroadcast;
  state().local_buffers = policy == Policy::kLocal;
  parts_->watch.NoteBuffers();
  parts_->buffers = std::make_unique<ModuleBuffers>(
      state().flat->module_buffers(), policy,
      ModuleBuffers::Ranks{job_.group(), job_.state().device_group.get(), device()});
}

}  // namespace dtrain
