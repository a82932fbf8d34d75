#include "runtime/plan/data/parquet/page_header.h"

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/data/parquet/thrift_reader.h"

namespace dtrain::plan::parquet {
namespace {

// One of the structs of which a header has that of its kind.
absl::Status ReadOfKind(ThriftReader& reader, const ThriftField& field, PageKind kind,
                        PageHeader& header) {
  return reader.StructOf(field, [&](const ThriftField& member) -> absl::Status {
    if (member.id == 1) {
      DT_ASSIGN_OR_RETURN(header.values, reader.Integer(member));
    } else if (kind != PageKind::kDataV2 && member.id == 2) {
      DT_ASSIGN_OR_RETURN(const int64_t encoding, reader.Integer(member));
      header.encoding = static_cast<Encoding>(encoding);
    } else if (kind == PageKind::kData && (member.id == 3 || member.id == 4)) {
      DT_ASSIGN_OR_RETURN(const int64_t encoding, reader.Integer(member));
      (member.id == 3 ? header.definition_encoding : header.repetition_encoding) =
          static_cast<Encoding>(encoding);
    } else if (kind == PageKind::kDataV2 && member.id == 4) {
      DT_ASSIGN_OR_RETURN(const int64_t encoding, reader.Integer(member));
      header.encoding = static_cast<Encoding>(encoding);
    } else if (kind == PageKind::kDataV2 && member.id == 5) {
      DT_ASSIGN_OR_RETURN(header.definition_bytes, reader.Integer(member));
    } else if (kind == PageKind::kDataV2 && member.id == 6) {
      DT_ASSIGN_OR_RETURN(header.repetition_bytes, reader.Integer(member));
    } else if (kind == PageKind::kDataV2 && member.id == 7) {
      DT_ASSIGN_OR_RETURN(header.is_compressed, reader.Boolean(member));
    }
    return absl::OkStatus();
  });
}

absl::Status Check(const PageHeader& header) {
  const struct {
    const char* what;
    int64_t value;
    int64_t most;
  } ranges[] = {{"decompressed bytes", header.bytes, kPageBytesMax},
                {"stored bytes", header.stored_bytes, kPageBytesMax},
                {"values", header.values, INT32_MAX},
                {"bytes of definition levels", header.definition_bytes, header.stored_bytes},
                {"bytes of repetition levels", header.repetition_bytes,
                 header.stored_bytes - header.definition_bytes}};
  for (const auto& range : ranges) {
    if (range.value < 0 || range.value > range.most) {
      return absl::InvalidArgumentError(absl::StrFormat("its header gives it %d %s; want 0 to %d",
                                                        range.value, range.what, range.most));
    }
  }
  if (header.definition_bytes + header.repetition_bytes > header.bytes) {
    return absl::InvalidArgumentError("its levels are longer than the page");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PageHeader> ParsePageHeader(absl::string_view bytes) {
  PageHeader header;
  ThriftReader reader(bytes);
  int64_t kind = -1;
  bool has_part = false;  // The struct of its kind.
  const absl::Status read = reader.Struct([&](const ThriftField& field) -> absl::Status {
    switch (field.id) {
      case 1: {
        DT_ASSIGN_OR_RETURN(kind, reader.Integer(field));
        return absl::OkStatus();
      }
      case 2: {
        DT_ASSIGN_OR_RETURN(header.bytes, reader.Integer(field));
        return absl::OkStatus();
      }
      case 3: {
        DT_ASSIGN_OR_RETURN(header.stored_bytes, reader.Integer(field));
        return absl::OkStatus();
      }
      case 4: {
        DT_ASSIGN_OR_RETURN(const int64_t crc, reader.Integer(field));
        header.crc = static_cast<uint32_t>(crc);
        return absl::OkStatus();
      }
      case 5:  // The structs of data pages, dictionaries and data pages of version 2.
      case 7:
      case 8:
        has_part = has_part || field.id == (kind == 0 ? 5 : kind == 2 ? 7 : 8);
        return ReadOfKind(reader, field,
                          field.id == 5   ? PageKind::kData
                          : field.id == 7 ? PageKind::kDictionary
                                          : PageKind::kDataV2,
                          header);
      default:
        return absl::OkStatus();
    }
  });
  DT_RETURN_IF_ERROR(read);
  header.header_bytes = static_cast<int64_t>(reader.position());
  if (kind < 0 || kind > 3 || (kind != 1 && !has_part)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("no header of a page is there, or its kind is not known (%d)", kind));
  }
  header.kind = static_cast<PageKind>(kind);
  DT_RETURN_IF_ERROR(Check(header));
  return header;
}

}  // namespace dtrain::plan::parquet
