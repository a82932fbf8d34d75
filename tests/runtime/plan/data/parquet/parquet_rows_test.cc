#include "runtime/plan/data/parquet/parquet_rows.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/data/parquet/parquet_bytes.h"
#include "tests/runtime/plan/data/text/compressed.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::parquet::parquet_rows_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Rows = std::vector<std::string>;

class ParquetRowsTest : public ::testing::Test {
 protected:
  absl::StatusOr<Rows> Read(const std::string& content, const RowColumns& wanted,
                            int64_t skip = 0) {
    auto rows = ParquetRows::Open(folder_.Write("x.parquet", content), wanted);
    if (!rows.ok()) {
      return rows.status();
    }
    skipped_ = (*rows)->SkipGroups(skip);
    Rows lines;
    std::string line;
    while (true) {
      const absl::StatusOr<bool> is_row = (*rows)->Next(&line);
      if (!is_row.ok()) {
        return is_row.status();
      }
      if (!*is_row) {
        EXPECT_EQ((*rows)->bytes_consumed(), static_cast<int64_t>(content.size()));
        return lines;
      }
      lines.push_back(line);
    }
  }
  std::string Why(const std::string& content, const RowColumns& wanted = {{{"text", {}}}, ""}) {
    const absl::Status status = Read(content, wanted).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("Parquet file " + folder_.path() + "/x.parquet: "));
    return std::string(status.message());
  }
  static RowColumns Text() { return {{{"text", {}}}, "; --text-key names another"}; }

  TempFolder folder_;
  int64_t skipped_ = 0;
};

// Chats as pyarrow writes them: a list of structs in three levels. Three rows: two messages, of
// which the second has no content; no messages; null.
const std::vector<ThriftStruct>& ChatNodes() {
  static const std::vector<ThriftStruct> nodes = {ListNode("messages", 1), GroupNode("list", 2, 1),
                                                  GroupNode("element", 1, 2), TextNode("role", 1),
                                                  TextNode("content", 1)};
  return nodes;
}

TestRowGroup ChatGroup() {
  const std::string roles = PlainTexts({"user", "assistant"});
  const std::string contents = PlainTexts({"Hi \"you\"\n"});
  return {3,
          {{4, DataPage(4, {{0, 1, 0, 0}, {4, 4, 1, 0}}, Encoding::kPlain, roles)},
           {4, DataPageV2(4, {{0, 1, 0, 0}, {4, 3, 1, 0}}, Encoding::kPlain, contents.size(),
                          contents)}}};
}

TEST_F(ParquetRowsTest, NullsAreLeftOutAndTextsEscaped) {
  EXPECT_THAT(*Read(TextParquet({{"one", "", "a\\\"b\x01\n\xc3\xa9"}, {"", "two"}}), Text()),
              ElementsAre(R"({"text":"one"})", "{}", "{\"text\":\"a\\\\\\\"b\\u0001\\n\xc3\xa9\"}",
                          "{}", R"({"text":"two"})"));
  EXPECT_TRUE(Read(TextParquet({}), Text())->empty());
  EXPECT_TRUE(Read(TextParquet({{}}), Text())->empty());
}

TEST_F(ParquetRowsTest, RowGroupsAreSkippedAsAWhole) {
  const std::string file = TextParquet({{"a", "b"}, {"c"}, {"d", "e"}});
  EXPECT_EQ(Read(file, Text(), 1)->size(), 5U);
  EXPECT_EQ(skipped_, 0);
  EXPECT_THAT(*Read(file, Text(), 4), ElementsAre(R"({"text":"d"})", R"({"text":"e"})"));
  EXPECT_EQ(skipped_, 3);
  EXPECT_TRUE(Read(file, Text(), 5)->empty());
}

TEST_F(ParquetRowsTest, ListsOfStructsAreAssembledFromPagesOfBothVersions) {
  const std::string file = ParquetBytes(ChatNodes(), 1, {ChatGroup()});
  EXPECT_THAT(*Read(file, {{{"messages", {"role", "content"}}}, ""}),
              ElementsAre(R"({"messages":[{"role":"user","content":"Hi \"you\"\n"},)"
                          R"({"role":"assistant"}]})",
                          R"({"messages":[]})", "{}"));
  EXPECT_THAT(*Read(file, {{{"messages", {"role"}}}, ""}),
              ElementsAre(R"({"messages":[{"role":"user"},{"role":"assistant"}]})",
                          R"({"messages":[]})", "{}"));
}

