#include "runtime/engine/loss_unit.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace dtrain {

absl::StatusOr<double> AgreeOnLossUnit(comm::Group& group, int64_t count) {
  double unit = std::exp2(std::round(std::log2(static_cast<double>(std::max<int64_t>(1, count)))));
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      group.Broadcast({&unit, sizeof(unit), DType::kFloat64, {}}, 0,
                                      {.name = "loss unit", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  return unit;
}

}  // namespace dtrain
