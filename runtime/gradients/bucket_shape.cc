#include "runtime/gradients/bucket_shape.h"

#include <utility>

namespace dtrain {

comm::BucketShape ShapeOf(std::string name, plan::FlatRange range,
                          const plan::ParamLayout& layout) {
  comm::BucketShape shape;
  shape.name = std::move(name);
  shape.elements = static_cast<size_t>(range.elements());
  for (const plan::LayoutEntry& entry : layout.entries()) {
    const plan::FlatRange both =
        plan::Intersect(range, {entry.offset, entry.offset + entry.elements});
    if (both.elements() == 0) {
      continue;
    }
    const int64_t columns = entry.shape.size() > 1 ? entry.elements / entry.shape[0] : 1;
    const int64_t first = (both.begin - entry.offset + columns - 1) / columns;
    const int64_t last = (both.end - entry.offset) / columns;
    if (first < last) {
      shape.tensors.push_back(
          {.start = static_cast<size_t>(entry.offset + first * columns - range.begin),
           .rows = static_cast<size_t>(last - first),
           .columns = static_cast<size_t>(columns)});
    }
  }
  return shape;
}

}  // namespace dtrain