TEST_F(ParquetRowsTest, AMemberThatMayBeMissingIsReadWhereItIsThere) {
  const std::string file = ParquetBytes(ChatNodes(), 1, {ChatGroup()});
  const absl::StatusOr<Rows> both = Read(file, {{{"messages", {"role", "content"}}}, ""});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(*Read(file, {{{"messages", {"role"}, {"calls", "content"}}}, ""}), *both);
  EXPECT_NE(*Read(file, {{{"messages", {"role"}, {"calls"}}}, ""}), *both);
}

TEST_F(ParquetRowsTest, ListsOfOlderWritersAreAssembled) {
  // Two levels: the repeated node is the element.
  const std::string two = ParquetBytes(
      {ListNode("x", 0), TextNode("array", 2)}, 1,
      {{2, {{3, DataPage(3, {{0, 1, 0}, {1, 1, 0}}, Encoding::kPlain, PlainTexts({"a", "b"}))}}}});
  EXPECT_THAT(*Read(two, {{{"x", {}}}, ""}), ElementsAre(R"({"x":["a","b"]})", R"({"x":[]})"));
  // A struct of one member around the element is a struct if its name says so.
  const auto tuple = [](const std::string& name) {
    return ParquetBytes({ListNode("x", 0), GroupNode(name, 2, 1), TextNode("m", 0)}, 1,
                        {{1, {{1, DataPage(1, {{0}, {1}}, Encoding::kPlain, PlainTexts({"a"}))}}}});
  };
  EXPECT_THAT(*Read(tuple("x_tuple"), {{{"x", {}}}, ""}), ElementsAre(R"({"x":[{"m":"a"}]})"));
  EXPECT_THAT(*Read(tuple("list"), {{{"x", {}}}, ""}), ElementsAre(R"({"x":["a"]})"));
  // A repeated column that no list is around.
  const std::string bare = ParquetBytes(
      {TextNode("x", 2)}, 1,
      {{2, {{3, DataPage(3, {{0, 1, 0}, {1, 1, 0}}, Encoding::kPlain, PlainTexts({"a", "b"}))}}}});
  EXPECT_THAT(*Read(bare, {{{"x", {}}}, ""}), ElementsAre(R"({"x":["a","b"]})", R"({"x":[]})"));
}

TEST_F(ParquetRowsTest, DictionariesServeAllPagesAndCodecsEach) {
  const std::string indices("\x01\x02\x01\x02\x00", 5);  // 1, 0.
  const std::string pages = DictionaryPage(2, PlainTexts({"zero", "one"})) +
                            DataPage(2, {{}, {1, 1}}, Encoding::kPlainDictionary, indices) +
                            DataPage(3, {{}, {1, 0, 1}}, Encoding::kRleDictionary, indices) +
                            DataPage(1, {{}, {1}}, Encoding::kPlain, PlainTexts({"plain"}));
  EXPECT_THAT(*Read(ParquetBytes({TextNode("text", 1)}, 1, {{6, {{6, pages}}}}), Text()),
              ElementsAre(R"({"text":"one"})", R"({"text":"zero"})", R"({"text":"one"})", "{}",
                          R"({"text":"zero"})", R"({"text":"plain"})"));
  const std::string texts = PlainTexts({"compressed"});
  for (const auto& [codec, stored] :
       {std::pair(Codec::kGzip, Gzip(texts)), std::pair(Codec::kZstd, Zstd(texts))}) {
    const std::string page = DataPageV2(2, {{}, {1, 0}}, Encoding::kPlain, texts.size(), stored);
    EXPECT_THAT(*Read(ParquetBytes({TextNode("text", 1)}, 1, {{2, {{2, page, codec}}}}), Text()),
                ElementsAre(R"({"text":"compressed"})", "{}"));
  }
}

// A codec may make some bytes of none.
TEST_F(ParquetRowsTest, PagesOfNullsAloneHaveNoValues) {
  const std::string page =
      DataPageV2(2, {{}, {0, 0}}, Encoding::kDeltaByteArray, 0, std::string(1, '\0'));
  EXPECT_THAT(
      *Read(ParquetBytes({TextNode("text", 1)}, 1, {{2, {{2, page, Codec::kSnappy}}}}), Text()),
      ElementsAre("{}", "{}"));
}

TEST_F(ParquetRowsTest, ColumnsThatWouldTakeTooMuchMemoryTogetherAreRefused) {
  std::vector<ThriftStruct> nodes = {GroupNode("text", 1, 257)};
  nodes.resize(258, TextNode("member", 1));
  EXPECT_THAT(Why(ParquetBytes(nodes, 1, {})),
              HasSubstr("hold more than 256 columns in all, such as \"text.member\""));
}

TEST_F(ParquetRowsTest, ADictionaryThatWouldTakeTooMuchMemoryIsRefused) {
  const std::string page = DictionaryPage(1, Gzip(PlainTexts({"text"})), size_t{64} << 20);
  EXPECT_THAT(Why(ParquetBytes({TextNode("text", 1)}, 1, {{1, {{1, page, Codec::kGzip}}}})),
              HasSubstr("its dictionary has 67108"));
}

