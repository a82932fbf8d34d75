#include "runtime/plan/config/config_builder.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/console/progress_line.h"
#include "base/status.h"
#include "base/text/nearest.h"
#include "runtime/plan/data/remote_address.h"

namespace dtrain {

using plan::ConfigKey;

namespace {

// Rotary positions have several spellings in a model's config.json (docs/MODELS.md), which must not
// contradict each other. If `parts` ("rope_scaling", "factor") sets `value`, the same setting in
// other spellings is taken out of `model`.
void DropOtherRope(const std::vector<std::string>& parts, const Json& value, Json& model) {
  constexpr const char* kObjects[] = {"rope_scaling", "rope_parameters"};
  constexpr char kTheta[] = "rope_theta";
  const auto drop = [&](const std::string& object, const std::string& name) {
    if (const auto found = model.find(object); found != model.end() && found->is_object()) {
      found->erase(name);
    }
  };
  const std::string& last = parts.back();
  if (parts[0] == kTheta) {
    drop(kObjects[0], kTheta);
    drop(kObjects[1], kTheta);
    return;
  }
  if (parts[0] != kObjects[0] && parts[0] != kObjects[1]) {
    return;
  }
  const std::string other = kObjects[parts[0] == kObjects[0] ? 1 : 0];
  const auto replaced = model.find(other);
  if (parts.size() > 1) {
    if (last == "type" || last == "rope_type") {
      for (const char* const name : {"type", "rope_type"}) {
        drop(other, name);
        drop(parts[0], name);
      }
    }
    drop(other, last);
  } else if (replaced != model.end() && replaced->is_object()) {  // All but its rope_theta.
    const Json theta = replaced->value(kTheta, Json());
    *replaced = theta.is_null() ? Json::object() : Json{{kTheta, theta}};
  }
  if (last == kTheta || (parts.size() == 1 && value.is_object() && value.contains(kTheta))) {
    model.erase(kTheta);
    drop(other, kTheta);
  }
}

// A run's config.json holds train_epochs and the train_steps that followed from it, and what of the
// schedule followed from the length. These follow anew, because --set may change the length.
void DropDerivedSteps(Json& root) {
  const Json origins = root.value("origins", Json());
  const auto is_derived = [&](const std::string& key) {
    return origins.is_object() && origins.value(key, Json()) == "derived";
  };
  if (is_derived("train_steps") && !root.value("train_epochs", Json()).is_null()) {
    root.erase("train_steps");
  }
  const Json scheduler = root.value("scheduler", Json());
  if (!scheduler.is_object() || !scheduler.contains("type") ||
      !scheduler.value("params", Json()).is_object()) {
    return;
  }
  Json& params = root["scheduler"]["params"];
  for (const char* const name : {"warmup_num_steps", "total_num_steps", "decay_num_steps"}) {
    if (is_derived(absl::StrCat("scheduler.params.", name))) {
      params.erase(name);
    }
  }
  // Only WSD derives a warm-up that is left out.
  constexpr char kWarmup[] = "warmup_num_steps";
  if (is_derived(absl::StrCat("scheduler.params.", kWarmup)) && scheduler["type"] != "WSD") {
    params[kWarmup] = "auto";
  }
}

}  // namespace

ConfigBuilder::ConfigBuilder(absl::string_view text, absl::string_view file_name, int world_size)
    : text_(text) {
  values_->file_name = std::string(file_name);
  values_->document = text_;
  values_->world_size = world_size;
}

std::string ConfigBuilder::Where(const std::string& path) const {
  const std::string quoted = absl::StrCat("\"", path.substr(path.rfind('.') + 1), "\"");
  const size_t first = text_.find(quoted);
  if (first == std::string::npos || text_.find(quoted, first + 1) != std::string::npos) {
    return values_->file_name;
  }
  const auto line = std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(first), '\n');
  return absl::StrFormat("%s:%d", values_->file_name, line + 1);
}

