// ConfigBuilder's second half: the rules that fill absent values and "auto".
#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/numeric/epoch_steps.h"
#include "base/status.h"
#include "runtime/plan/config/batch_algebra.h"
#include "runtime/plan/config/config_builder.h"
#include "runtime/plan/config/data_sources.h"

namespace dtrain {
namespace {

constexpr int64_t kTrainStepsDefault = 1000;
constexpr int64_t kMicroBatchAuto = 8;  // The Hugging Face Trainer's default.

// Whether a schedule takes the step at which its decay ends.
bool HasAnEnd(absl::string_view type) {
  return type == "WarmupDecayLR" || type == "WarmupCosineLR" || type == "WSD";
}

// Null: not given.
std::optional<int64_t> IfGiven(const Json* value) {
  return value != nullptr ? std::optional<int64_t>(value->get<int64_t>()) : std::nullopt;
}

// The parameters that a scheduler takes, as in the reference.
std::vector<absl::string_view> SchedulerParams(absl::string_view type) {
  if (type == "WarmupLR") {
    return {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"};
  }
  if (type == "WarmupDecayLR") {
    return {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "total_num_steps"};
  }
  if (type == "WarmupCosineLR") {
    return {"warmup_min_ratio", "warmup_num_steps", "warmup_type", "cos_min_ratio",
            "total_num_steps"};
  }
  if (type == "WSD") {
    return {"warmup_min_ratio", "warmup_num_steps", "total_num_steps",
            "decay_num_steps",  "decay_type",       "decay_min_ratio"};
  }
  if (type == "OneCycle") {
    return {"cycle_min_lr",
            "cycle_max_lr",
            "decay_lr_rate",
            "cycle_first_step_size",
            "cycle_second_step_size",
            "cycle_first_stair_count",
            "cycle_second_stair_count",
            "decay_step_size",
            "cycle_momentum",
            "cycle_min_mom",
            "cycle_max_mom",
            "decay_mom_rate"};
  }
  return {"lr_range_test_min_lr", "lr_range_test_step_rate", "lr_range_test_step_size",
          "lr_range_test_staircase"};
}

SchedulerConfig::Kind KindOf(absl::string_view type) {
  return type == "WarmupLR"         ? SchedulerConfig::Kind::kWarmup
         : type == "WarmupDecayLR"  ? SchedulerConfig::Kind::kWarmupDecay
         : type == "WarmupCosineLR" ? SchedulerConfig::Kind::kWarmupCosine
         : type == "WSD"            ? SchedulerConfig::Kind::kWarmupStableDecay
         : type == "OneCycle"       ? SchedulerConfig::Kind::kOneCycle
                                    : SchedulerConfig::Kind::kRangeTest;
}

}  // namespace

// A key that does not belong to the type is no error if it has its default value: the config.json
// of a run directory holds all keys.
bool ConfigBuilder::IsDefault(const std::string& path) const {
  return IsAuto(path) || Value(path) == Json::parse(plan::FindConfigKey(path)->default_value);
}

absl::Status ConfigBuilder::FillRun() {
  if (Given("train_epochs")) {
    return FillRunOfEpochs();
  }
  if (Given("train_steps")) {
    return absl::OkStatus();
  }
  const bool total = Given("scheduler.params.total_num_steps");
  Derive("train_steps",
         total ? Value("scheduler.params.total_num_steps") : Json(kTrainStepsDefault));
  if (!total) {
    values_->origins["train_steps"] = ConfigOrigin::kDefault;
  }
  return absl::OkStatus();
}

absl::Status ConfigBuilder::FillRunOfEpochs() {
  const auto epochs = Value("train_epochs").get<double>();
  if (Given("train_steps")) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: train_steps %d and train_epochs %g both say how long the run is; keep one",
        WhereGiven("train_epochs"), Value("train_steps").get<int64_t>(), epochs));
  }
  if (steps_per_epoch_.has_value()) {
    Derive("train_steps", StepsOfEpochs(epochs, *steps_per_epoch_));
  }
  return absl::OkStatus();
}