TEST_F(ParquetRowsTest, ColumnsThatAreNotThereOrNoTextAreNamed) {
  EXPECT_THAT(Why(TextParquet({{"a"}}), {{{"body", {}}}, "; --text-key names another"}),
              HasSubstr("it has no column \"body\" (it has: text); --text-key names another"));
  const auto typed = [&](int type) {
    return ParquetBytes(
        {ThriftStruct().Int(1, type).Int(3, 0).Text(4, "text")}, 1,
        {{1, {{1, "page", Codec::kUncompressed, static_cast<PhysicalType>(type)}}}});
  };
  EXPECT_THAT(Why(typed(7)), HasSubstr("column \"text\" is of the type FIXED_LEN_BYTE_ARRAY"));
  EXPECT_THAT(Why(ParquetBytes({TextNode("text", 0), TextNode("text", 0)}, 2, {})),
              HasSubstr("two columns \"text\""));
  EXPECT_THAT(Why(ParquetBytes(ChatNodes(), 1, {ChatGroup()}), {{{"messages", {"from"}}}, ""}),
              AllOf(HasSubstr("\"messages.list.element\" has no member \"from\""),
                    HasSubstr("it has: role, content")));
  EXPECT_THAT(
      Why(ParquetBytes({TextNode("text", 0)}, 1, {{1, {{1, "page", static_cast<Codec>(4)}}}})),
      HasSubstr("column \"text\" of row group 0: it is compressed by BROTLI"));
}

// A table with some of a form's columns would give rows of which each error names too few.
TEST_F(ParquetRowsTest, ATableWithoutAWholeFormIsRefusedWithItsColumns) {
  const std::string page = DataPage(1, {}, Encoding::kPlain, PlainTexts({"a"}));
  const auto table = [&](const std::vector<std::string>& names) {
    std::vector<ThriftStruct> nodes;
    TestRowGroup group{1, {}};
    for (const std::string& name : names) {
      nodes.push_back(TextNode(name, 0));
      group.columns.push_back({1, page});
    }
    return ParquetBytes(nodes, static_cast<int>(names.size()), {group});
  };
  const RowColumns wanted{{{"messages", {}}, {"prompt", {}}, {"completion", {}}, {"input", {}}},
                          "; --prompt-key names another",
                          {{"messages"}, {"prompt", "completion"}}};
  EXPECT_THAT(Why(table({"question", "input"}), wanted),
              HasSubstr("it has no column \"messages\", nor \"prompt\" and \"completion\" (it has: "
                        "question, input); --prompt-key names another"));
  EXPECT_THAT(Why(table({"prompt", "answer"}), wanted), HasSubstr("(it has: prompt, answer)"));
  EXPECT_THAT(*Read(table({"completion", "id", "prompt"}), wanted),
              ElementsAre(R"({"completion":"a","prompt":"a"})"));
}

TEST_F(ParquetRowsTest, CutAndForeignFilesAreRefused) {
  const std::string whole = TextParquet({{"a", "b"}});
  EXPECT_THAT(Why("{\"text\": 1}"), HasSubstr("does not begin with PAR1"));
  EXPECT_THAT(Why(""), HasSubstr("does not begin with PAR1"));
  EXPECT_THAT(Why("PAR1PAR1"), HasSubstr("too few for a footer"));
  for (size_t length = 12; length < whole.size(); ++length) {
    EXPECT_THAT(Why(whole.substr(0, length)), HasSubstr("it is cut")) << length;
  }
  EXPECT_THAT(Why(whole.substr(0, whole.size() - 4) + "PARE"), HasSubstr("footer is encrypted"));
  const std::string head = whole.substr(0, whole.size() - 8);
  for (const size_t bytes : {size_t{0}, whole.size(), size_t{0xffffffff}}) {
    EXPECT_THAT(Why(head + FourBytes(bytes) + "PAR1"), HasSubstr("its footer has"));
  }
  EXPECT_THAT(Why(head + FourBytes(5) + "PAR1"), HasSubstr("footer at byte "));
}

TEST_F(ParquetRowsTest, EncryptedColumnsAreRefusedIfTheyAreWanted) {
  const std::string page = DataPage(1, {}, Encoding::kPlain, PlainTexts({"a"}));
  TestColumn secret{1, page};
  secret.is_encrypted = true;
  const std::string file =
      ParquetBytes({TextNode("text", 0), TextNode("secret", 0)}, 2, {{1, {{1, page}, secret}}});
  EXPECT_THAT(*Read(file, Text()), ElementsAre(R"({"text":"a"})"));
  EXPECT_THAT(Why(file, {{{"secret", {}}}, ""}),
              HasSubstr("row group 0: column \"secret\": it is encrypted"));
}

