#include "runtime/plan/data/parquet/parquet_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/data/parquet/column_reader.h"
#include "runtime/plan/data/parquet/decompress.h"
#include "runtime/plan/data/parquet/format.h"
#include "runtime/plan/data/parquet/values.h"

namespace dtrain::plan::parquet {
namespace {

constexpr auto kMagicBytes = static_cast<int64_t>(kMagic.size());
constexpr int64_t kTailBytes = kMagicBytes + 4;  // The footer's length, and the magic again.

struct FooterPlace {
  int64_t offset = 0;
  int64_t bytes = 0;
};

absl::StatusOr<FooterPlace> FindFooter(const DataFile& file) {
  DT_ASSIGN_OR_RETURN(const std::string head, file.Head(kMagicBytes));
  if (head != kMagic && head != kEncryptedMagic) {
    return file.Bad("it does not begin with PAR1, as a Parquet file does");
  }
  if (file.bytes() < kMagicBytes + kTailBytes) {
    return file.Bad(
        absl::StrFormat("it has %d bytes, too few for a footer: it is cut", file.bytes()));
  }
  std::string tail(static_cast<size_t>(kTailBytes), '\0');
  DT_RETURN_IF_ERROR(file.ReadAt(file.bytes() - kTailBytes, absl::MakeSpan(tail)));
  if (absl::EndsWith(tail, kEncryptedMagic)) {
    return file.Bad("its footer is encrypted; write it without encryption");
  }
  if (!absl::EndsWith(tail, kMagic)) {
    return file.Bad(absl::StrFormat("its last 4 bytes, at byte %d, are not PAR1: it is cut",
                                    file.bytes() - kMagicBytes));
  }
  uint32_t bytes = 0;
  std::memcpy(&bytes, tail.data(), sizeof(bytes));
  const int64_t most = std::min(kFooterBytesMax, file.bytes() - kMagicBytes - kTailBytes);
  if (bytes == 0 || bytes > most) {
    return file.Bad(absl::StrFormat("its footer has %d bytes; want 1 to %d", bytes, most));
  }
  return FooterPlace{file.bytes() - kTailBytes - bytes, bytes};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ParquetRows>> ParquetRows::Open(const std::string& path,
                                                               const RowColumns& wanted) {
  DT_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, "Parquet file"));
  std::unique_ptr<ParquetRows> rows(new ParquetRows(std::move(file)));
  DT_RETURN_IF_ERROR(rows->ReadFooter(wanted));
  return rows;
}

absl::Status ParquetRows::ReadFooter(const RowColumns& wanted) {
  DT_ASSIGN_OR_RETURN(const FooterPlace place, FindFooter(file_));
  std::string footer(static_cast<size_t>(place.bytes), '\0');
  DT_RETURN_IF_ERROR(file_.ReadAt(place.offset, absl::MakeSpan(footer)));
  const auto bad = [&](const absl::Status& status) {
    return file_.Bad(absl::StrFormat("footer at byte %d: %s", place.offset, status.message()));
  };
  const absl::StatusOr<FileSchema> schema = ParseSchema(footer);
  if (!schema.ok()) {
    return bad(schema.status());
  }
  absl::StatusOr<RowSchema> selected = SelectColumns(schema->root, wanted);
  if (!selected.ok()) {
    return file_.Bad(selected.status().message());
  }
  schema_ = *std::move(selected);
  absl::StatusOr<std::vector<RowGroup>> groups =
      ParseRowGroups(footer, *schema, schema_.columns, place.offset);
  if (!groups.ok()) {
    return bad(groups.status());
  }
  groups_ = *std::move(groups);
  rows_ = schema->rows;
  return CheckColumns();
}

absl::Status ParquetRows::CheckColumns() const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t i = 0; i < schema_.columns.size(); ++i) {
      const ColumnChunk& chunk = groups_[g].columns[i];
      const SelectedColumn& column = schema_.columns[i];
      const std::string place = absl::StrFormat("column \"%s\" of row group %d", column.path, g);
      if (chunk.type != column.type) {
        return file_.Bad(absl::StrFormat("%s is of the type %s, but the schema says %s", place,
                                         TypeName(chunk.type), TypeName(column.type)));
      }
      if (chunk.values < groups_[g].rows) {
        return file_.Bad(
            absl::StrFormat("%s has %d values for %d rows", place, chunk.values, groups_[g].rows));
      }
      if (const absl::Status status = CheckCodec(chunk.codec); !status.ok()) {
        return file_.Bad(absl::StrCat(place, ": ", status.message()));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ParquetRows::OpenGroup(const RowGroup& group) {
  std::vector<std::unique_ptr<ColumnReader>> readers;
  for (size_t i = 0; i < schema_.columns.size(); ++i) {
    readers.push_back(std::make_unique<ColumnReader>(file_, schema_.columns[i], group.columns[i]));
  }
  writer_ = std::make_unique<RowWriter>(schema_, std::move(readers));
  group_left_ = group.rows;
  return writer_->Begin();
}

absl::StatusOr<bool> ParquetRows::Next(std::string* line) {
  while (group_left_ == 0) {
    if (writer_ != nullptr) {
      DT_RETURN_IF_ERROR(writer_->End());
      writer_ = nullptr;
    }
    if (next_group_ == groups_.size()) {
      return false;
    }
    DT_RETURN_IF_ERROR(OpenGroup(groups_[next_group_++]));
  }
  line->clear();
  DT_RETURN_IF_ERROR(writer_->Append(line));
  --group_left_;
  ++row_;
  return true;
}

int64_t ParquetRows::SkipGroups(int64_t rows) {
  int64_t skipped = 0;
  while (next_group_ < groups_.size() && groups_[next_group_].rows <= rows - skipped) {
    skipped += groups_[next_group_++].rows;
  }
  row_ += skipped;
  return skipped;
}

int64_t ParquetRows::bytes_consumed() const {
  if (row_ == rows_) {
    return file_.bytes();
  }
  const double share = static_cast<double>(row_) / static_cast<double>(rows_);
  return static_cast<int64_t>(share * static_cast<double>(file_.bytes()));
}

}  // namespace dtrain::plan::parquet