absl::Status ConfigBuilder::FillBatch() {
  const auto given = [&](const char* key) { return IfGiven(Given(key) ? &Value(key) : nullptr); };
  plan::BatchRequest request{given("train_batch_size"), given("train_micro_batch_size_per_gpu"),
                             given("gradient_accumulation_steps")};
  const bool is_auto = IsAuto("train_batch_size") || IsAuto("train_micro_batch_size_per_gpu");
  for (const char* const key :
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
    SetWhy(key, "which follows from the other batch sizes and the number of ranks");
  }
  if (is_auto && !Given("train_batch_size") && !Given("train_micro_batch_size_per_gpu")) {
    request.micro_batch = kMicroBatchAuto;
    SetWhy("train_micro_batch_size_per_gpu",
           "the Hugging Face Trainer's per_device_train_batch_size");
  }
  absl::StatusOr<plan::BatchSizes> sizes = plan::SolveBatch(request, values_->world_size);
  if (!sizes.ok()) {
    return Annotate(sizes.status(), values_->file_name);
  }
  const std::pair<const char*, int64_t> filled[] = {
      {"train_batch_size", sizes->train_batch},
      {"train_micro_batch_size_per_gpu", sizes->micro_batch},
      {"gradient_accumulation_steps", sizes->accumulation}};
  for (const auto& [key, value] : filled) {
    if (!Given(key)) {
      Derive(key, value);
    }
  }
  return absl::OkStatus();
}

absl::Status ConfigBuilder::FillScheduler() {
  const std::string section = "scheduler.params.";
  if (!Given("scheduler.type")) {
    for (const auto& [path, value] : values_->by_key) {
      if (path.rfind(section, 0) == 0 && !IsDefault(path)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s: %s is set without scheduler.type; set the type, or remove this key",
            WhereGiven(path), path));
      }
    }
    return absl::OkStatus();
  }
  const std::string type = Value("scheduler.type").get<std::string>();
  const std::vector<absl::string_view> params = SchedulerParams(type);
  for (const auto& [path, value] : values_->by_key) {
    const bool foreign =
        path.rfind(section, 0) == 0 && !IsDefault(path) &&
        path != "scheduler.params.last_batch_iteration" &&
        std::find(params.begin(), params.end(), path.substr(section.size())) == params.end();
    if (foreign) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %s does not belong to %s, which takes %s", WhereGiven(path), path,
                          type, absl::StrJoin(params, ", ")));
    }
  }
  if (HasAnEnd(type)) {
    SetWhy(section + "total_num_steps", "which is train_steps");
  }
  SetWhy(section + "warmup_max_lr", "the learning rate of the optimizer");
  SetWhy(section + "warmup_num_steps", "a fiftieth of train_steps");
  if (type != "WSD" && Given(section + "warmup_num_steps") &&
      Value(section + "warmup_num_steps") == 0) {
    values_->warnings.push_back(
        absl::StrFormat("%s: scheduler.params.warmup_num_steps 0 acts as 2, as in DeepSpeed: a "
                        "warm-up has at least "
                        "two steps",
                        WhereGiven(section + "warmup_num_steps")));
  }
  if (const auto steps = IfGiven(Given("train_steps") ? &Value("train_steps") : nullptr)) {
    DT_RETURN_IF_ERROR(FillScheduleOf(type, *steps));
  } else {
    LeaveScheduleOpen(type);
  }
  if (type == "OneCycle") {
    DT_RETURN_IF_ERROR(FillOneCycle());
  }
  if (IsAuto(section + "warmup_max_lr") ||
      (type == "WarmupLR" && !Given(section + "warmup_max_lr"))) {
    const bool lr = Given("optimizer.params.lr");
    Derive(section + "warmup_max_lr", lr ? Value("optimizer.params.lr") : Json(1e-3));
  } else if (type == "WarmupDecayLR" && !Given(section + "warmup_max_lr")) {
    values_->by_key[section + "warmup_max_lr"] = 1e-3;
    values_->origins[section + "warmup_max_lr"] = ConfigOrigin::kDefault;
  }
  return absl::OkStatus();
}

