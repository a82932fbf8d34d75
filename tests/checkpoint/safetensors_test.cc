// safetensors: the strict parser case by case, and files that are written and read back.
#include "checkpoint/format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "checkpoint/storage/faulty_file_system.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::safetensors_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<SafetensorsHeader> Parse(const std::string& json, uint64_t data_bytes) {
  return ParseSafetensorsHeader(json, 8 + json.size() + data_bytes);
}

std::string One(absl::string_view dtype, absl::string_view shape, absl::string_view offsets) {
  return absl::StrCat(R"({"a":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                      offsets, "}}");
}

TEST(SafetensorsHeaderTest, LegalHeadersAreRead) {
  const auto header = Parse(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]},)"
      R"("z":{"dtype":"I64","shape":[0,3],"data_offsets":[8,8]},)"
      R"("a":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]}}   )",
      8);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_THAT(header->tensors[0].shape, ElementsAre(2, 1));
  EXPECT_TRUE(Parse("{}", 0).ok());
  EXPECT_TRUE(Parse(One("F4", "[2]", "[0,1]"), 1).ok());
  EXPECT_TRUE(Parse(One("F6_E2M3", "[4]", "[0,3]"), 3).ok());
  EXPECT_TRUE(Parse("{}\n\t ", 0).ok()) << "trailing white space is accepted, as by the reference";
}

TEST(SafetensorsHeaderTest, AnUnknownKeyIsAWarning) {
  const auto header = Parse(R"({"a":{"dtype":"U8","extra":{"x":[1,{"y":null}]},"shape":[1],)"
                            R"("data_offsets":[0,1]}})",
                            1);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_THAT(header->warnings, ElementsAre(HasSubstr("unknown key `extra`")));
}

TEST(SafetensorsHeaderTest, IllegalHeadersAreRefusedInTheReferencesWords) {
  const std::string a8 = R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  const struct {
    std::string json;
    uint64_t data_bytes;
    std::string message;
  } kCases[] = {
      {"", 0, "InvalidHeaderStart"},
      {" {}", 0, "InvalidHeaderStart"},
      {"[]", 0, "InvalidHeaderStart"},
      {"{", 0, "InvalidHeaderDeserialization"},
      {"{}{}", 0, "InvalidHeaderDeserialization"},
      {"{\"\xff\":{}}", 0, "InvalidHeaderDeserialization"},
      {"{/*x*/}", 0, "InvalidHeaderDeserialization"},
      {"{\"a\":1}", 0, "out of place"},
      {"{\"a\":null}", 0, "out of place"},
      {"{\"a\":[]}", 0, "out of place"},
      {"{\"a\":{}}", 0, "lacks one of"},
      {"{\"__metadata__\":{\"k\":1}}", 0, "out of place"},
      {"{\"__metadata__\":{\"k\":{}}}", 0, "out of place"},
      {"{\"__metadata__\":{\"k\":\"a\",\"k\":\"b\"}}", 0, "appears twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "appears twice"},
      {"{" + a8 + "," + a8 + "}", 8, "key `a` appears twice"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8, "dtype twice"},
      {One("F31", "[1]", "[0,4]"), 4, "unknown dtype"},
      {One("U8", "[-1]", "[0,1]"), 1, "out of place"},
      {One("U8", "[1.0]", "[0,1]"), 1, "out of place"},
      {One("U8", "8", "[0,8]"), 8, "out of place"},
      {One("U8", "[[8]]", "[0,8]"), 8, "out of place"},
      {One("U8", "[8]", "[0]"), 8, "needs two data_offsets"},
      {One("U8", "[8]", "[0,8,8]"), 8, "more than two"},
      {One("U8", "[8]", "[1,9]"), 9, "invalid offset for tensor `a`"},
      {One("U8", "[8]", "[8,0]"), 8, "invalid offset for tensor `a`"},
      {"{" + a8 + R"(,"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})", 12,
       "invalid offset for tensor `b`"},
      {"{" + a8 + R"(,"b":{"dtype":"U8","shape":[8],"data_offsets":[9,17]}})", 17,
       "invalid offset for tensor `b`"},
      {One("F32", "[3]", "[0,8]"), 8, "invalid shape, data type, or offset"},
      {One("U8", "[8]", "[0,8]"), 9, "incomplete metadata, file not fully covered"},
      {One("U8", "[8]", "[0,8]"), 7, "incomplete metadata, file not fully covered"},
      {One("U8", "[4294967296,4294967296]", "[0,0]"), 0, "ValidationOverflow"},
      {One("F64", "[4611686018427387904]", "[0,0]"), 0, "ValidationOverflow"},
      {One("U8", "[18446744073709551616]", "[0,0]"), 0, "out of place"},
      {One("F4", "[3]", "[0,1]"), 1, "MisalignedSlice"},
      {R"({"a":{"x":)" + std::string(100, '[') + std::string(100, ']') + "}}", 0, "nested deeper"},
  };
  for (const auto& test : kCases) {
    SCOPED_TRACE(test.json);
    const auto header = Parse(test.json, test.data_bytes);
    ASSERT_FALSE(header.ok());
    EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(header.status().message()),
                AllOf(HasSubstr(test.message), Not(HasSubstr("json.exception"))));
  }
}

