#include "generate/choose_token.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_format.h"

namespace {

struct Candidate {
  uint32_t token = 0;
  double weight = 0;  // In proportion to its probability.
};

bool IsMoreLikely(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

double SumOf(const std::vector<Candidate>& candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const Candidate& one) { return sum + one.weight; });
}

std::vector<Candidate> Weighed(absl::Span<const float> logits, double temperature) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<Candidate> all(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    all[i] = {static_cast<uint32_t>(i), std::exp((logits[i] - largest) / temperature)};
  }
  return all;
}

void KeepMostLikely(int64_t count, std::vector<Candidate>& candidates) {
  if (count > 0 && count < static_cast<int64_t>(candidates.size())) {
    std::nth_element(candidates.begin(), candidates.begin() + (count - 1), candidates.end(),
                     IsMoreLikely);
    candidates.resize(static_cast<size_t>(count));
  }
}

// Sorts the candidates and keeps the first ones that together have at least `share` of the sum.
void KeepShare(double share, std::vector<Candidate>& candidates) {
  const double sum = SumOf(candidates);
  // All those below this together have less than what may be left out, and are not worth sorting.
  const double least = (1 - share) * sum / static_cast<double>(candidates.size());
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                  [least](const Candidate& one) { return one.weight < least; }),
                   candidates.end());
  std::sort(candidates.begin(), candidates.end(), IsMoreLikely);
  double before = 0;
  size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || before < share * sum)) {
    before += candidates[kept++].weight;
  }
  candidates.resize(kept);
}

}  // namespace

absl::Status CheckSampling(const SamplingOptions& options) {
  const auto refuse = [](const char* name, double value, const char* allowed) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %g; it must be %s", name, value, allowed));
  };
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    return refuse("--temperature", options.temperature, "0 (the most likely token) or above");
  }
  if (options.top_k < 0) {
    return refuse("--top-k", static_cast<double>(options.top_k), "0 (all tokens) or above");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return refuse("--top-p", options.top_p, "above 0 and at most 1");
  }
  if (!IsRepetitionPenalty(options.repetition_penalty)) {
    return refuse("--repetition-penalty", options.repetition_penalty, "from 0.01 to 100 (1: none)");
  }
  return absl::OkStatus();
}

void PenaliseRepetition(absl::Span<const uint32_t> seen, double penalty, absl::Span<float> logits) {
  if (penalty == 1) {
    return;
  }
  const auto factor = static_cast<float>(penalty);
  for (const uint32_t token : std::unordered_set<uint32_t>(seen.begin(), seen.end())) {
    float& logit = logits[token];
    logit = logit < 0 ? logit * factor : logit / factor;
  }
}

uint32_t ChooseToken(absl::Span<const float> logits, const SamplingOptions& options,
                     double uniform) {
  if (options.temperature == 0) {
    return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<Candidate> candidates = Weighed(logits, options.temperature);
  KeepMostLikely(options.top_k, candidates);
  if (options.top_p < 1) {
    KeepShare(options.top_p, candidates);
  }
  // A heap gives the most likely ones first, of which few are needed: to sort a large vocabulary
  // would take as long as a small model.
  const auto is_less_likely = [](const Candidate& a, const Candidate& b) {
    return IsMoreLikely(b, a);
  };
  const double place = uniform * SumOf(candidates);
  std::make_heap(candidates.begin(), candidates.end(), is_less_likely);
  double before = 0;
  auto end = candidates.end();
  while (true) {
    std::pop_heap(candidates.begin(), end--, is_less_likely);
    before += end->weight;
    if (place < before || end == candidates.begin()) {
      return end->token;
    }
  }
}