// The parameters that follow from the run's length.
absl::Status ConfigBuilder::FillScheduleOf(const std::string& type, int64_t steps) {
  const std::string section = "scheduler.params.";
  if (IsAuto(section + "warmup_num_steps")) {
    Derive(section + "warmup_num_steps", std::max<int64_t>(1, steps / 50));
  }
  if (HasAnEnd(type) && !Given(section + "total_num_steps")) {
    Derive(section + "total_num_steps", steps);
  }
  return type == "WSD" ? FillStableDecay() : absl::OkStatus();
}

// What follows from the run's length while that is not known: no values, but known as derived, so
// that a resumed run compares the rules.
void ConfigBuilder::LeaveScheduleOpen(const std::string& type) {
  const std::string section = "scheduler.params.";
  const bool all = type == "WSD";
  const auto leave = [&](const char* name, bool follows, const Json& value) {
    autos_.erase(section + name);  // Its note would name a number.
    if (IsAuto(section + name) || (follows && !Given(section + name))) {
      Derive(section + name, value);
    }
  };
  leave("warmup_num_steps", all, 0);
  leave("total_num_steps", HasAnEnd(type), nullptr);
  leave("decay_num_steps", all, nullptr);
}

// The last tenth decays; warm-up and decay must leave room for each other.
absl::Status ConfigBuilder::FillStableDecay() {
  const std::string section = "scheduler.params.";
  const int64_t total = Value(section + "total_num_steps").get<int64_t>();
  if (!Given(section + "decay_num_steps")) {
    Derive(section + "decay_num_steps", std::max<int64_t>(1, total / 10));
  }
  if (!Given(section + "warmup_num_steps")) {
    Derive(section + "warmup_num_steps", std::max<int64_t>(1, total / 50));
  }
  const int64_t warmup = Value(section + "warmup_num_steps").get<int64_t>();
  const int64_t decay = Value(section + "decay_num_steps").get<int64_t>();
  if (warmup + decay > total) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: warmup_num_steps %d + decay_num_steps %d are more than "
                        "total_num_steps %d; reduce one of them",
                        WhereGiven("scheduler.type"), warmup, decay, total));
  }
  return absl::OkStatus();
}

absl::Status ConfigBuilder::FillOneCycle() {
  const std::string section = "scheduler.params.";
  for (const char* const needed : {"cycle_min_lr", "cycle_max_lr"}) {
    if (!Given(section + needed)) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: OneCycle needs scheduler.params.%s",
                                                        WhereGiven("scheduler.type"), needed));
    }
  }
  for (const auto& [second, first] :
       {std::pair("cycle_second_step_size", "cycle_first_step_size"),
        std::pair("cycle_second_stair_count", "cycle_first_stair_count")}) {
    if (!Given(section + second)) {
      Derive(section + second,
             Given(section + first)
                 ? Value(section + first)
                 : Json::parse(plan::FindConfigKey(section + first)->default_value));
    }
  }
  return absl::OkStatus();
}

absl::Status ConfigBuilder::FillReduction() {
  const auto stage = values_->by_key.find("zero_optimization.stage");
  const bool stage3 = stage != values_->by_key.end() && stage->second == 3;
  const struct {
    const char* key;
    double square;  // Times hidden squared.
    double linear;  // Times hidden.
    bool stage3_only;
  } rules[] = {{"zero_optimization.reduce_bucket_size", 1, 0, false},
               {"zero_optimization.stage3_prefetch_bucket_size", 0.9, 0, true},
               {"zero_optimization.stage3_param_persistence_threshold", 0, 10, true}};
  for (const auto& rule : rules) {
    if (!IsAuto(rule.key)) {
      continue;
    }
    if (rule.stage3_only && !stage3) {
      Derive(rule.key, Json::parse(plan::FindConfigKey(rule.key)->default_value));
      continue;
    }
    DT_ASSIGN_OR_RETURN(const int64_t hidden, HiddenSize());
    if (hidden == 0) {
      Derive(rule.key, Json::parse(plan::FindConfigKey(rule.key)->default_value));
      SetWhy(rule.key, "the default, because the size of the model is not known here");
      continue;
    }
    SetWhy(rule.key, absl::StrFormat("which follows from the model's hidden size, %d", hidden));
    const auto h = static_cast<double>(hidden);
    Derive(rule.key, static_cast<int64_t>(rule.square * h * h + rule.linear * h));
  }
  if (!Given("zero_optimization.overlap_comm")) {
    values_->by_key["zero_optimization.overlap_comm"] = true;
    values_->origins["zero_optimization.overlap_comm"] = ConfigOrigin::kDefault;
  }
  return absl::OkStatus();
}