std::string ConfigBuilder::WhereGiven(absl::string_view path) const {
  const auto origin = values_->origins.find(path);
  if (origin != values_->origins.end() && origin->second == ConfigOrigin::kSet) {
    return "--set";
  }
  return Where(std::string(path));
}

absl::Status ConfigBuilder::ReadFileText() {
  DT_ASSIGN_OR_RETURN(Json root, ParseJson(text_, values_->file_name));
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(values_->file_name, ": a configuration must be one JSON object, { ... }"));
  }
  DropDerivedSteps(root);
  return Walk(root, "", ConfigOrigin::kFile, "");
}

absl::Status ConfigBuilder::Override(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  const std::string where = absl::StrCat("--set ", assignment);
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": want KEY=VALUE"));
  }
  spellings_.clear();
  values_->overrides.push_back(assignment);
  const std::string path = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  const absl::StatusOr<Json> parsed = ParseJson(text, where);
  const Json value = parsed.ok() ? *parsed : Json(text);  // `data.train=a.bin` needs no quotes.
  if (plan::IsInsideFreeKey(path)) {
    return OverrideFree(path, value, where);
  }
  DT_RETURN_IF_ERROR(Take(path, value, ConfigOrigin::kSet, where));
  DropReplacedLength(path);
  return absl::OkStatus();
}

// A run is as long as --set says, in steps or in epochs, whatever the file says.
void ConfigBuilder::DropReplacedLength(const std::string& path) {
  if (path != "train_steps" && path != "train_epochs") {
    return;
  }
  const std::string other = path == "train_steps" ? "train_epochs" : "train_steps";
  const auto origin = [&](const std::string& key) {
    const auto found = values_->origins.find(key);
    return found == values_->origins.end() ? ConfigOrigin::kDefault : found->second;
  };
  if (origin(path) == ConfigOrigin::kSet && origin(other) == ConfigOrigin::kFile) {
    values_->by_key.erase(other);
    values_->origins.erase(other);
  }
}

absl::Status ConfigBuilder::OverrideFree(const std::string& path, Json value,
                                         const std::string& where) {
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  Json& root = values_->by_key[parts[0]];
  Json* node = &(root.is_object() ? root : root = Json::object());
  if (parts[0] == "model") {
    DropOtherRope({parts.begin() + 1, parts.end()}, value, root);
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].empty() || !(node->is_object() || node->is_null())) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: %s is not an object", where,
          absl::StrJoin(parts.begin(), parts.begin() + static_cast<ptrdiff_t>(i), ".")));
    }
    node = &(*node)[parts[i]];
  }
  *node = std::move(value);
  values_->origins[parts[0]] = ConfigOrigin::kSet;
  return absl::OkStatus();
}

absl::Status ConfigBuilder::Walk(const Json& json, const std::string& prefix, ConfigOrigin origin,
                                 const std::string& where) {
  for (const auto& [name, value] : json.items()) {
    const std::string path = prefix.empty() ? name : absl::StrCat(prefix, ".", name);
    DT_RETURN_IF_ERROR(Take(path, value, origin, where));
  }
  return absl::OkStatus();
}

absl::Status ConfigBuilder::Take(const std::string& path, const Json& value, ConfigOrigin origin,
                                 const std::string& where, const std::string& spelt) {
  const std::string at = where.empty() ? Where(path) : where;
  if (const char* today = plan::TodaysName(path)) {
    is_deepspeeds_ = true;
    values_->warnings.push_back(
        absl::StrFormat("%s: %s is an older spelling of %s", at, path, today));
    return Take(today, plan::TodaysValue(path, value), origin, at, path);
  }
  if (const ConfigKey* key = plan::FindConfigKey(path)) {
    return TakeKnown(*key, value, origin, at, spelt.empty() ? path : spelt);
  }
  if (path == "bfloat16" && value.is_object()) {
    return Walk(value, path, origin, where);
  }
  if (!plan::IsConfigSection(path)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: unknown key \"%s\"; nearest known key: \"%s\" (dtrain config docs lists all)", at,
        absl::CHexEscape(path), plan::NearestConfigKey(path)));
  }
  if (path == "zero_optimization" && value.is_boolean()) {  // DeepSpeed: true means stage 1.
    return Take("zero_optimization.stage", Json(value.get<bool>() ? 1 : 0), origin, where);
  }
  if (value.is_null()) {
    return absl::OkStatus();
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: \"%s\" is %s; want an object", at, path, DumpJson(value)));
  }
  return Walk(value, path, origin, where);
}