// A name may hold escaped quotes and end with an escaped backslash; what follows is no part of it.
TEST(SafetensorsHeaderTest, AnEscapeNeitherEndsATextNorHidesItsEnd) {
  std::string quotes;
  while (quotes.size() <= kSafetensorsTextBytesMax) {
    quotes += "\\\"";
  }
  const auto long_name = Parse("{\"" + quotes + "\":1}", 0);
  EXPECT_THAT(std::string(long_name.status().message()), HasSubstr("a name or value is too long"));
  const std::string spaces(kSafetensorsTextBytesMax + 1, ' ');
  const auto short_name = Parse("{\"__metadata__\":{\"k\\\\\":\"v\"}" + spaces + "}", 0);
  ASSERT_TRUE(short_name.ok()) << short_name.status();
  EXPECT_EQ(short_name->metadata.at("k\\"), "v");
}

TEST(SafetensorsHeaderTest, ATextOfTheGreatestLengthIsRead) {
  const std::string name(kSafetensorsTextBytesMax, 'n');
  EXPECT_TRUE(Parse("{\"__metadata__\":{\"" + name + "\":\"\"}}", 0).ok());
  EXPECT_FALSE(Parse("{\"__metadata__\":{\"" + name + "n\":\"\"}}", 0).ok());
}

// One value of an unknown key after the other, nested to the greatest depth.
TEST(SafetensorsHeaderTest, UnknownKeysAreSkippedToTheirEnd) {
  const std::string deep = std::string(63, '[') + "{}" + std::string(63, ']');
  const auto header =
      Parse(R"({"a":{"x":)" + deep + R"(,"y":{"p":[{}],"q":{}},"dtype":"U8","z":-1,)" +
                R"("shape":[1],"w":[],"data_offsets":[0,1],"v":1.5}})",
            1);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors.size(), 1U);
  EXPECT_THAT(header->warnings, ElementsAre(HasSubstr("unknown key `x`"))) << "one is enough";
  const std::string deeper = std::string(64, '[') + "{}" + std::string(64, ']');
  EXPECT_THAT(std::string(Parse(R"({"a":{"x":)" + deeper + "}}", 0).status().message()),
              HasSubstr("nested deeper than 64"));
}

// The types of the format, with the bits of an element.
TEST(SafetensorsHeaderTest, EachTypeTakesItsBits) {
  const struct {
    uint64_t bits;
    std::vector<const char*> types;
  } kSizes[] = {
      {4, {"F4"}},
      {6, {"F6_E2M3", "F6_E3M2"}},
      {8, {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}},
      {16, {"I16", "U16", "F16", "BF16"}},
      {32, {"I32", "U32", "F32"}},
      {64, {"C64", "F64", "I64", "U64"}}};
  for (const auto& [bits, types] : kSizes) {
    for (const char* const type : types) {
      EXPECT_EQ(*TensorBytes(type, {2, 4}), bits) << type;
      EXPECT_EQ(*TensorBytes(type, {0}), 0U) << type;
      EXPECT_EQ(TensorBytes(type, {1}).ok(), bits >= 8) << type << ": half a byte is none";
    }
  }
  EXPECT_EQ(*TensorBytes("F32", {}), 4U) << "a scalar";
}

