// Writes the bytes of Parquet files for tests, part by part, by the format's own documents: pages
// with any levels and values, and a footer around them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/data/parquet/format.h"

namespace dtrain::plan::parquet {

inline std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes.push_back(static_cast<char>(value | 0x80));
  }
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

inline std::string ZigZag(int64_t value) {
  return Varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
}

inline std::string FourBytes(size_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i)));
  }
  return bytes;
}

// A struct of Thrift's compact protocol; members are added in the order of their numbers.
class ThriftStruct {
 public:
  ThriftStruct& Int(int id, int64_t value) { return Add(id, 6, ZigZag(value)); }
  ThriftStruct& Text(int id, const std::string& text) {
    return Add(id, 8, Varint(text.size()) + text);
  }
  ThriftStruct& Bool(int id, bool value) { return Add(id, value ? 1 : 2, ""); }
  ThriftStruct& Struct(int id, const ThriftStruct& member) { return Add(id, 12, member.bytes()); }
  ThriftStruct& Structs(int id, const std::vector<ThriftStruct>& elements) {
    std::string list(1, '\xfc');  // Structs, with a length behind.
    list += Varint(elements.size());
    for (const ThriftStruct& element : elements) {
      list += element.bytes();
    }
    return Add(id, 9, list);
  }
  std::string bytes() const { return bytes_ + '\0'; }

 private:
  ThriftStruct& Add(int id, int type, const std::string& value) {
    bytes_.push_back(static_cast<char>((id - last_) << 4 | type));
    bytes_ += value;
    last_ = id;
    return *this;
  }
  std::string bytes_;
  int last_ = 0;
};

// Levels or indices as runs of one value each. `width`: bits of a value, up to 8.
inline std::string Runs(const std::vector<int>& values, int width) {
  std::string bytes;
  for (const int value : values) {
    bytes += Varint(1 << 1);
    if (width > 0) {
      bytes.push_back(static_cast<char>(value));
    }
  }
  return bytes;
}

inline std::string PlainTexts(const std::vector<std::string>& texts) {
  std::string bytes;
  for (const std::string& text : texts) {
    bytes += FourBytes(text.size()) + text;
  }
  return bytes;
}

struct TestLevels {
  std::vector<int> repetitions;  // Empty: the column has none.
  std::vector<int> definitions;
};

// A page of version 1, uncompressed. Levels take 8 bits at most in these files.
inline std::string DataPage(size_t count, const TestLevels& levels, Encoding encoding,
                            const std::string& values) {
  std::string body;
  for (const std::vector<int>* each : {&levels.repetitions, &levels.definitions}) {
    if (!each->empty()) {
      const std::string runs = Runs(*each, 1);
      body += FourBytes(runs.size()) + runs;
    }
  }
  body += values;
  ThriftStruct part;
  part.Int(1, static_cast<int64_t>(count))
      .Int(2, static_cast<int64_t>(encoding))
      .Int(3, 3)
      .Int(4, 3);
  ThriftStruct header;
  header.Int(1, 0)
      .Int(2, static_cast<int64_t>(body.size()))
      .Int(3, static_cast<int64_t>(body.size()))
      .Struct(5, part);
  return header.bytes() + body;
}

// `stored`: the values as the column's codec has them, of `bytes` bytes.
inline std::string DataPageV2(size_t count, const TestLevels& levels, Encoding encoding,
                              size_t bytes, const std::string& stored) {
  const std::string repetitions = Runs(levels.repetitions, 1);
  const std::string definitions = Runs(levels.definitions, 1);
  const size_t level_bytes = repetitions.size() + definitions.size();
  ThriftStruct part;
  part.Int(1, static_cast<int64_t>(count))
      .Int(2, 0)
      .Int(3, static_cast<int64_t>(count))
      .Int(4, static_cast<int64_t>(encoding))
      .Int(5, static_cast<int64_t>(definitions.size()))
      .Int(6, static_cast<int64_t>(repetitions.size()));
  ThriftStruct header;
  header.Int(1, 3)
      .Int(2, static_cast<int64_t>(level_bytes + bytes))
      .Int(3, static_cast<int64_t>(level_bytes + stored.size()))
      .Struct(8, part);
  return header.bytes() + repetitions + definitions + stored;
}