absl::Status ConfigBuilder::TakeKnown(const ConfigKey& key, const Json& value, ConfigOrigin origin,
                                      const std::string& where, const std::string& spelt) {
  const auto other = spellings_.find(key.path);
  if (value.is_null()) {  // A null removes the key.
    if (other == spellings_.end()) {
      values_->by_key.erase(key.path);
      values_->origins.erase(key.path);
      autos_.erase(key.path);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<Json> checked = plan::CheckValue(key, value);
  if (!checked.ok()) {
    return Annotate(checked.status(), where);
  }
  if (other != spellings_.end() && values_->by_key[key.path] != *checked) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s and %s are two names of one setting and say %s and %s; keep %s alone", where,
        other->second, spelt, plan::ShortJson(values_->by_key[key.path]), plan::ShortJson(*checked),
        key.path));
  }
  spellings_[key.path] = spelt;
  autos_.erase(key.path);
  if (*checked == "auto" && plan::TakesAuto(key)) {
    autos_[key.path] = {.where = where, .why = ""};
  }
  values_->by_key[key.path] = *std::move(checked);
  values_->origins[key.path] = origin;
  return absl::OkStatus();
}

absl::StatusOr<Config> ConfigBuilder::Finish() {
  if (values_->world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("world size is %d; it must be at least 1", values_->world_size));
  }
  DT_RETURN_IF_ERROR(FillReduction());
  DT_RETURN_IF_ERROR(CheckSupport());
  DropWhatIsOff();
  DT_RETURN_IF_ERROR(FillRun());
  DT_RETURN_IF_ERROR(FillBatch());
  DT_RETURN_IF_ERROR(FillOptimizer());
  DT_RETURN_IF_ERROR(FillScheduler());
  DT_RETURN_IF_ERROR(FillComm());
  FillDefaults();
  DT_RETURN_IF_ERROR(CheckPrecision());
  DT_RETURN_IF_ERROR(CheckSharding());
  DT_RETURN_IF_ERROR(CheckActivations());
  DT_RETURN_IF_ERROR(CheckReplicas());
  DT_RETURN_IF_ERROR(CheckFolders());
  CheckIdleKeys();
  CheckConsole();
  FillTyped();
  DT_RETURN_IF_ERROR(CheckAddresses());
  DT_RETURN_IF_ERROR(CheckOptimizer());
  SayAutos();
  SayClipping();
  return Config(std::move(values_));
}

absl::Status ConfigBuilder::CheckPrecision() const {
  if (values_->boolean("bf16.enabled") && values_->boolean("fp16.enabled")) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: bf16.enabled and fp16.enabled are both true; keep one", WhereGiven("fp16.enabled")));
  }
  if (values_->boolean("fp8.enabled") && !values_->boolean("bf16.enabled")) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: fp8.enabled needs bf16.enabled, for all that is not computed in FP8; set both to true",
        WhereGiven("fp8.enabled")));
  }
  return absl::OkStatus();
}

