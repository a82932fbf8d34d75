#include "launcher/hosts/host_tree.h"

#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace dtrain::launcher {
namespace {

// Gives the hosts `first` to `end` - 1 their places; the first ones of the runs get `place`.
void PlaceRun(int first, int end, TreePlace place, int fanout, std::vector<TreePlace>& places) {
  const int64_t count = end - first;
  const int64_t runs = fanout == 0 || count <= fanout ? count : fanout;
  for (int64_t run = 0; run < runs; ++run) {
    const int head = first + static_cast<int>(count * run / runs);
    const int next = first + static_cast<int>(count * (run + 1) / runs);
    places[static_cast<size_t>(head)] = place;
    PlaceRun(head + 1, next, {head, place.hops + 1}, fanout, places);
  }
}

}  // namespace

std::vector<TreePlace> SplitIntoTree(int count, int fanout) {
  DT_CHECK(fanout == 0 || fanout > 1);
  std::vector<TreePlace> places(static_cast<size_t>(count));
  PlaceRun(0, count, TreePlace(), fanout, places);
  return places;
}

}  // namespace dtrain::launcher