// `more`: bytes that the page says it holds besides.
inline std::string DictionaryPage(size_t count, const std::string& values, size_t more = 0) {
  ThriftStruct part;
  part.Int(1, static_cast<int64_t>(count)).Int(2, 0);
  ThriftStruct header;
  header.Int(1, 2)
      .Int(2, static_cast<int64_t>(values.size() + more))
      .Int(3, static_cast<int64_t>(values.size()))
      .Struct(7, part);
  return header.bytes() + values;
}

// Nodes of a schema; `repetition`: 0 required, 1 optional, 2 repeated.
inline ThriftStruct TextNode(const std::string& name, int repetition) {
  return ThriftStruct().Int(1, 6).Int(3, repetition).Text(4, name).Int(6, 0);
}
inline ThriftStruct GroupNode(const std::string& name, int repetition, int children) {
  return ThriftStruct().Int(3, repetition).Text(4, name).Int(5, children);
}
inline ThriftStruct ListNode(const std::string& name, int repetition) {
  return GroupNode(name, repetition, 1).Int(6, 3);
}

struct TestColumn {
  int64_t values = 0;
  std::string pages;
  Codec codec = Codec::kUncompressed;
  PhysicalType type = PhysicalType::kByteArray;
  bool is_encrypted = false;
};

struct TestRowGroup {
  int64_t rows = 0;
  std::vector<TestColumn> columns;
};

// `nodes`: the schema below its root, of which `members` are columns or groups of the root.
inline std::string ParquetBytes(const std::vector<ThriftStruct>& nodes, int members,
                                const std::vector<TestRowGroup>& groups) {
  std::string file(kMagic);
  std::vector<ThriftStruct> described;
  int64_t rows = 0;
  for (const TestRowGroup& group : groups) {
    std::vector<ThriftStruct> chunks;
    for (const TestColumn& column : group.columns) {
      ThriftStruct place;
      place.Int(1, static_cast<int64_t>(column.type))
          .Int(4, static_cast<int64_t>(column.codec))
          .Int(5, column.values)
          .Int(6, static_cast<int64_t>(column.pages.size()))
          .Int(7, static_cast<int64_t>(column.pages.size()))
          .Int(9, static_cast<int64_t>(file.size()));
      chunks.push_back(ThriftStruct().Int(2, 0).Struct(3, place));
      if (column.is_encrypted) {
        chunks.back().Struct(8, ThriftStruct());
      }
      file += column.pages;
    }
    described.push_back(ThriftStruct().Structs(1, chunks).Int(2, 0).Int(3, group.rows));
    rows += group.rows;
  }
  std::vector<ThriftStruct> schema = {GroupNode("schema", 0, members)};
  schema.insert(schema.end(), nodes.begin(), nodes.end());
  const std::string footer =
      ThriftStruct().Int(1, 2).Structs(2, schema).Int(3, rows).Structs(4, described).bytes();
  return file + footer + FourBytes(footer.size()) + std::string(kMagic);
}

// One optional column "text", with a row group for each element; "" is null.
inline std::string TextParquet(const std::vector<std::vector<std::string>>& groups) {
  std::vector<TestRowGroup> written;
  for (const std::vector<std::string>& texts : groups) {
    TestLevels levels;
    std::vector<std::string> present;
    for (const std::string& text : texts) {
      levels.definitions.push_back(text.empty() ? 0 : 1);
      if (!text.empty()) {
        present.push_back(text);
      }
    }
    const auto rows = static_cast<int64_t>(texts.size());
    written.push_back(
        {rows, {{rows, DataPage(texts.size(), levels, Encoding::kPlain, PlainTexts(present))}}});
  }
  return ParquetBytes({TextNode("text", 1)}, 1, written);
}

}  // namespace dtrain::plan::parquet