// Only stage 3 divides weights among the ranks.
absl::Status ConfigBuilder::CheckSharding() const {
  constexpr char kDevice[] = "zero_optimization.offload_param.device";
  constexpr char kFolder[] = "zero_optimization.offload_param.nvme_path";
  const Json& device = values_->at(kDevice);
  if (device != "none" && values_->integer("zero_optimization.stage") != 3) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s %s needs zero_optimization.stage 3, which divides weights among "
                        "ranks; set stage 3, or \"none\"",
                        WhereGiven(kDevice), kDevice, DumpJson(device)));
  }
  if (device == "nvme" && values_->at(kFolder).is_null()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s \"nvme\" needs %s, a folder on a local disk", WhereGiven(kDevice),
                        kDevice, kFolder));
  }
  const int64_t stage = values_->integer("zero_optimization.stage");
  if (constexpr char kWeights[] = "zero_optimization.zero_quantized_weights";
      values_->boolean(kWeights) && stage != 3) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s needs zero_optimization.stage 3, which gathers weights; got stage %d",
        WhereGiven(kWeights), kWeights, stage));
  }
  if (constexpr char kGradients[] = "zero_optimization.zero_quantized_gradients";
      values_->boolean(kGradients) && stage < 2) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s needs zero_optimization.stage 2 or 3; got stage %d; at stages 0 and 1, set "
        "comm.compression.type \"int8\", which also sends the rounding error with the next step",
        WhereGiven(kGradients), kGradients, stage));
  }
  if (constexpr char kType[] = "comm.compression.type";
      stage >= 2 && values_->at(kType) != "none") {
    return absl::UnimplementedError(absl::StrFormat(
        "%s: %s %s at zero_optimization.stage %d is not supported, because it keeps a rest as "
        "large as all gradients on every rank; set stage 0 or 1, or use "
        "zero_optimization.zero_quantized_gradients",
        WhereGiven(kType), kType, DumpJson(values_->at(kType)), stage));
  }
  constexpr char kKey[] = "zero_optimization.zero_hpz_partition_size";
  const int64_t size = values_->integer(kKey);
  if (size == 1) {
    return absl::OkStatus();
  }
  if (stage != 3) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s %d needs zero_optimization.stage 3, which divides weights among "
                        "ranks; set stage 3, or remove this key",
                        WhereGiven(kKey), kKey, size));
  }
  if (values_->world_size % size != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s %d does not divide the world size %d; the best value is the number "
                        "of ranks of a node",
                        WhereGiven(kKey), kKey, size, values_->world_size));
  }
  return absl::OkStatus();
}

absl::Status ConfigBuilder::CheckActivations() {
  const std::string section = "activation_checkpointing.";
  const bool in_memory = values_->boolean(section + "cpu_checkpointing");
  const bool in_file = !values_->at(section + "nvme_path").is_null();
  const bool waits = values_->boolean(section + "synchronize_checkpoint_boundary");
  if (in_memory && in_file) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %scpu_checkpointing and nvme_path both say where to keep activations; "
                        "remove one of them",
                        WhereGiven(section + "nvme_path"), section));
  }
  if ((in_memory || in_file) && values_->at(section + "mode") == "none") {
    values_->warnings.push_back(absl::StrFormat(
        "%s: %smode is \"none\", so only what the model itself hands to dtrain::Recompute is "
        "moved; set \"full\" to recompute whole layers",
        WhereGiven(section + (in_file ? "nvme_path" : "cpu_checkpointing")), section));
  }
  if (waits && !in_memory && !in_file) {
    values_->warnings.push_back(absl::StrFormat(
        "%s: %ssynchronize_checkpoint_boundary has no effect without cpu_checkpointing or "
        "nvme_path",
        WhereGiven(section + "synchronize_checkpoint_boundary"), section));
  }
  return absl::OkStatus();
}

// Without a disk of each host's own every host reads all checkpoints from one place.
absl::Status ConfigBuilder::CheckReplicas() const {
  constexpr char kKey[] = "checkpoint.replicas";
  if (values_->integer(kKey) > 0 && values_->text("checkpoint.local_dir").empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s %d needs checkpoint.local_dir, a folder on each host's own disk; set it, or %s 0",
        WhereGiven(kKey), kKey, values_->integer(kKey), kKey));
  }
  return absl::OkStatus();
}

