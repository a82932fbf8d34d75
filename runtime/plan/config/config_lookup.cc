#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/text/nearest.h"
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

struct Index {
  std::map<absl::string_view, const ConfigKey*> keys;
  std::set<std::string, std::less<>> sections;
};

const Index& TheIndex() {
  static const Index* const index = [] {
    auto* built = new Index;  // Lives as long as the process.
    for (const ConfigKey& key : ConfigKeys()) {
      const absl::string_view path = key.path;
      built->keys[path] = &key;
      for (size_t dot = path.find('.'); dot != absl::string_view::npos;
           dot = path.find('.', dot + 1)) {
        built->sections.emplace(path.substr(0, dot));
      }
    }
    return built;
  }();
  return *index;
}

absl::string_view Leaf(absl::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == absl::string_view::npos ? path : path.substr(dot + 1);
}

// The words of a name in sorted order, so that "comm_overlap" equals "overlap_comm".
std::string SortedWords(absl::string_view name) {
  std::vector<std::string> words = absl::StrSplit(name, '_');
  std::sort(words.begin(), words.end());
  return absl::StrJoin(words, "_");
}

// Twice the edits between two names; words in another order count as half an edit.
size_t NameDistance(absl::string_view a, absl::string_view b) {
  return std::min(2 * EditDistance(a, b), 2 * EditDistance(SortedWords(a), SortedWords(b)) + 1);
}

// Names of the settings in transformers' TrainingArguments, Accelerate's examples, Megatron,
// Lightning, nanoGPT and llm.c, where no letters lead from there to the key.
constexpr OlderName kForeignNames[] = {
    {"epochs", "train_epochs"},
    {"num_epochs", "train_epochs"},
    {"max_epochs", "train_epochs"},
    {"num_train_epochs", "train_epochs"},
    {"steps", "train_steps"},
    {"num_steps", "train_steps"},
    {"max_steps", "train_steps"},
    {"max_iters", "train_steps"},
    {"total_steps", "train_steps"},
    {"train_iters", "train_steps"},
    {"max_train_steps", "train_steps"},
    {"num_train_steps", "train_steps"},
    {"learning_rate", "optimizer.params.lr"},
    {"max_grad_norm", "gradient_clipping"},
    {"warmup_steps", "scheduler.params.warmup_num_steps"},
    {"lr_scheduler_type", "scheduler.type"},
    {"global_batch_size", "train_batch_size"},
    {"batch_size", "train_batch_size"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"block_size", "data.sequence_length"},
    {"max_seq_length", "data.sequence_length"},
    {"seq_length", "data.sequence_length"},
    {"eval_steps", "eval_interval"},
    {"save_steps", "checkpoint.interval"},
    {"save_total_limit", "checkpoint.keep"},
    {"logging_steps", "metrics.interval"},
};

// All keys, then all sections.
void ForEachName(const std::function<void(absl::string_view)>& consider) {
  for (const ConfigKey& key : ConfigKeys()) {
    consider(key.path);
  }
  for (const std::string& section : TheIndex().sections) {
    consider(section);
  }
}

}  // namespace

const ConfigKey* FindConfigKey(absl::string_view path) {
  const auto found = TheIndex().keys.find(path);
  return found == TheIndex().keys.end() ? nullptr : found->second;
}

bool IsConfigSection(absl::string_view path) {
  return TheIndex().sections.find(std::string(path)) != TheIndex().sections.end();
}

bool IsInsideFreeKey(absl::string_view path) {
  const size_t dot = path.find('.');
  const ConfigKey* key = FindConfigKey(path.substr(0, dot));
  return dot != absl::string_view::npos && key != nullptr && key->type == KeyType::kFree;
}

std::string NearestConfigKey(absl::string_view path) {
  for (const OlderName& name : kForeignNames) {
    if (path == name.older) {
      return name.today;
    }
  }
  path = path.substr(0, 200);  // The distance is quadratic; a key of the table is far shorter.
  const size_t dot = path.rfind('.');
  const std::string section(dot == absl::string_view::npos ? "" : path.substr(0, dot + 1));
  // First by the last part alone, among the keys of the same section, where most mistakes are made.
  // It may differ by a third of its letters.
  std::pair<size_t, size_t> nearest_cost(~size_t{0}, 0);
  std::string nearest;
  const auto consider_here = [&](absl::string_view candidate) {
    if (!absl::StartsWith(candidate, section)) {
      return;
    }
    const std::pair cost(NameDistance(Leaf(path), Leaf(candidate)), EditDistance(path, candidate));
    if (cost < nearest_cost) {
      nearest_cost = cost;
      nearest = std::string(candidate);
    }
  };
  if (!section.empty()) {
    ForEachName(consider_here);
    if (!nearest.empty() && nearest_cost.first <= 2 * std::max<size_t>(2, Leaf(path).size() / 3)) {
      return nearest;
    }
  }
  nearest_cost = {~size_t{0}, 0};
  ForEachName([&](absl::string_view candidate) {
    // The last part alone finds a key that stands in the wrong section; being in the right one
    // breaks ties.
    const size_t whole = 2 * EditDistance(path, candidate);
    const size_t leaf = NameDistance(Leaf(path), Leaf(candidate)) + 1;
    if (const size_t cost = std::min(whole, leaf); cost < nearest_cost.first) {
      nearest_cost = {cost, 0};
      nearest = std::string(candidate);
    }
  });
  return nearest;
}

absl::Span<const OlderName> OlderNames() {
  static constexpr OlderName kNames[] = {
      {"bfloat16.enabled", "bf16.enabled"},
      {"bfloat16.immediate_grad_update", "bf16.immediate_grad_update"},
      {"bfloat16.check_grad_overflow", "bf16.check_grad_overflow"},
      {"zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device"},
      {"zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device"},
      {"zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device"},
      {"zero_optimization.cpu_offload_use_pin_memory",
       "zero_optimization.offload_optimizer.pin_memory"},
      {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
       "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
      {"zero_optimization.gather_16bit_weights_on_model_save",
       "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
      {"zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters"},
      {"zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance"},
      {"zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"},
      {"zero_optimization.param_persistence_threshold",
       "zero_optimization.stage3_param_persistence_threshold"},
      {"bf16.check_overflow", "bf16.check_grad_overflow"},
      {"scheduler.params.total_steps", "scheduler.params.total_num_steps"},
  };
  return kNames;
}

const char* TodaysName(absl::string_view path) {
  for (const OlderName& name : OlderNames()) {
    if (path == name.older) {
      return name.today;
    }
  }
  return nullptr;
}

Json TodaysValue(absl::string_view older, const Json& value) {
  const bool was_switch = older == "zero_optimization.cpu_offload" ||
                          older == "zero_optimization.cpu_offload_param" ||
                          older == "zero_optimization.cpu_offload_params";
  return was_switch && value.is_boolean() ? Json(value.get<bool>() ? "cpu" : "none") : value;
}

}  // namespace dtrain::plan
