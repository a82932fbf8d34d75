#include "runtime/plan/config/accepted_changes.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

// The keys, and sections with a dot, whose values --accept-change may change, because checkpoints
// fit every value: other numbers follow, which the user wants. Files may get other names and
// another format, because the loader compares their content (corpus_identity.h).
constexpr absl::string_view kAcceptable[] = {"optimizer.params.",
                                             "optimizer.no_weight_decay",
                                             "optimizer.param_groups",
                                             "engines",
                                             "engines.",
                                             "scheduler.",
                                             "gradient_clipping",
                                             "gradient_clipping_value",
                                             "train_batch_size",
                                             "data.train",
                                             "data.format",
                                             "data.document_token",
                                             "data.document_token_place",
                                             "deterministic",
                                             "fp16.loss_scale",
                                             "fp16.loss_scale_window",
                                             "fp16.hysteresis",
                                             "fp16.consecutive_hysteresis",
                                             "fp16.min_loss_scale",
                                             "bf16.stochastic_rounding",
                                             "fp8.",
                                             "zero_optimization.zero_quantized_weights",
                                             "zero_optimization.zero_quantized_gradients"};

// Inside the sections of the program: shares of dropout, by the names of config.json (attn_pdrop,
// attention_dropout) and of PEFT (lora_dropout). They have no weights and no states.
constexpr absl::string_view kOfProgram[] = {"model.", "finetune."};
constexpr absl::string_view kDropout[] = {"dropout", "pdrop"};

// Why a resumed run keeps the values of all others, whatever the user wants.
struct Kept {
  absl::string_view key;  // Or a section with a dot.
  const char* why;
};
constexpr char kModel[] =
    "its checkpoints are of one model with its settings, shares of dropout aside; a new run can "
    "start from their weights (the folder model/ of a checkpoint)";
constexpr char kData[] =
    "its checkpoints hold a position in the data, whose order and windows follow from it";
constexpr Kept kKept[] = {
    {"model", kModel},
    {"model.", kModel},
    {"finetune", kModel},
    {"finetune.", kModel},
    {"seed", kData},
    {"data.sequence_length", kData},
    {"module_buffers", "it decides which ranks' buffers its checkpoints hold"},
    {"optimizer.type",
     "its checkpoints hold the states of one optimizer, which mean nothing to another"},
    {"optimizer.params.momentum",
     "its checkpoints hold a momentum of each weight only where it is not 0"},
    {"optimizer.skip_unused_parameters",
     "its checkpoints count the updates that each parameter has missed only where it is true"},
    {"fp16.initial_scale_power",
     "it is the scale of the first step alone: a resumed run goes on from the scale that its "
     "checkpoint holds"}};

bool Fits(absl::string_view item, absl::string_view path) {
  return absl::EndsWith(item, ".") ? absl::StartsWith(path, item) : path == item;
}

bool IsDropout(absl::string_view path) {
  const absl::string_view name = path.substr(path.rfind('.') + 1);
  return std::any_of(std::begin(kOfProgram), std::end(kOfProgram),
                     [&](absl::string_view section) { return absl::StartsWith(path, section); }) &&
         std::any_of(std::begin(kDropout), std::end(kDropout),
                     [&](absl::string_view end) { return absl::EndsWith(name, end); });
}

bool IsListed(absl::string_view path) {
  return IsDropout(path) || std::any_of(std::begin(kAcceptable), std::end(kAcceptable),
                                        [&](absl::string_view item) { return Fits(item, path); });
}

// Whether a resumed run is compared by `path`, by a key of this section, or by the whole that this
// value is inside of.
bool IsCompared(absl::string_view path) {
  const absl::Span<const ConfigKey> keys = ConfigKeys();
  return std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) {
    return (key.flags & kIdentity) != 0 &&
           (path == key.path || absl::StartsWith(key.path, absl::StrCat(path, ".")) ||
            absl::StartsWith(path, absl::StrCat(key.path, ".")));
  });
}

}  // namespace

absl::Status CheckAcceptable(const std::string& key) {
  const bool is_section = IsConfigSection(key);
  if (FindConfigKey(key) == nullptr && !is_section && !IsInsideFreeKey(key)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--accept-change %s: unknown key; nearest known key: \"%s\"", key, NearestConfigKey(key)));
  }
  const bool holds_one =
      is_section &&
      std::any_of(std::begin(kAcceptable), std::end(kAcceptable), [&](absl::string_view item) {
        return absl::StartsWith(item, absl::StrCat(key, "."));
      });
  if (IsListed(key) || holds_one) {
    return absl::OkStatus();
  }
  if (!IsCompared(key)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--accept-change %s: this key may change whenever a run is resumed; leave the option out",
        key));
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "--accept-change %s: a resumed run must keep it, because %s; allowed: %s, and in model and "
      "finetune what ends with %s",
      key, WhyKept(key),
      absl::StrJoin(kAcceptable, ", ",
                    [](std::string* out, absl::string_view item) {
                      absl::StrAppend(out, item, absl::EndsWith(item, ".") ? "*" : "");
                    }),
      absl::StrJoin(kDropout, " or ")));
}

std::string WhyKept(absl::string_view key) {
  const auto* const found = std::find_if(std::begin(kKept), std::end(kKept),
                                         [&](const Kept& kept) { return Fits(kept.key, key); });
  DT_CHECK(found != std::end(kKept)) << "no reason to keep " << key;
  return found->why;
}

bool IsAcceptable(const ConfigDifference& difference) {
  // SGD without momentum has no states to go on from.
  if (difference.key == "optimizer.params.momentum") {
    return difference.was != 0 && difference.now != 0;
  }
  // A setting of the program's that has this name may be anything: a list, or an object of its own.
  const auto is_share = [](const Json& value) { return value.is_null() || value.is_number(); };
  return IsListed(difference.key) &&
         (!IsDropout(difference.key) || (is_share(difference.was) && is_share(difference.now)));
}

bool IsAccepted(const ConfigDifference& difference, const std::vector<std::string>& accepted) {
  return IsAcceptable(difference) &&
         std::any_of(accepted.begin(), accepted.end(), [&](const std::string& key) {
           return difference.key == key || absl::StartsWith(difference.key, absl::StrCat(key, "."));
         });
}

}  // namespace dtrain::plan