absl::Status ConfigBuilder::FillComm() {
  const bool own = Given("comm.wire_dtype");
  const bool theirs = Given("communication_data_type");
  std::string from_theirs = theirs ? Value("communication_data_type").get<std::string>() : "fp32";
  from_theirs = from_theirs == "bfp16" ? "bf16" : from_theirs;
  if (own && theirs && Value("comm.wire_dtype") != from_theirs) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: comm.wire_dtype %s and communication_data_type %s are two names of "
                        "the same setting; keep one",
                        values_->file_name, DumpJson(Value("comm.wire_dtype")),
                        DumpJson(Value("communication_data_type"))));
  }
  if (!own) {
    values_->by_key["comm.wire_dtype"] = from_theirs;
    values_->origins["comm.wire_dtype"] = theirs ? ConfigOrigin::kDerived : ConfigOrigin::kDefault;
  }
  return absl::OkStatus();
}

void ConfigBuilder::FillDefaults() {
  for (const plan::ConfigKey& key : plan::ConfigKeys()) {
    const bool is_auto = IsAuto(key.path);
    if (is_auto || values_->by_key.find(key.path) == values_->by_key.end()) {
      values_->by_key[key.path] = Json::parse(key.default_value);
      values_->origins[key.path] = is_auto ? ConfigOrigin::kDerived : ConfigOrigin::kDefault;
    }
  }
}

void ConfigBuilder::FillTyped() {
  Config::Values& v = *values_;
  v.train_steps = v.at("train_steps").is_null() ? 0 : v.integer("train_steps");
  v.global_batch = v.integer("train_batch_size");
  v.micro_batch = v.integer("train_micro_batch_size_per_gpu");
  v.accumulation = v.integer("gradient_accumulation_steps");
  v.data_parts = plan::DataParts(v.at("data.train"));
  for (const DataPart& part : v.data_parts) {
    v.data_train.insert(v.data_train.end(), part.files.begin(), part.files.end());
  }
  v.data_validation = v.at("data.validation").get<std::vector<std::string>>();
  v.data_format = v.at("data.format").get<std::string>();
  v.checkpoint_dir = v.at("checkpoint.dir").get<std::string>();
  v.metrics_console = v.at("metrics.console").get<std::vector<std::string>>();
  FillTypedOptimizer();  // The scheduler starts from its learning rate.
  FillTypedScheduler();
  FillTypedPrecision();
  FillTypedComm();
}

void ConfigBuilder::FillTypedPrecision() {
  const Config::Values& v = *values_;
  PrecisionConfig& p = values_->precision;
  p.kind = v.boolean("bf16.enabled")   ? PrecisionConfig::Kind::kBFloat16
           : v.boolean("fp16.enabled") ? PrecisionConfig::Kind::kFloat16
                                       : PrecisionConfig::Kind::kFloat32;
  p.cast_buffers = (p.kind == PrecisionConfig::Kind::kBFloat16 && v.boolean("bf16.cast_buffers")) ||
                   (p.kind == PrecisionConfig::Kind::kFloat16 && v.boolean("fp16.cast_buffers"));
  p.loss_scale = v.number("fp16.loss_scale");
  p.initial_scale_power = v.integer("fp16.initial_scale_power");
  p.loss_scale_window = v.integer("fp16.loss_scale_window");
  p.hysteresis = v.integer("fp16.hysteresis");
  p.consecutive_hysteresis = v.boolean("fp16.consecutive_hysteresis");
  p.min_loss_scale = v.number("fp16.min_loss_scale");
}

