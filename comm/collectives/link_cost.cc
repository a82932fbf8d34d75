#include "comm/collectives/link_cost.h"

#include <algorithm>

#include "absl/numeric/bits.h"

namespace dtrain::comm {
namespace {
constexpr double kMiB = 1 << 20;
}  // namespace

LinkCost Slower(const LinkCost& a, const LinkCost& b) {
  return {std::max(a.step_us, b.step_us), std::max(a.message_us, b.message_us),
          std::max(a.pair_us_per_mib, b.pair_us_per_mib),
          std::max(a.all_us_per_mib, b.all_us_per_mib),
          std::max(a.sum_us_per_mib, b.sum_us_per_mib)};
}

double EstimateMicros(CallKind kind, Algorithm algorithm, int size, size_t bytes,
                      const LinkCost& cost) {
  const double ranks = size;
  const double whole = static_cast<double>(bytes) / kMiB;
  const double others = whole * (ranks - 1) / ranks;  // All slices but this rank's own.
  const double rounds = absl::bit_width(static_cast<unsigned>(size)) - 1;
  const double to_all = size == 2 ? cost.pair_us_per_mib : cost.all_us_per_mib;
  const bool all_reduce = kind == CallKind::kAllReduce;
  const double ways = all_reduce ? 2 : 1;  // An all-reduce moves the data twice.
  const double sum = kind == CallKind::kAllGather ? 0 : others * cost.sum_us_per_mib;
  switch (algorithm) {
    case Algorithm::kRing:
      return ways * ((ranks - 1) * cost.step_us + others * cost.pair_us_per_mib) + sum;
    case Algorithm::kHalving:
      return ways * (rounds * cost.step_us + others * cost.pair_us_per_mib) + sum;
    case Algorithm::kDoubling:
      return all_reduce
                 ? rounds * (cost.step_us + whole * (cost.pair_us_per_mib + cost.sum_us_per_mib))
                 : rounds * cost.step_us + others * cost.pair_us_per_mib;
    default:
      return ways * (cost.step_us + (ranks - 2) * cost.message_us + others * to_all) + sum;
  }
}

}  // namespace dtrain::comm
