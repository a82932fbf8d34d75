#include "runtime/plan/data/parquet/row_writer.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/data/parquet/format.h"
#include "runtime/plan/data/row_columns.h"

namespace dtrain::plan::parquet {
namespace {

absl::Status TooLong(const ColumnReader& reader) {
  return reader.Bad(absl::StrFormat("its row has more than %d bytes, the most for one document",
                                    kDocumentBytesMax));
}

}  // namespace

void AppendJsonText(absl::string_view text, std::string* out) {
  out->push_back('"');
  size_t plain = 0;  // Where the bytes begin that are not yet there.
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') {
      continue;
    }
    out->append(text.data() + plain, i - plain);
    plain = i + 1;
    switch (byte) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      default:
        absl::StrAppendFormat(out, "\\u%04x", byte);
    }
  }
  out->append(text.data() + plain, text.size() - plain);
  out->push_back('"');
}

absl::Status RowWriter::Begin() {
  for (const auto& reader : readers_) {
    DT_RETURN_IF_ERROR(reader->Next());
  }
  return absl::OkStatus();
}

absl::Status RowWriter::Append(std::string* out) {
  for (const auto& reader : readers_) {
    if (reader->at_end()) {
      return reader->Bad("it has fewer rows than its row group");
    }
    if (reader->repetition() != 0) {
      return reader->Bad("a row begins inside a list");
    }
  }
  DT_RETURN_IF_ERROR(AppendObject(schema_.members, out));
  return static_cast<int64_t>(out->size()) > kDocumentBytesMax ? TooLong(*readers_[0])
                                                               : absl::OkStatus();
}

absl::Status RowWriter::End() const {
  for (const auto& reader : readers_) {
    if (!reader->at_end()) {
      return reader->Bad("it has more rows than its row group");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RowWriter::AreBelow(const RowValue& value, int definition) const {
  const bool is_below = readers_[value.columns_begin]->definition() < definition;
  for (size_t i = value.columns_begin + 1; i < value.columns_end; ++i) {
    if ((readers_[i]->definition() < definition) != is_below) {
      return readers_[i]->Bad("it and its neighbour disagree on what is null");
    }
  }
  return is_below;
}

absl::StatusOr<bool> RowWriter::HaveMore(const RowValue& value, int repetition) const {
  const auto has_more = [repetition](const ColumnReader& reader) {
    return !reader.at_end() && reader.repetition() >= repetition;
  };
  const bool first = has_more(*readers_[value.columns_begin]);
  for (size_t i = value.columns_begin; i < value.columns_end; ++i) {
    if (has_more(*readers_[i]) != first || (first && readers_[i]->repetition() != repetition)) {
      return readers_[i]->Bad("it and its neighbour disagree on the length of a list");
    }
  }
  return first;
}

absl::Status RowWriter::Skip(const RowValue& value) {
  for (size_t i = value.columns_begin; i < value.columns_end; ++i) {
    DT_RETURN_IF_ERROR(readers_[i]->Next());
  }
  return absl::OkStatus();
}

absl::Status RowWriter::AppendObject(const std::vector<RowValue>& members, std::string* out) {
  out->push_back('{');
  bool is_first = true;
  for (const RowValue& member : members) {
    DT_ASSIGN_OR_RETURN(const bool is_null, AreBelow(member, member.present));
    if (is_null) {
      DT_RETURN_IF_ERROR(Skip(member));
      continue;
    }
    if (!std::exchange(is_first, false)) {
      out->push_back(',');
    }
    AppendJsonText(member.name, out);
    out->push_back(':');
    DT_RETURN_IF_ERROR(AppendValue(member, out));
  }
  out->push_back('}');
  return absl::OkStatus();
}

absl::Status RowWriter::AppendValue(const RowValue& value, std::string* out) {
  const ColumnReader& first = *readers_[value.columns_begin];
  if (static_cast<int64_t>(out->size()) > kDocumentBytesMax) {
    return TooLong(first);
  }
  DT_ASSIGN_OR_RETURN(const bool is_null, AreBelow(value, value.present));
  if (is_null) {
    out->append("null");
    return Skip(value);
  }
  switch (value.kind) {
    case RowValue::Kind::kObject:
      return AppendObject(value.children, out);
    case RowValue::Kind::kList:
      return AppendList(value, out);
    case RowValue::Kind::kLeaf:
      break;
  }
  if (static_cast<int64_t>(first.value().bytes.size()) > kDocumentBytesMax) {
    return first.Bad(absl::StrFormat("a value has %d bytes; the most for one document is %d",
                                     first.value().bytes.size(), kDocumentBytesMax));
  }
  AppendLeaf(first, out);
  return Skip(value);
}

absl::Status RowWriter::AppendList(const RowValue& list, std::string* out) {
  out->push_back('[');
  DT_ASSIGN_OR_RETURN(const bool is_empty, AreBelow(list, list.element));
  if (is_empty) {
    DT_RETURN_IF_ERROR(Skip(list));
    out->push_back(']');
    return absl::OkStatus();
  }
  for (bool has_more = true; has_more;) {
    DT_RETURN_IF_ERROR(AppendValue(list.children[0], out));
    DT_ASSIGN_OR_RETURN(has_more, HaveMore(list, list.repetition));
    out->push_back(has_more ? ',' : ']');
  }
  return absl::OkStatus();
}

void RowWriter::AppendLeaf(const ColumnReader& reader, std::string* out) const {
  const Value& value = reader.value();
  switch (reader.type()) {
    case PhysicalType::kBoolean:
      out->append(value.integer != 0 ? "true" : "false");
      return;
    case PhysicalType::kInt32:
    case PhysicalType::kInt64:
      absl::StrAppend(out, value.integer);
      return;
    case PhysicalType::kFloat:
    case PhysicalType::kDouble:
      if (std::isfinite(value.real)) {
        absl::StrAppendFormat(out, "%.17g", value.real);
      } else {
        out->append("null");
      }
      return;
    default:
      AppendJsonText(value.bytes, out);
  }
}

}  // namespace dtrain::plan::parquet
