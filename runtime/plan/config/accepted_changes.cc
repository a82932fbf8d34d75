#include "runtime/plan/config/accepted_changes.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

// The keys, and sections with a dot, whose values --accept-change may change. A checkpoint holds
// the states of its model, precision and optimizer type, and a position in the order of the data
// that follows from seed and shape, so these are missing here. Files may get other names, because
// the loader compares their content (corpus_identity.h).
constexpr absl::string_view kAcceptable[] = {
    "optimizer.params.", "optimizer.no_weight_decay", "optimizer.param_groups", "scheduler.",
    "gradient_clipping", "gradient_clipping_value",   "train_batch_size",       "data.train",
    "deterministic"};

bool IsListed(absl::string_view path) {
  return std::any_of(std::begin(kAcceptable), std::end(kAcceptable), [&](absl::string_view item) {
    return absl::EndsWith(item, ".") ? absl::StartsWith(path, item) : path == item;
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
  if (const ConfigKey* const known = FindConfigKey(key);
      known != nullptr && (known->flags & kIdentity) == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--accept-change %s: this key may change whenever a run is resumed; leave the option out",
        key));
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "--accept-change %s: a resumed run must keep it, because its checkpoints fit no other value; "
      "allowed: %s",
      key, absl::StrJoin(kAcceptable, ", ", [](std::string* out, absl::string_view item) {
        absl::StrAppend(out, item, absl::EndsWith(item, ".") ? "*" : "");
      })));
}

bool IsAcceptable(const ConfigDifference& difference) {
  // SGD without momentum has no states to go on from.
  if (difference.key == "optimizer.params.momentum") {
    return difference.was != 0 && difference.now != 0;
  }
  return IsListed(difference.key);
}

bool IsAccepted(const ConfigDifference& difference, const std::vector<std::string>& accepted) {
  return IsAcceptable(difference) &&
         std::any_of(accepted.begin(), accepted.end(), [&](const std::string& key) {
           return difference.key == key || absl::StartsWith(difference.key, absl::StrCat(key, "."));
         });
}

}  // namespace dtrain::plan
