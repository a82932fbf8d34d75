#include "runtime/plan/data/parquet/footer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/data/parquet/thrift_reader.h"

namespace dtrain::plan::parquet {
namespace {

constexpr int kDepthMax = 32;
constexpr size_t kNodesMax = 1 << 20;

absl::Status BadFooter(const std::string& what) { return absl::InvalidArgumentError(what); }

// One line of the schema, which lists the tree from its root, each node before its children.
struct SchemaLine {
  SchemaNode node;
  int64_t type = -1;  // -1: a group.
  int64_t children = 0;
};

Meaning MeaningOfConverted(int64_t converted) {
  switch (converted) {
    case 0:   // UTF8
    case 4:   // ENUM
    case 19:  // JSON
      return Meaning::kText;
    case 3:
      return Meaning::kList;
    default:
      return Meaning::kOther;
  }
}

// LogicalType is a union, in which one member is set.
Meaning MeaningOfLogical(int64_t member) {
  switch (member) {
    case 1:   // STRING
    case 4:   // ENUM
    case 12:  // JSON
      return Meaning::kText;
    case 3:
      return Meaning::kList;
    default:
      return Meaning::kOther;
  }
}

absl::Status ReadSchemaLine(ThriftReader& reader, const ThriftField& element, SchemaLine& line) {
  return reader.StructOf(element, [&](const ThriftField& field) -> absl::Status {
    switch (field.id) {
      case 1: {
        DT_ASSIGN_OR_RETURN(line.type, reader.Integer(field));
        return absl::OkStatus();
      }
      case 3: {
        DT_ASSIGN_OR_RETURN(const int64_t repetition, reader.Integer(field));
        if (repetition < 0 || repetition > 2) {
          return BadFooter(absl::StrFormat("its schema has a repetition %d", repetition));
        }
        line.node.repetition = static_cast<Repetition>(repetition);
        return absl::OkStatus();
      }
      case 4: {
        DT_ASSIGN_OR_RETURN(const absl::string_view name, reader.Binary(field));
        line.node.name = std::string(name);
        return absl::OkStatus();
      }
      case 5: {
        DT_ASSIGN_OR_RETURN(line.children, reader.Integer(field));
        return absl::OkStatus();
      }
      case 6: {
        DT_ASSIGN_OR_RETURN(const int64_t converted, reader.Integer(field));
        line.node.meaning = MeaningOfConverted(converted);
        return absl::OkStatus();
      }
      case 10:
        return reader.StructOf(field, [&](const ThriftField& member) {
          line.node.meaning = MeaningOfLogical(member.id);
          return absl::OkStatus();
        });
      default:
        return absl::OkStatus();
    }
  });
}

// Makes the tree of the lines from `*next` on.
absl::Status TakeNode(std::vector<SchemaLine>& lines, int depth, size_t* next, FileSchema& schema,
                      SchemaNode* node) {
  if (*next >= lines.size() || depth > kDepthMax) {
    return BadFooter(absl::StrFormat("its schema ends too early, or is deeper than %d", kDepthMax));
  }
  SchemaLine& line = lines[(*next)++];
  const int definition = node->definition_max;  // The parent's.
  const int repetition = node->repetition_max;
  *node = std::move(line.node);
  node->definition_max = definition;
  node->repetition_max = repetition;
  if (depth > 0) {  // The root has a repetition, which does not count.
    const bool is_repeated = node->repetition == Repetition::kRepeated;
    node->definition_max += is_repeated || node->repetition == Repetition::kOptional ? 1 : 0;
    node->repetition_max += is_repeated ? 1 : 0;
  }
  if (line.type >= 0) {
    if (line.type > 7 || line.children != 0) {
      return BadFooter(
          absl::StrFormat("its column \"%s\" is of the type number %d with %d children",
                          node->name.substr(0, 80), line.type, line.children));
    }
    node->type = static_cast<PhysicalType>(line.type);
    node->column = schema.columns++;
    return absl::OkStatus();
  }
  if (line.children <= 0 || static_cast<uint64_t>(line.children) > lines.size() - *next) {
    return BadFooter(absl::StrFormat("its group \"%s\" has %d members", node->name.substr(0, 80),
                                     line.children));
  }
  for (int64_t i = 0; i < line.children; ++i) {
    SchemaNode child;
    child.definition_max = node->definition_max;
    child.repetition_max = node->repetition_max;
    DT_RETURN_IF_ERROR(TakeNode(lines, depth + 1, next, schema, &child));
    node->children.push_back(std::move(child));
  }
  return absl::OkStatus();
}

// Facts that a column chunk gives beside its place.
struct ChunkFacts {
  ColumnChunk chunk;
  int64_t dictionary_offset = 0;
  bool is_elsewhere = false;
  bool is_encrypted = false;
  bool has_place = false;
};

absl::Status ReadChunkPlace(ThriftReader& reader, const ThriftField& field, ChunkFacts& facts) {
  facts.has_place = true;
  return reader.StructOf(field, [&](const ThriftField& member) -> absl::Status {
    if (member.id == 1 || member.id == 4) {
      DT_ASSIGN_OR_RETURN(const int64_t number, reader.Integer(member));
      if (member.id == 1) {
        facts.chunk.type = static_cast<PhysicalType>(number);
      } else {
        facts.chunk.codec = static_cast<Codec>(number);
      }
      return absl::OkStatus();
    }
    int64_t* const into = member.id == 5    ? &facts.chunk.values
                          : member.id == 7  ? &facts.chunk.bytes
                          : member.id == 9  ? &facts.chunk.offset
                          : member.id == 11 ? &facts.dictionary_offset
                                            : nullptr;
    if (into != nullptr) {
      DT_ASSIGN_OR_RETURN(*into, reader.Integer(member));
    }
    return absl::OkStatus();
  });
}

absl::Status ReadChunk(ThriftReader& reader, const ThriftField& element, ChunkFacts& facts) {
  return reader.StructOf(element, [&](const ThriftField& field) -> absl::Status {
    facts.is_elsewhere = facts.is_elsewhere || field.id == 1;
    facts.is_encrypted = facts.is_encrypted || field.id == 8 || field.id == 9;
    return field.id == 3 ? ReadChunkPlace(reader, field, facts) : absl::OkStatus();
  });
}

absl::StatusOr<ColumnChunk> PlaceOf(ChunkFacts facts, int64_t pages_end) {
  if (facts.is_encrypted) {
    return BadFooter("it is encrypted; write it without encryption");
  }
  if (facts.is_elsewhere) {
    return BadFooter("its pages are in another file; write both as one");
  }
  ColumnChunk& chunk = facts.chunk;
  if (facts.dictionary_offset > 0) {
    chunk.offset = std::min(chunk.offset, facts.dictionary_offset);
  }
  constexpr auto kBegin = static_cast<int64_t>(kMagic.size());
  if (facts.has_place && chunk.values == 0) {  // Without rows, the place may be any.
    chunk.offset = kBegin;
    chunk.bytes = 0;
  }
  if (!facts.has_place || chunk.values < 0 || chunk.bytes < 0 || chunk.offset < kBegin ||
      chunk.offset > pages_end || chunk.bytes > pages_end - chunk.offset) {
    return BadFooter(
        absl::StrFormat("its %d values are said to be in %d bytes at byte %d; want them in "
                        "bytes %d to %d",
                        chunk.values, chunk.bytes, chunk.offset, kBegin, pages_end));
  }
  return chunk;
}

absl::StatusOr<RowGroup> ReadRowGroup(ThriftReader& reader, const ThriftField& element,
                                      const FileSchema& schema,
                                      absl::Span<const SelectedColumn> columns, int64_t pages_end) {
  RowGroup group;
  size_t column = 0;
  const absl::Status read = reader.StructOf(element, [&](const ThriftField& field) -> absl::Status {
    if (field.id == 3) {
      DT_ASSIGN_OR_RETURN(group.rows, reader.Integer(field));
    }
    if (field.id != 1) {
      return absl::OkStatus();
    }
    return reader.ListOf(field, [&](const ThriftField& each) -> absl::Status {
      const size_t taken = group.columns.size();
      if (taken == columns.size() || columns[taken].column != column++) {
        return absl::OkStatus();
      }
      ChunkFacts facts;
      DT_RETURN_IF_ERROR(ReadChunk(reader, each, facts));
      absl::StatusOr<ColumnChunk> chunk = PlaceOf(facts, pages_end);
      DT_RETURN_IF_ERROR(
          Annotate(chunk.status(), absl::StrFormat("column \"%s\"", columns[taken].path)));
      group.columns.push_back(*chunk);
      return absl::OkStatus();
    });
  });
  DT_RETURN_IF_ERROR(read);
  if (group.rows < 0 || group.columns.size() != columns.size()) {
    return BadFooter(absl::StrFormat("it has %d rows, and lacks columns of the schema's %d",
                                     group.rows, schema.columns));
  }
  return group;
}

// A place in the footer is no help to anybody, and that it ends is an error here.
absl::Status Ended(const absl::Status& status) {
  return status.ok() ? status : absl::InvalidArgumentError(status.message());
}

}  // namespace

absl::StatusOr<FileSchema> ParseSchema(absl::string_view footer) {
  FileSchema schema;
  std::vector<SchemaLine> lines;
  ThriftReader reader(footer);
  const absl::Status read = reader.Struct([&](const ThriftField& field) -> absl::Status {
    if (field.id == 2) {
      return reader.ListOf(field, [&](const ThriftField& element) {
        return lines.size() == kNodesMax
                   ? BadFooter(absl::StrFormat("its schema has more than %d nodes", kNodesMax))
                   : ReadSchemaLine(reader, element, lines.emplace_back());
      });
    }
    if (field.id == 3) {
      DT_ASSIGN_OR_RETURN(schema.rows, reader.Integer(field));
    }
    return absl::OkStatus();
  });
  DT_RETURN_IF_ERROR(Ended(read));
  size_t next = 0;
  DT_RETURN_IF_ERROR(TakeNode(lines, 0, &next, schema, &schema.root));
  if (next != lines.size() || schema.root.children.empty() || schema.rows < 0) {
    return BadFooter(
        absl::StrFormat("its schema has %d nodes of which %d are in the tree, and %d rows",
                        lines.size(), next, schema.rows));
  }
  return schema;
}

absl::StatusOr<std::vector<RowGroup>> ParseRowGroups(absl::string_view footer,
                                                     const FileSchema& schema,
                                                     absl::Span<const SelectedColumn> columns,
                                                     int64_t pages_end) {
  std::vector<RowGroup> groups;
  int64_t rows = 0;
  ThriftReader reader(footer);
  const absl::Status read = reader.Struct([&](const ThriftField& field) -> absl::Status {
    if (field.id != 4) {
      return absl::OkStatus();
    }
    return reader.ListOf(field, [&](const ThriftField& element) -> absl::Status {
      absl::StatusOr<RowGroup> group = ReadRowGroup(reader, element, schema, columns, pages_end);
      DT_RETURN_IF_ERROR(Annotate(group.status(), absl::StrFormat("row group %d", groups.size())));
      if (group->rows > schema.rows - rows) {
        return BadFooter(absl::StrFormat("its row groups have more than its %d rows", schema.rows));
      }
      rows += group->rows;
      groups.push_back(*std::move(group));
      return absl::OkStatus();
    });
  });
  DT_RETURN_IF_ERROR(Ended(read));
  if (rows != schema.rows) {
    return BadFooter(
        absl::StrFormat("its row groups have %d rows, but the file has %d", rows, schema.rows));
  }
  return groups;
}

}  // namespace dtrain::plan::parquet
