#include "dtrain/config.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"
#include "runtime/plan/config/config_builder.h"
#include "runtime/plan/config/config_keys.h"
#include "runtime/plan/config/config_values.h"
#include "runtime/plan/data/data_store.h"

namespace dtrain {
namespace {

constexpr size_t kConfigBytesMax = size_t{16} << 20;

}  // namespace

absl::string_view ConfigOriginName(ConfigOrigin origin) {
  switch (origin) {
    case ConfigOrigin::kDefault:
      return "default";
    case ConfigOrigin::kFile:
      return "file";
    case ConfigOrigin::kSet:
      return "--set";
    case ConfigOrigin::kDerived:
      return "derived";
  }
  return "";
}

const Json& Config::Values::at(absl::string_view key) const {
  const auto found = by_key.find(key);
  DT_CHECK(found != by_key.end()) << "no configuration key " << key;
  return found->second;
}

bool Config::Values::has_remote_data() const {
  return std::any_of(data_train.begin(), data_train.end(), plan::IsRemoteAddress) ||
         std::any_of(data_validation.begin(), data_validation.end(), plan::IsRemoteAddress);
}

namespace {

// Fills `builder` from the file's text and --set.
absl::Status ReadDocument(ConfigBuilder& builder, const std::vector<std::string>& overrides) {
  DT_RETURN_IF_ERROR(builder.ReadFileText());
  for (const std::string& assignment : overrides) {
    DT_RETURN_IF_ERROR(builder.Override(assignment));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Config> Config::Parse(absl::string_view text, absl::string_view file_name,
                                     const std::vector<std::string>& overrides, int world_size) {
  ConfigBuilder builder(text, file_name, world_size);
  DT_RETURN_IF_ERROR(ReadDocument(builder, overrides));
  return builder.Finish();
}

absl::StatusOr<Config> Config::WithStepsPerEpoch(double steps) const {
  if (!(steps > 0) || std::isinf(steps)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("an epoch of %g steps; allowed: a number above 0", steps));
  }
  if (train_epochs() == 0) {
    return *this;
  }
  ConfigBuilder builder(values_->document, values_->file_name, values_->world_size);
  DT_RETURN_IF_ERROR(ReadDocument(builder, values_->overrides));
  builder.SetStepsPerEpoch(steps);
  return builder.Finish();
}

absl::StatusOr<Config> Config::Load(const std::string& path,
                                    const std::vector<std::string>& overrides, int world_size) {
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kConfigBytesMax));
  return Parse(text, path, overrides, world_size);
}

int64_t Config::train_steps() const { return values_->train_steps; }
double Config::train_epochs() const {
  const Json& epochs = values_->at("train_epochs");
  return epochs.is_null() ? 0 : epochs.get<double>();
}
int64_t Config::eval_interval() const { return values_->integer("eval_interval"); }
int64_t Config::eval_batches() const { return values_->integer("eval_batches"); }
bool Config::evaluate_at(int64_t step) const {
  const int64_t interval = eval_interval();
  return interval > 0 && step > 0 && (step % interval == 0 || step == train_steps());
}
uint64_t Config::seed() const { return static_cast<uint64_t>(values_->integer("seed")); }
bool Config::deterministic() const { return values_->boolean("deterministic"); }
const std::string& Config::device() const { return values_->text("device"); }
bool Config::cuda_graphs() const { return values_->boolean("cuda_graphs"); }
const std::string& Config::module_buffers() const { return values_->text("module_buffers"); }

int64_t Config::global_batch() const { return values_->global_batch; }
int64_t Config::micro_batch() const { return values_->micro_batch; }
int64_t Config::gradient_accumulation_steps() const { return values_->accumulation; }
int Config::world_size() const { return values_->world_size; }

const OptimizerConfig& Config::optimizer() const { return values_->optimizer; }
const SchedulerConfig& Config::scheduler() const { return values_->scheduler; }
double Config::gradient_clipping() const { return values_->number("gradient_clipping"); }
double Config::gradient_clipping_value() const {
  return values_->number("gradient_clipping_value");
}
double Config::gradient_predivision() const {
  return values_->boolean("prescale_gradients") ? values_->world_size
                                                : values_->number("gradient_predivide_factor");
}

int64_t Config::reduce_bucket_elements() const {
  return values_->integer("zero_optimization.reduce_bucket_size");
}
bool Config::overlap_comm() const { return values_->boolean("zero_optimization.overlap_comm"); }
const std::string& Config::bucket_tuning() const { return values_->text("comm.bucket_tuning"); }
TraceConfig Config::metrics_trace() const {
  return {.first_step = values_->integer("metrics.trace_first_step"),
          .steps = values_->integer("metrics.trace_steps")};
}
GatherLimits Config::gather_limits() const {
  return {.live_max = values_->integer("zero_optimization.stage3_max_live_parameters"),
          .reuse_max = values_->integer("zero_optimization.stage3_max_reuse_distance"),
          .prefetch_max = values_->integer("zero_optimization.stage3_prefetch_bucket_size")};
}
PersistenceLimits Config::persistence_limits() const {
  return {.parameter_max = values_->integer("zero_optimization.stage3_param_persistence_threshold"),
          .model_max = values_->integer("zero_optimization.stage3_model_persistence_threshold")};
}
LeafModuleConfig Config::leaf_modules() const {
  constexpr char kClasses[] = "zero_optimization.leaf_module.classes";
  const auto list = [this](const char* key) {
    return values_->at(key).get<std::vector<std::string>>();
  };
  return {.classes = list(kClasses),
          .names = list("zero_optimization.leaf_module.names"),
          .name_suffixes = list("zero_optimization.leaf_module.name_suffixes"),
          .default_classes = Json::parse(plan::FindConfigKey(kClasses)->default_value)
                                 .get<std::vector<std::string>>()};
}
bool Config::quantized_weights() const {
  return values_->boolean("zero_optimization.zero_quantized_weights");
}
bool Config::quantized_gradients() const {
  return values_->boolean("zero_optimization.zero_quantized_gradients");
}
int Config::hpz_partition_size() const {
  return static_cast<int>(values_->integer("zero_optimization.zero_hpz_partition_size"));
}
ActivationCheckpointingConfig Config::activation_checkpointing() const {
  using Mode = ActivationCheckpointingConfig::Mode;
  using Tier = ActivationCheckpointingConfig::Tier;
  const Json& mode = values_->at("activation_checkpointing.mode");
  const Json& folder = values_->at("activation_checkpointing.nvme_path");
  return {
      .mode = mode == "full"        ? Mode::kFull
              : mode == "selective" ? Mode::kSelective
                                    : Mode::kNone,
      .every = values_->integer("activation_checkpointing.every"),
      .tier = !folder.is_null()                                                ? Tier::kFile
              : values_->boolean("activation_checkpointing.cpu_checkpointing") ? Tier::kMemory
                                                                               : Tier::kNone,
      .nvme_path = folder.is_null() ? "" : folder.get<std::string>(),
      .wait_written = values_->boolean("activation_checkpointing.synchronize_checkpoint_boundary")};
}
int Config::zero_stage() const {
  return static_cast<int>(values_->integer("zero_optimization.stage"));
}

const std::vector<std::string>& Config::data_train() const { return values_->data_train; }
const std::vector<DataPart>& Config::data_parts() const { return values_->data_parts; }
const std::vector<std::string>& Config::data_validation() const { return values_->data_validation; }
int64_t Config::sequence_length() const { return values_->integer("data.sequence_length"); }
const std::string& Config::data_format() const { return values_->data_format; }
int64_t Config::data_document_token() const { return values_->integer("data.document_token"); }
bool Config::data_document_token_starts() const {
  return values_->at("data.document_token_place") == "start";
}
RemoteDataConfig Config::data_remote() const {
  return {.cache_dir = values_->text("data.cache_dir"),
          .cache_bytes_max = values_->integer("data.cache_limit"),
          .timeout_seconds = values_->number("data.remote_timeout_s")};
}

int64_t Config::checkpoint_interval() const {
  return checkpoint_continuous() ? 0 : values_->integer("checkpoint.interval");
}
bool Config::checkpoint_continuous() const {
  return values_->at("checkpoint.interval") == "continuous";
}
int64_t Config::checkpoint_keep() const { return values_->integer("checkpoint.keep"); }
int64_t Config::checkpoint_keep_every() const { return values_->integer("checkpoint.keep_every"); }
BestCheckpointsConfig Config::checkpoint_best() const {
  return {.count = values_->integer("checkpoint.keep_best"),
          .metric = values_->text("checkpoint.best_metric"),
          .larger_is_better = values_->text("checkpoint.best_is") == "largest"};
}
bool Config::checkpoint_async() const {
  return values_->boolean("checkpoint.async") || checkpoint_continuous();
}
int64_t Config::checkpoint_staging_memory() const {
  return values_->integer("checkpoint.staging_memory");
}
const std::string& Config::checkpoint_remote() const { return values_->text("checkpoint.remote"); }
const std::string& Config::checkpoint_local_dir() const {
  return values_->text("checkpoint.local_dir");
}
int64_t Config::checkpoint_replicas() const { return values_->integer("checkpoint.replicas"); }
const std::string& Config::checkpoint_replica_dir() const {
  return values_->text("checkpoint.replica_dir");
}
int64_t Config::checkpoint_replica_memory() const {
  return values_->integer("checkpoint.replica_memory");
}
int64_t Config::checkpoint_write_rate() const { return values_->integer("checkpoint.write_rate"); }
const std::string& Config::checkpoint_journal() const {
  return values_->text("checkpoint.journal");
}
const std::string& Config::checkpoint_journal_dtype() const {
  return values_->text("checkpoint.journal_dtype");
}
double Config::checkpoint_journal_share() const {
  return values_->number("checkpoint.journal_share");
}
const std::string& Config::checkpoint_dir() const { return values_->checkpoint_dir; }
int64_t Config::checkpoint_shard_bytes_max() const {
  return values_->integer("checkpoint.max_shard_size");
}

double Config::comm_timeout_seconds() const { return values_->number("comm.timeout_s"); }
std::optional<double> Config::comm_timeout_min_seconds() const {
  constexpr char kKey[] = "comm.timeout_min_s";
  if (values_->at(kKey).is_null()) {
    // The others wait in a collective for a rank that waits for data. No limit that a network card
    // needs by default is longer.
    constexpr double kLongerThanNetworks = 150;
    return values_->has_remote_data()
               ? std::optional(std::max(kLongerThanNetworks, data_remote().timeout_seconds + 15))
               : std::nullopt;
  }
  return values_->number(kKey);
}
std::optional<double> Config::comm_hang_timeout_seconds() const {
  constexpr char kKey[] = "comm.hang_timeout_s";
  return values_->at(kKey).is_null() ? std::nullopt : std::optional(values_->number(kKey));
}
std::optional<double> Config::comm_hang_data_timeout_seconds() const {
  constexpr char kKey[] = "comm.hang_data_timeout_s";
  if (values_->at(kKey).is_null()) {
    // The rank's own error, which names the address, comes first.
    return values_->has_remote_data() ? std::optional(data_remote().timeout_seconds + 10)
                                      : std::nullopt;
  }
  return values_->number(kKey);
}
const NetworkConfig& Config::comm_network() const { return values_->network; }
const PrecisionConfig& Config::precision() const { return values_->precision; }
EngineSettings Config::engine_settings(absl::string_view name) const {
  const auto found = values_->engines.find(name);
  return found == values_->engines.end() ? EngineSettings() : found->second;
}
std::vector<std::string> Config::engine_names() const {
  std::vector<std::string> names;
  for (const auto& [name, settings] : values_->engines) {
    names.push_back(name);
  }
  return names;
}
bool Config::stochastic_rounding() const { return values_->boolean("bf16.stochastic_rounding"); }
Fp8Config Config::fp8() const {
  return {.enabled = values_->boolean("fp8.enabled"),
          .rowwise = values_->text("fp8.scaling") == "rowwise",
          .e4m3_gradients = values_->text("fp8.gradients") == "e4m3"};
}
const CompressionConfig& Config::comm_compression() const { return values_->compression; }
const std::string& Config::comm_wire_dtype() const { return values_->wire_dtype; }

int64_t Config::metrics_interval() const { return values_->integer("metrics.interval"); }
const std::vector<std::string>& Config::metrics_console() const { return values_->metrics_console; }
bool Config::metrics_tensorboard() const { return values_->boolean("metrics.tensorboard"); }

const Json& Config::user(absl::string_view name) const {
  DT_CHECK(name == "model" || name == "finetune" || name == "sample")
      << "config.user(\"" << name << "\")";
  return values_->at(name);
}

const Json* Config::Find(absl::string_view key) const {
  const auto found = values_->by_key.find(key);
  return found == values_->by_key.end() ? nullptr : &found->second;
}

std::optional<ConfigOrigin> Config::OriginOf(absl::string_view key) const {
  const auto found = values_->origins.find(key);
  return found == values_->origins.end() ? std::nullopt : std::optional(found->second);
}

const std::vector<std::string>& Config::warnings() const { return values_->warnings; }

}  // namespace dtrain
