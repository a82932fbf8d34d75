#include "comm/transport/who_is_missing.h"

#include <cstddef>
#include <set>

namespace dtrain::comm {

Missing WhoIsMissing(int self, absl::Span<const WaitReport> reports) {
  std::set<int> silent;
  std::set<int> elsewhere;
  std::set<int> seen = {self};
  std::vector<int> left = {self};
  while (!left.empty()) {
    const WaitReport& waiter = reports.at(static_cast<size_t>(left.back()));
    left.pop_back();
    for (const int rank : waiter.awaited) {
      if (rank < 0 || static_cast<size_t>(rank) >= reports.size() || rank == self) {
        continue;
      }
      const WaitReport& there = reports[static_cast<size_t>(rank)];
      if (!there.answered) {
        silent.insert(rank);
      } else if (!there.in_call && there.sequence < waiter.sequence) {
        elsewhere.insert(rank);
      } else if (there.in_call && seen.insert(rank).second) {
        left.push_back(rank);
      }
    }
  }
  return {{silent.begin(), silent.end()}, {elsewhere.begin(), elsewhere.end()}};
}

}  // namespace dtrain::comm
