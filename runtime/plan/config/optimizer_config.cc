#include "dtrain/optimizer_config.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace dtrain {
namespace {

bool MatchesAny(const std::vector<std::string>& patterns, absl::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return MatchesPattern(pattern, name); });
}

constexpr size_t kLettersMax = 200;  // The distance is quadratic; names are shorter.

// EditDistance (base/text/nearest.h) in which a `*` of the pattern stands for any text at no cost.
size_t PatternDistance(absl::string_view pattern, absl::string_view name) {
  std::vector<std::vector<size_t>> cost(pattern.size() + 1, std::vector<size_t>(name.size() + 1));
  std::iota(cost[0].begin(), cost[0].end(), size_t{0});
  for (size_t i = 1; i <= pattern.size(); ++i) {
    const char letter = pattern[i - 1];
    cost[i][0] = cost[i - 1][0] + (letter == '*' ? 0 : 1);
    for (size_t j = 1; j <= name.size(); ++j) {
      if (letter == '*') {
        cost[i][j] = std::min(cost[i - 1][j], cost[i][j - 1]);
        continue;
      }
      const size_t change = letter == name[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && letter == name[j - 2] && pattern[i - 2] == name[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[pattern.size()][name.size()];
}

// DeepSpeed's rule: Muon updates matrices, except embeddings and the output layer.
bool IsHiddenMatrix(absl::string_view name, absl::Span<const int64_t> shape) {
  const std::string lower = absl::AsciiStrToLower(name);
  return shape.size() >= 2 && !absl::StrContains(lower, "embed") &&
         !absl::StrContains(lower, "lm_head");
}

}  // namespace

bool MatchesPattern(absl::string_view pattern, absl::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = absl::string_view::npos;
  size_t retry = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != absl::string_view::npos) {
      p = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

std::vector<std::string> NearestNames(absl::string_view pattern,
                                      const std::vector<std::string>& names, size_t most) {
  std::vector<std::string> nearest;
  size_t least = ~size_t{0};
  for (const std::string& name : names) {
    const size_t distance = PatternDistance(pattern.substr(0, kLettersMax), name);
    if (distance < least) {
      least = distance;
      nearest.clear();
    }
    if (distance == least && nearest.size() < most) {
      nearest.push_back(name);
    }
  }
  return nearest;
}

std::string OptimizerConfig::name() const {
  switch (kind) {
    case Kind::kAdamW:
      return "AdamW";
    case Kind::kAdam:
      return "Adam";
    case Kind::kSgd:
      return "SGD";
    case Kind::kLion:
      return "Lion";
    case Kind::kLamb:
      return "Lamb";
    case Kind::kAdagrad:
      return "Adagrad";
    case Kind::kMuon:
      return "Muon";
  }
  return "";
}

std::vector<std::string> OptimizerConfig::state_slots() const {
  switch (kind) {
    case Kind::kAdamW:
    case Kind::kAdam:
    case Kind::kLamb:
    case Kind::kMuon:  // The matrices' momentum is in the first; of the second they use nothing.
      return {"exp_avg", "exp_avg_sq"};
    case Kind::kSgd:
      return momentum == 0 ? std::vector<std::string>{}
                           : std::vector<std::string>{"momentum_buffer"};
    case Kind::kLion:
      return {"exp_avg"};
    case Kind::kAdagrad:
      return {"sum"};
  }
  return {};
}

ParamSettings OptimizerConfig::SettingsFor(absl::string_view parameter_name,
                                           absl::Span<const int64_t> shape,
                                           absl::string_view engine) const {
  const bool orthogonal = kind == Kind::kMuon && IsHiddenMatrix(parameter_name, shape);
  ParamGroupConfig given;
  for (const ParamGroupConfig& group : groups) {
    if (IsFor(group, engine) && MatchesAny(group.params, parameter_name)) {
      given.lr = given.lr ? given.lr : group.lr;
      given.weight_decay = given.weight_decay ? given.weight_decay : group.weight_decay;
      given.eps = given.eps ? given.eps : group.eps;
      given.betas = given.betas ? given.betas : group.betas;
    }
  }
  const bool decayed = !MatchesAny(no_weight_decay, parameter_name);
  const auto betas = given.betas.value_or(std::pair(beta1, beta2));
  return {.lr = given.lr.value_or(kind == Kind::kMuon && !orthogonal ? adam_lr : lr),
          .weight_decay = given.weight_decay.value_or(decayed ? weight_decay : 0),
          .beta1 = betas.first,
          .beta2 = betas.second,
          .eps = given.eps.value_or(eps),
          .orthogonal = orthogonal};
}

EngineSettings Merged(const EngineSettings& first, const EngineSettings& second) {
  EngineSettings merged = first;
  const auto fill = [](auto& value, const auto& other) { value = value ? value : other; };
  fill(merged.lr, second.lr);
  fill(merged.weight_decay, second.weight_decay);
  fill(merged.eps, second.eps);
  fill(merged.betas, second.betas);
  fill(merged.gradient_clipping, second.gradient_clipping);
  fill(merged.gradient_accumulation_steps, second.gradient_accumulation_steps);
  merged.groups.insert(merged.groups.end(), second.groups.begin(), second.groups.end());
  return merged;
}

}  // namespace dtrain
