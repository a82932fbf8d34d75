#include "absl/strings/cord.h"
#include "dtrain/batch_source.h"

namespace dtrain {
namespace {

constexpr char kPayload[] = "dtrain/end_of_data";  // Tells it from errors of the same code.

}  // namespace

absl::Status EndOfData() {
  absl::Status status = absl::OutOfRangeError("the data source has no further batch");
  status.SetPayload(kPayload, absl::Cord());
  return status;
}

bool IsEndOfData(const absl::Status& status) { return status.GetPayload(kPayload).has_value(); }

}  // namespace dtrain
