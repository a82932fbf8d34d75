#include "comm/collectives/algorithm.h"

#include "absl/numeric/bits.h"
#include "comm/collectives/link_cost.h"
#include "comm/collectives/schedule.h"

namespace dtrain::comm {

bool PartialSumsMayTravel(const CallHeader& header, bool deterministic) {
  switch (header.dtype) {
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt8:
      return true;  // The result is the same in any order.
    case DType::kFloat32:
    case DType::kFloat64:
      return !deterministic && header.wire == Wire::kSameAsBuffer;
    default:
      return false;
  }
}

namespace {

bool IsExact(const CallHeader& header) {
  return header.kind == CallKind::kAllGather || header.dtype == DType::kInt32 ||
         header.dtype == DType::kInt64 || header.dtype == DType::kUInt8;
}

// Whether `algorithm` gives bits that the call may have.
bool BitsAllow(const CallHeader& header, Algorithm algorithm, int size, bool deterministic) {
  // Two ranks have one order of sum.
  return algorithm == Algorithm::kDirect || header.kind == CallKind::kAllGather ||
         (size == 2 && algorithm == Algorithm::kDoubling) ||
         PartialSumsMayTravel(header, deterministic);
}

Algorithm Cheapest(const CallHeader& header, int size, bool deterministic, const LinkCost& cost) {
  Algorithm best = Algorithm::kDirect;
  double least = EstimateMicros(header.kind, best, size, header.bytes, cost);
  for (const Algorithm other : {Algorithm::kDoubling, Algorithm::kHalving, Algorithm::kRing}) {
    const bool same_bits = other != Algorithm::kRing || IsExact(header);
    if (!same_bits || !Schedule::HasForm(header.kind, other, size) ||
        !BitsAllow(header, other, size, deterministic)) {
      continue;
    }
    const double micros = EstimateMicros(header.kind, other, size, header.bytes, cost);
    if (micros < least) {
      best = other;
      least = micros;
    }
  }
  return best;
}

}  // namespace

Choice ChooseAlgorithm(const CallHeader& header, int size, bool deterministic, Algorithm wanted,
                       const LinkCost& cost) {
  const bool reduces =
      header.kind == CallKind::kAllReduce || header.kind == CallKind::kReduceScatter;
  if (!reduces && header.kind != CallKind::kAllGather) {
    return {};
  }
  if (wanted != Algorithm::kAutomatic) {
    const bool possible = Schedule::HasForm(header.kind, wanted, size) &&
                          BitsAllow(header, wanted, size, deterministic);
    return {possible ? wanted : Algorithm::kDirect};
  }
  const bool power_of_two = absl::has_single_bit(static_cast<unsigned>(size));
  const bool free_order = reduces && PartialSumsMayTravel(header, deterministic);
  const bool large = header.bytes >= kRingSliceBytes * static_cast<size_t>(size);
  if (free_order && !IsExact(header) && !power_of_two && size >= kRingRanks && large) {
    return {Algorithm::kRing};
  }
  return {Cheapest(header, size, deterministic, cost),
          header.kind == CallKind::kAllReduce && free_order && power_of_two && !IsExact(header)};
}

}  // namespace dtrain::comm