TEST(SafetensorsHeaderTest, TheLengthIsCheckedBeforeItIsUsed) {
  const auto length = [](uint64_t n, uint64_t file_bytes) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &n, 8);
    return std::string(ParseSafetensorsLength(text, file_bytes).status().message());
  };
  EXPECT_EQ(length(2, 10), "");
  EXPECT_THAT(std::string(ParseSafetensorsLength("1234567", 7).status().message()),
              HasSubstr("header too small"));
  EXPECT_THAT(length(kSafetensorsHeaderBytesMax + 1, UINT64_MAX), HasSubstr("header too large"));
  EXPECT_THAT(length(UINT64_MAX, 100), HasSubstr("header too large"));
  EXPECT_THAT(length(93, 100), HasSubstr("invalid header length"));
}

TEST(SafetensorsHeaderTest, AFileHasRoomForItsHeader) {
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 10).ok());
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{7}, uint64_t{8}, uint64_t{9}}) {
    EXPECT_THAT(std::string(ParseSafetensorsHeader("{}", bytes).status().message()),
                HasSubstr("the file is shorter than its header"))
        << bytes;
  }
}

TEST(SafetensorsHeaderTest, AHundredThousandNamesAreRead) {
  std::string json = "{";
  for (int i = 0; i < 100'000; ++i) {
    absl::StrAppend(&json, i == 0 ? "" : ",", "\"t", i,
                    R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
  }
  const auto header = Parse(json + "}", 0);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->tensors.size(), 100'000U);
}

TEST(SafetensorsHeaderTest, TheEncoderSortsByTypeThenNameAndPads) {
  std::vector<TensorEntry> tensors = {
      {"b", "BF16", {1}, 0, 0}, {"a", "BF16", {2}, 0, 0}, {"z", "F32", {}, 0, 0}};
  const auto text = EncodeSafetensorsHeader({{"format", "pt"}}, tensors);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(
      text->substr(8),
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},)"
      R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[8,10]}}       )");
  EXPECT_EQ(text->size() % 8, 0U);
}

