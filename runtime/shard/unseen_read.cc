#include "runtime/shard/unseen_read.h"

#include "base/status.h"

namespace dtrain {

UnseenRead::UnseenRead(const FlatParameters& flat)
    : ranges_(RangesOf(flat)),
      fault_(flat.value_range()->data(), flat.value_range()->bytes(), *this) {}

std::vector<UnseenRead::Range> UnseenRead::RangesOf(const FlatParameters& flat) {
  std::vector<Range> ranges;
  const size_t width = DTypeBytes(flat.dtype());
  for (size_t i = 0; i < flat.parameters().size(); ++i) {
    if (!flat.is_in_values(i)) {
      continue;
    }
    const plan::LayoutEntry& entry = flat.layout().entries()[i];
    const std::byte* const begin =
        flat.value_range()->data() + static_cast<size_t>(entry.offset) * width;
    ranges.push_back({begin, begin + static_cast<size_t>(entry.elements) * width, &entry.name});
  }
  return ranges;
}

bool UnseenRead::OnFault(const std::byte* at) {
  for (const Range& range : ranges_) {
    if (at >= range.begin && at < range.end) {
      MemoryFault::SayAndExit(
          {"error: parameter ", *range.name,
           " was read by code that is no LibTorch operation (data_ptr, an accessor, memcpy) while "
           "its memory is shared out (zero_optimization.stage 3); read it inside "
           "Engine::WithParameters, announce it with RECORD_FUNCTION and its inputs, or set stage "
           "2"},
          kExitUsage);
    }
  }
  return false;
}

}  // namespace dtrain