// A key that counts only beside another one is no mistake, but its user may rely on it.
void ConfigBuilder::CheckIdleKeys() {
  const bool beside =
      values_->boolean("checkpoint.async") || values_->at("checkpoint.interval") == "continuous";
  const bool keeps_best = values_->integer("checkpoint.keep_best") > 0;
  const bool has_replicas = values_->integer("checkpoint.replicas") > 0;
  const bool has_journal = values_->text("checkpoint.journal") != "off";
  const struct {
    const char* key;
    bool counts;
    const char* without;
  } keys[] = {{"checkpoint.staging_memory", beside, "checkpoint.async"},
              {"checkpoint.write_rate", beside, "checkpoint.async"},
              {"checkpoint.best_metric", keeps_best, "checkpoint.keep_best"},
              {"checkpoint.best_is", keeps_best, "checkpoint.keep_best"},
              {"checkpoint.replica_dir", has_replicas, "checkpoint.replicas"},
              {"checkpoint.replica_memory", has_replicas, "checkpoint.replicas"},
              {"checkpoint.journal_dtype", has_journal, "checkpoint.journal"},
              {"checkpoint.journal_share", has_journal, "checkpoint.journal"}};
  for (const auto& [key, counts, without] : keys) {
    if (!counts && !IsDefault(key)) {
      values_->warnings.push_back(
          absl::StrFormat("%s: %s has no effect without %s", WhereGiven(key), key, without));
    }
  }
}

// Ranks write to folders, and an object store is behind them.
absl::Status ConfigBuilder::CheckFolders() const {
  for (const char* const key :
       {"checkpoint.dir", "checkpoint.local_dir", "checkpoint.replica_dir"}) {
    const std::string& folder = values_->text(key);
    if (absl::StrContains(folder, "://")) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: %s is \"%s\"; allowed: a folder; to have checkpoints in an object store too, set "
          "checkpoint.remote to it",
          WhereGiven(key), key, folder));
    }
  }
  const std::string& remote = values_->text("checkpoint.remote");
  if (absl::StrContains(remote, "://") && !absl::StartsWith(remote, "s3://")) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: checkpoint.remote is \"%s\"; allowed: a folder, or s3://bucket/prefix",
                        WhereGiven("checkpoint.remote"), remote));
  }
  return absl::OkStatus();
}

// Before they are written into the run's records.
absl::Status ConfigBuilder::CheckAddresses() const {
  const auto check = [this](const char* key, const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      if (plan::IsRemoteAddress(path)) {
        DT_RETURN_IF_ERROR(Annotate(plan::CheckRemoteAddress(path),
                                    absl::StrFormat("%s: %s", WhereGiven(key), key)));
      }
    }
    return absl::OkStatus();
  };
  DT_RETURN_IF_ERROR(check("data.train", values_->data_train));
  return check("data.validation", values_->data_validation);
}

// Any name may be a metric of the program's own, so a misspelt column is no error.
void ConfigBuilder::CheckConsole() {
  for (const Json& column : values_->at("metrics.console")) {
    const auto name = column.get<std::string>();
    const std::string meant = Misspelt(name, ProgressColumnNames());
    if (!meant.empty()) {
      values_->warnings.push_back(absl::StrFormat(
          "%s: metrics.console names \"%s\", which shows only if the program logs a metric of that "
          "name; did you mean \"%s\"?",
          WhereGiven("metrics.console"), name, meant));
    }
  }
}

bool ConfigBuilder::Given(absl::string_view key) const {
  return values_->by_key.find(key) != values_->by_key.end() && !IsAuto(key);
}

bool ConfigBuilder::IsAuto(absl::string_view key) const {
  const auto found = values_->by_key.find(key);
  return found != values_->by_key.end() && found->second == "auto" &&
         plan::TakesAuto(*plan::FindConfigKey(key));
}

void ConfigBuilder::Derive(const std::string& key, Json value) {
  values_->by_key[key] = std::move(value);
  values_->origins[key] = ConfigOrigin::kDerived;
}

}  // namespace dtrain
