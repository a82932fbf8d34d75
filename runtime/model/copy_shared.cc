#include "runtime/model/copy_shared.h"

namespace dtrain {

void CopyShared(const at::Tensor& source, absl::Span<const plan::OwnedRange> stored,
                const at::Tensor& target, absl::Span<const plan::OwnedRange> owned) {
  for (const plan::OwnedRange& from : stored) {
    for (const plan::OwnedRange& to : owned) {
      const plan::FlatRange both = plan::Intersect(from.flat, to.flat);
      if (both.elements() > 0) {
        target.narrow(0, to.local_of(both.begin), both.elements())
            .copy_(source.narrow(0, from.local_of(both.begin), both.elements()));
      }
    }
  }
}

}  // namespace dtrain