void ConfigBuilder::FillTypedScheduler() {
  SchedulerConfig& s = values_->scheduler;
  s.base_lr = values_->optimizer.lr;
  const Json& type = Value("scheduler.type");
  if (type.is_null()) {
    return;
  }
  const auto param = [&](const char* name) -> const Json& {
    return Value(absl::StrCat("scheduler.params.", name));
  };
  const auto count = [&](const char* name) {
    return param(name).is_null() ? 0 : param(name).get<int64_t>();
  };
  const auto rate = [&](const char* name) {
    return param(name).is_null() ? 0 : param(name).get<double>();
  };
  s.kind = KindOf(type.get<std::string>());
  s.warmup_min_lr = param("warmup_min_lr").get<double>();
  s.warmup_max_lr = rate("warmup_max_lr");
  s.warmup_num_steps = param("warmup_num_steps").get<int64_t>();
  s.warmup_log = param("warmup_type") == "log";
  s.total_num_steps = count("total_num_steps");
  s.warmup_min_ratio = param("warmup_min_ratio").get<double>();
  s.cos_min_ratio = param("cos_min_ratio").get<double>();
  s.range_min_lr = param("lr_range_test_min_lr").get<double>();
  s.range_step_rate = param("lr_range_test_step_rate").get<double>();
  s.range_step_size = param("lr_range_test_step_size").get<int64_t>();
  s.range_staircase = param("lr_range_test_staircase").get<bool>();
  s.decay_num_steps = count("decay_num_steps");
  s.decay_sqrt = param("decay_type") == "sqrt";
  s.decay_min_ratio = param("decay_min_ratio").get<double>();
  s.cycle = {.min_lr = rate("cycle_min_lr"),
             .max_lr = rate("cycle_max_lr"),
             .decay_lr_rate = rate("decay_lr_rate"),
             .first_steps = count("cycle_first_step_size"),
             .second_steps = count("cycle_second_step_size"),
             .first_stairs = count("cycle_first_stair_count"),
             .second_stairs = count("cycle_second_stair_count"),
             .decay_steps = count("decay_step_size"),
             .momentum = param("cycle_momentum").get<bool>(),
             .min_momentum = rate("cycle_min_mom"),
             .max_momentum = rate("cycle_max_mom")};
}

void ConfigBuilder::FillTypedComm() {
  Config::Values& v = *values_;
  v.network.transport = v.at("comm.transport").get<std::string>();
  v.network.interface = v.at("comm.interface").get<std::string>();
  v.network.tcp_connections = v.at("comm.tcp.connections").get<int>();
  v.network.rdma_device = v.at("comm.rdma.device").get<std::string>();
  v.network.rdma_gid_index = v.at("comm.rdma.gid_index").get<int>();
  v.network.rdma_queue_pairs = v.at("comm.rdma.queue_pairs").get<int>();
  v.network.rdma_traffic_class = v.at("comm.rdma.traffic_class").get<int>();
  v.network.rdma_service_level = v.at("comm.rdma.service_level").get<int>();
  v.network.rdma_timeout = v.at("comm.rdma.timeout").get<int>();
  v.network.rdma_retries = v.at("comm.rdma.retries").get<int>();
  v.wire_dtype = v.at("comm.wire_dtype").get<std::string>();
  v.compression.type = v.at("comm.compression.type").get<std::string>();
  v.compression.rank = v.integer("comm.compression.rank");
  v.compression.error_feedback = v.boolean("comm.compression.error_feedback");
  v.compression.start_step = v.integer("comm.compression.start_step");
  v.compression.min_elements = v.integer("comm.compression.min_elements");
}

}  // namespace dtrain
