#include "runtime/plan/data/parquet/column_reader.h"

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::plan::parquet {

absl::Status ColumnReader::NextLevel(RunDecoder& levels, int most, int* level) const {
  *level = 0;
  if (most == 0) {
    return absl::OkStatus();
  }
  const absl::StatusOr<uint32_t> next = levels.Next();
  if (!next.ok()) {
    return Bad("its levels end too early");
  }
  if (*next > static_cast<uint32_t>(most)) {
    return Bad(absl::StrFormat("it has a level %d; want 0 to %d", *next, most));
  }
  *level = static_cast<int>(*next);
  return absl::OkStatus();
}

absl::Status ColumnReader::Next() {
  while (page_.count == 0) {
    DT_ASSIGN_OR_RETURN(const bool is_page, pages_.Next(&page_));
    if (!is_page) {
      at_end_ = true;
      return absl::OkStatus();
    }
  }
  --page_.count;
  DT_RETURN_IF_ERROR(NextLevel(page_.repetitions, column_.repetition_max, &repetition_));
  DT_RETURN_IF_ERROR(NextLevel(page_.definitions, column_.definition_max, &definition_));
  if (definition_ < column_.definition_max) {
    return absl::OkStatus();
  }
  const absl::Status status = page_.values->Next(&value_);
  return status.ok() ? status : Bad(status.message());
}

}  // namespace dtrain::plan::parquet
