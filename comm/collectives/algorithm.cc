#include "comm/collectives/algorithm.h"

namespace dtrain::comm {

bool PartialSumsMayTravel(const CallHeader& header, bool deterministic) {
  switch (header.dtype) {
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt8:
      return true;  // In any order the same.
    case DType::kFloat32:
    case DType::kFloat64:
      return !deterministic && header.wire == Wire::kSameAsBuffer;
    default:
      return false;
  }
}

Algorithm ChooseAlgorithm(const CallHeader& header, int size, bool deterministic,
                          Algorithm wanted) {
  const bool reduces =
      header.kind == CallKind::kAllReduce || header.kind == CallKind::kReduceScatter;
  if (!reduces && header.kind != CallKind::kAllGather) {
    return Algorithm::kDirect;  // A ring has no form of it.
  }
  if (reduces && !PartialSumsMayTravel(header, deterministic)) {
    return Algorithm::kDirect;
  }
  if (wanted != Algorithm::kAutomatic) {
    return wanted;
  }
  const bool large = header.bytes >= kRingSliceBytes * static_cast<size_t>(size);
  return size >= kRingRanks && large ? Algorithm::kRing : Algorithm::kDirect;
}

}  // namespace dtrain::comm