TEST_F(ParquetRowsTest, PlacesAndCountsThatCannotBeAreRefused) {
  const std::string page = DataPage(2, {{}, {1, 1}}, Encoding::kPlain, PlainTexts({"a", "b"}));
  const auto text = [](int64_t rows, const TestColumn& column) {
    return ParquetBytes({TextNode("text", 1)}, 1, {{rows, {column}}});
  };
  EXPECT_THAT(Why(text(3, {3, page})), HasSubstr("there is none, and 1 values of 3 are lacking"));
  EXPECT_THAT(Why(text(3, {2, page})), HasSubstr("has 2 values for 3 rows"));
  EXPECT_THAT(Why(text(1, {2, page})), HasSubstr("it has more rows than its row group"));
  EXPECT_THAT(Why(text(-1, {2, page})), HasSubstr("-1 rows"));
  EXPECT_THAT(Why(text(1, {1, page})), HasSubstr("it has 2 values, but its column has 1 more"));
  EXPECT_THAT(Why(text(2, {2, page.substr(0, page.size() - 1)})),
              AllOf(HasSubstr("column \"text\", page at byte 4: it has 18 bytes"),
                    HasSubstr("of which 17 are there")));
  EXPECT_THAT(Why(text(2, {2, ""})), HasSubstr("there is none"));
  EXPECT_THAT(Why(text(2, {2, "\x15"})), HasSubstr("its header ends behind 1 bytes"));
  EXPECT_THAT(Why(text(2, {2, std::string("\x15\x08\x15\x02\x15\x02\x00", 7)})),
              HasSubstr("no header of a page"));
  const std::string high = DataPage(2, {{}, {1, 2}}, Encoding::kPlain, PlainTexts({"a", "b"}));
  EXPECT_THAT(Why(text(2, {2, high})), HasSubstr("it has a level 2; want 0 to 1"));
  const std::string few = DataPage(2, {{}, {1}}, Encoding::kPlain, PlainTexts({"a", "b"}));
  EXPECT_THAT(Why(text(2, {2, few})), HasSubstr("its levels end too early"));
  ThriftStruct absurd;
  absurd.Int(1, 0).Int(2, int64_t{1} << 40).Int(3, 4).Struct(5, ThriftStruct().Int(1, 2));
  EXPECT_THAT(Why(text(2, {2, absurd.bytes() + "...."})),
              HasSubstr("its header gives it 1099511627776 decompressed bytes"));
}

TEST_F(ParquetRowsTest, DamagedPagesAreFoundByTheirChecksum) {
  const std::string body = PlainTexts({"damaged"});
  const auto file = [&](int64_t crc) {
    ThriftStruct header;
    header.Int(1, 0).Int(2, 11).Int(3, 11).Int(4, crc).Struct(
        5, ThriftStruct().Int(1, 1).Int(2, 0).Int(3, 3).Int(4, 3));
    return ParquetBytes({TextNode("text", 0)}, 1, {{1, {{1, header.bytes() + body}}}});
  };
  const auto crc =
      static_cast<int32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), 11));
  EXPECT_THAT(*Read(file(crc), Text()), ElementsAre(R"({"text":"damaged"})"));
  EXPECT_THAT(Why(file(crc ^ 1)), HasSubstr("its checksum is"));
}

TEST_F(ParquetRowsTest, ColumnsThatDisagreeAreRefused) {
  TestRowGroup group = ChatGroup();
  const std::string contents = PlainTexts({"a", "b", "c"});
  const auto with = [&](const TestLevels& levels) {
    const size_t count = levels.definitions.size();
    group.columns[1] = {static_cast<int64_t>(count),
                        DataPage(count, levels, Encoding::kPlain, contents)};
    return Why(ParquetBytes(ChatNodes(), 1, {group}), {{{"messages", {"role", "content"}}}, ""});
  };
  EXPECT_THAT(with({{0, 0, 0}, {4, 1, 0}}), HasSubstr("disagree on the length of a list"));
  EXPECT_THAT(with({{0, 1, 1, 0, 0}, {4, 4, 4, 1, 0}}), HasSubstr("the length of a list"));
  EXPECT_THAT(with({{0, 1, 0, 0}, {4, 4, 0, 0}}), HasSubstr("disagree on what is null"));
  EXPECT_THAT(with({{1, 1, 0, 0}, {4, 4, 1, 0}}), HasSubstr("a row begins inside a list"));
}

}  // namespace
}  // namespace dtrain::plan::parquet::parquet_rows_test