TEST(SafetensorsHeaderTest, TheEncoderRefusesWhatNobodyCouldRead) {
  const auto message = [](std::vector<TensorEntry> tensors) {
    return std::string(EncodeSafetensorsHeader({}, tensors).status().message());
  };
  EXPECT_THAT(message({{"a", "U8", {1}, 0, 0}, {"a", "U8", {1}, 0, 0}}), HasSubstr("given twice"));
  EXPECT_THAT(message({{"__metadata__", "U8", {1}, 0, 0}}), HasSubstr("reserved"));
  EXPECT_THAT(message({{"\xff", "U8", {1}, 0, 0}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(message({{"a", "X", {1}, 0, 0}}), HasSubstr("unknown dtype"));
  EXPECT_THAT(message({{"a", "U8", {1ULL << 63, 2}, 0, 0}}), HasSubstr("overflow"));
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  MemoryFileSystem memory_;
  const std::unique_ptr<Storage> storage_ = MakePosixStorage(memory_);
};

TEST_F(SafetensorsFileTest, WrittenTensorsAreReadBackAndTheChecksumIsOfTheFile) {
  std::vector<std::byte> data(3 * kBlockBytes / 2);
  SplitMix64 random(7);
  for (std::byte& byte : data) {
    byte = static_cast<std::byte>(random.Next());
  }
  const std::vector<TensorSpec> specs = {
      {"tail", DType::kUInt8, {5}},
      {"large", DType::kFloat32, {static_cast<int64_t>(data.size() / 4)}}};
  const auto written = WriteSafetensors(
      *storage_, "f", specs,
      [&](size_t i, ByteSink sink) -> absl::Status {
        const auto all = absl::MakeConstSpan(data);
        if (i == 0) {
          return sink(all.subspan(0, 5));
        }
        DT_RETURN_IF_ERROR(sink(all.subspan(0, 1000)));  // In parts.
        return sink(all.subspan(1000));
      },
      Access::kEveryone);
  ASSERT_TRUE(written.ok()) << written.status();
  const std::string file = ReadAll(*storage_, "f");
  FileChecksummer whole;
  whole.Add(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(file.data()), file.size()));
  EXPECT_EQ(whole.Finish(), written->checksum);
  EXPECT_EQ(TextHash(file), written->checksum.xxh3_128);
  auto reader = SafetensorsReader::Open(*storage_->OpenFile("f"), "f");
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto entry = reader->Find("large");
  ASSERT_TRUE(entry.ok());
  std::vector<std::byte> back((*entry)->bytes());
  ASSERT_TRUE(reader->Read(**entry, absl::MakeSpan(back)).ok());
  EXPECT_EQ(back, data);
  EXPECT_EQ(reader->Find("other").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsFileTest, ASourceThatGivesTheWrongSizeIsNamedAndTheFileIsGone) {
  const std::byte byte{};
  const auto written = WriteSafetensors(
      *storage_, "f", {{"w", DType::kFloat32, {2}}},
      [&](size_t, ByteSink sink) { return sink(absl::MakeConstSpan(&byte, 1)); },
      Access::kEveryone);
  EXPECT_THAT(std::string(written.status().message()),
              HasSubstr("memory:/f: tensor w came with 1 bytes, its shape and dtype take 8"));
  EXPECT_FALSE(storage_->OpenFile("f").ok());
}

// The file system has no room for what it took.
TEST_F(SafetensorsFileTest, AFileThatCannotBeMadeDurableIsGone) {
  const std::byte byte{};
  int64_t calls = 0;
  for (const bool fails : {false, true}) {
    FaultyFileSystem files(
        memory_, fails ? FaultPlan{.at = calls, .kind = FaultKind::kNoSpace} : FaultPlan{});
    const auto storage = MakePosixStorage(files);
    auto pending = StartSafetensors(
        *storage, fails ? "g" : "f", {{"w", DType::kUInt8, {1}}},
        [&](size_t, ByteSink sink) { return sink(absl::MakeConstSpan(&byte, 1)); },
        Access::kEveryone);
    ASSERT_TRUE(pending.ok()) << pending.status();
    calls = files.calls();
    EXPECT_EQ(FinishFile(*storage, *pending).ok(), !fails);
    EXPECT_EQ(storage_->OpenFile(fails ? "g" : "f").ok(), !fails);
  }
}

TEST_F(SafetensorsFileTest, AShapeBelowZeroAndABufferOfAnotherSizeAreRefused) {
  const auto nothing = [](size_t, ByteSink sink) { return sink({}); };
  const auto written = WriteSafetensors(*storage_, "f", {{"w", DType::kFloat32, {2, -1}}}, nothing,
                                        Access::kEveryone);
  EXPECT_THAT(std::string(written.status().message()),
              HasSubstr("tensor w has the dimension -1; at least 0 is needed"));
  ASSERT_TRUE(
      WriteSafetensors(*storage_, "g", {{"w", DType::kFloat32, {2, 0}}}, nothing, Access::kEveryone)
          .ok());
  auto reader = SafetensorsReader::Open(*storage_->OpenFile("g"), "g");
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<std::byte> one(1);
  EXPECT_THAT(std::string(reader->Read(**reader->Find("w"), absl::MakeSpan(one)).message()),
              HasSubstr("g: tensor w has 0 bytes; the buffer has 1"));
}

TEST(ChecksumTest, KnownValues) {
  // The published XXH3-128 of the empty text.
  EXPECT_EQ(TextHash(""), "99aa06d3014798d86001c324468d497f");
  FileChecksummer empty;
  EXPECT_TRUE(empty.Finish().crc32c.empty());
}

}  // namespace
}  // namespace dtrain::checkpoint::safetensors_test
