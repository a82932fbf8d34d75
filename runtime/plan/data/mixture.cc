#include "runtime/plan/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace dtrain::plan {
namespace {

// Whole shares of kPlaces by the largest remainder, after one place for each weight above 0.
std::vector<int64_t> Shares(absl::Span<const double> weights, double sum) {
  const auto positive = static_cast<int64_t>(
      std::count_if(weights.begin(), weights.end(), [](double weight) { return weight > 0; }));
  const int64_t free = MixturePattern::kPlaces - positive;
  std::vector<int64_t> shares(weights.size(), 0);
  std::vector<std::pair<double, size_t>>
      wanting;  // Places wanted beyond those given; largest first.
  int64_t given = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0)) {
      continue;
    }
    const double want = weights[i] / sum * static_cast<double>(MixturePattern::kPlaces);
    shares[i] = std::max<int64_t>(1, static_cast<int64_t>(want));
    given += shares[i];
    wanting.emplace_back(want - static_cast<double>(shares[i]), i);
  }
  DT_CHECK(free >= 0) << positive << " parts";
  std::sort(wanting.begin(), wanting.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  for (size_t k = 0; given < MixturePattern::kPlaces; k = (k + 1) % wanting.size(), ++given) {
    ++shares[wanting[k].second];
  }
  // Parts that were lifted to one place may have taken more than there is: the largest give it up.
  for (; given > MixturePattern::kPlaces; --given) {
    --*std::max_element(shares.begin(), shares.end());
  }
  return shares;
}

}  // namespace

absl::StatusOr<MixturePattern> MixturePattern::Create(absl::Span<const double> weights) {
  if (weights.empty() || static_cast<int64_t>(weights.size()) > kPartsMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a mixture has %d parts; want 1 to %d", weights.size(), kPartsMax));
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the weight of part %d is %g; want a number that is 0 or more", i, weights[i]));
    }
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!(sum > 0) || !std::isfinite(sum)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the weights of the %d parts sum to %g; at least one must be above 0",
                        weights.size(), sum));
  }
  MixturePattern pattern;
  pattern.shares_ = Shares(weights, sum);
  // Each part earns its share in every place, and the richest pays for the place.
  std::vector<int64_t> credit(weights.size(), 0);
  std::vector<int64_t> taken(weights.size(), 0);
  for (int64_t place = 0; place < kPlaces; ++place) {
    size_t richest = 0;
    for (size_t i = 0; i < credit.size(); ++i) {
      credit[i] += pattern.shares_[i];
      richest = credit[i] > credit[richest] ? i : richest;
    }
    credit[richest] -= kPlaces;
    pattern.part_.push_back(static_cast<uint16_t>(richest));
    pattern.index_.push_back(static_cast<uint16_t>(taken[richest]++));
  }
  for (size_t i = 0; i < taken.size(); ++i) {
    DT_CHECK_EQ(taken[i], pattern.shares_[i]);
  }
  return pattern;
}

MixturePattern::Draw MixturePattern::At(int64_t number) const {
  const auto place = static_cast<size_t>(number % kPlaces);
  const int part = part_[place];
  return {part, number / kPlaces * shares_[static_cast<size_t>(part)] + index_[place]};
}

}  // namespace dtrain::plan
