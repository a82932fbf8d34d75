// The decoders of Parquet's parts on bytes from the format's documents and on damaged ones.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/parquet/bit_runs.h"
#include "runtime/plan/data/parquet/block_codecs.h"
#include "runtime/plan/data/parquet/decompress.h"
#include "runtime/plan/data/parquet/thrift_reader.h"
#include "runtime/plan/data/parquet/values.h"
#include "runtime/plan/data/parquet/varint.h"
#include "tests/runtime/plan/data/parquet/parquet_bytes.h"
#include "tests/runtime/plan/data/text/compressed.h"

namespace dtrain::plan::parquet::parquet_decoders_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <size_t kSize>
std::string Bytes(const char (&text)[kSize]) {
  return std::string(text, kSize - 1);
}

TEST(ThriftReaderTest, MembersAreReadAndUnknownOnesSkipped) {
  // 1: i32 -3; 3: {1: "ab"}; 4: [1, 2] of i16; 5: true; 6: {7: 8} as a map; 40: double; 41: i8 -1.
  const std::string bytes = Bytes(
      "\x15\x05\x2c\x18\x02"
      "ab\x00\x19\x24\x02\x04\x11\x1b\x01\x33\x07\x08\x07\x50"
      "\x01\x02\x03\x04\x05\x06\x07\x08\x13\xff\x00");
  ThriftReader reader(bytes);
  std::vector<int64_t> seen;
  std::string text;
  ASSERT_TRUE(reader
                  .Struct([&](const ThriftField& field) -> absl::Status {
                    if (field.id == 1 || field.id == 41) {
                      seen.push_back(*reader.Integer(field));
                    } else if (field.id == 3) {
                      return reader.StructOf(field, [&](const ThriftField& member) {
                        text = std::string(*reader.Binary(member));
                        return absl::OkStatus();
                      });
                    } else if (field.id == 5) {
                      seen.push_back(*reader.Boolean(field) ? 100 : 0);
                    }
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_THAT(seen, ElementsAre(-3, 100, -1));
  EXPECT_EQ(text, "ab");
  EXPECT_EQ(reader.position(), bytes.size());
}

TEST(ThriftReaderTest, CutAndAbsurdBytesAreErrors) {
  const auto read = [](const std::string& bytes) {
    ThriftReader reader(bytes);
    return reader.Struct([](const ThriftField& /*field*/) { return absl::OkStatus(); });
  };
  const std::string whole = ThriftStruct().Int(1, 300).Text(2, "text").bytes();
  EXPECT_TRUE(read(whole).ok());
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(read(whole.substr(0, length)).code(), absl::StatusCode::kOutOfRange) << length;
  }
  EXPECT_EQ(read(Bytes("\x19\xf6\xff\xff\xff\xff\x0f")).code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(read(Bytes("\x16\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")).message(),
              HasSubstr("more than 64 bits"));
  EXPECT_THAT(read(Bytes("\x1d\x00")).message(), HasSubstr("unknown type"));
  EXPECT_THAT(read(std::string(100, '\x1c')).message(), HasSubstr("nested too deep"));
}

TEST(TakeVarintTest, NumbersOfUpToSoManyBitsAreTaken) {
  const auto take = [](const std::string& bytes, int bits) {
    absl::string_view left = bytes;
    const absl::StatusOr<uint64_t> value = TakeVarint(&left, bits);
    EXPECT_TRUE(!value.ok() || left == "rest") << left;
    return value;
  };
  EXPECT_EQ(*take(Bytes("\x00rest"), 64), 0U);
  EXPECT_EQ(*take(Bytes("\xac\x02rest"), 64), 300U);
  EXPECT_EQ(*take(Bytes("\xff\xff\xff\xff\x0frest"), 32), 0xffffffffU);
  EXPECT_EQ(*take(Bytes("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01rest"), 64), ~uint64_t{0});
  EXPECT_THAT(take(Bytes("\xff\xff\xff\xff\x1frest"), 32).status().message(),
              HasSubstr("more than 32 bits"));
  EXPECT_THAT(take(Bytes("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02rest"), 64).status().message(),
              HasSubstr("more than 64 bits"));
  EXPECT_EQ(take(Bytes("\x80\x80"), 64).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(take("", 64).status().code(), absl::StatusCode::kOutOfRange);
}

std::vector<uint32_t> AllOf(RunDecoder decoder) {
  std::vector<uint32_t> values;
  for (auto next = decoder.Next(); next.ok(); next = decoder.Next()) {
    values.push_back(*next);
  }
  return values;
}

TEST(RunDecoderTest, RunsOfBothKindsFollowEachOther) {
  // The format's example: 0 to 7 in 3 bits each are 0x88 0xc6 0xfa.
  EXPECT_THAT(AllOf({Bytes("\x03\x88\xc6\xfa\x0a\x05"), 3}),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 5, 5, 5, 5, 5));
  EXPECT_THAT(AllOf({Bytes("\x04\x34\x12\x02\xff\xff"), 16}), ElementsAre(0x1234, 0x1234, 0xffff));
  EXPECT_EQ(AllOf({Bytes("\x14"), 0}).size(), 10U);  // No bits: a dictionary of one value.
  EXPECT_EQ(AllOf({Bytes("\x05\x0f\xf0"), 1}).size(), 16U);
  EXPECT_EQ(AllOf({Bytes("\x7f\x01"), 1}).size(), 8U);  // It says 504 and has 8.
  EXPECT_TRUE(AllOf({Bytes("\x04\x34"), 16}).empty());
  EXPECT_TRUE(AllOf({"", 1}).empty());
}

TEST(RunDecoderTest, NumbersOfAnyWidthAreReadToTheLastBit) {
  std::string bytes;
  for (int i = 0; i < 40; ++i) {
    bytes.push_back(static_cast<char>(i * 37 + 11));
  }
  for (int width = 0; width <= 64; ++width) {
    for (uint64_t bit = 0; bit + static_cast<uint64_t>(width) <= 8 * bytes.size(); bit += 13) {
      uint64_t expected = 0;
      for (int i = 0; i < width; ++i) {
        const uint64_t at = bit + static_cast<uint64_t>(i);
        expected |= uint64_t{(static_cast<uint8_t>(bytes[at / 8]) >> (at % 8)) & 1U} << i;
      }
      ASSERT_EQ(BitsAt(bytes, bit, width), expected) << width << " bits at " << bit;
    }
  }
}

std::vector<int64_t> Differences(const std::string& bytes, std::string* behind = nullptr) {
  absl::StatusOr<DeltaDecoder> decoder = DeltaDecoder::Open(bytes);
  std::vector<int64_t> values;
  if (!decoder.ok()) {
    return values;
  }
  if (behind != nullptr) {
    *behind = std::string(decoder->Behind().value_or("cut"));
  }
  for (auto next = decoder->Next(); next.ok(); next = decoder->Next()) {
    values.push_back(*next);
  }
  return values;
}

// 5 values of which the first is `first` and each is one more than the one before it.
std::string CountingUp(int64_t first) {
  return Bytes("\x08\x01\x05") + ZigZag(first) + ZigZag(1) + '\0';
}

TEST(DeltaDecoderTest, TheFormatsExamplesAreRead) {
  std::string behind;
  EXPECT_THAT(Differences(CountingUp(1) + "rest", &behind), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(behind, "rest");
  // 7 5 3 1 2 3 4 5: differences -2 -2 -2 1 1 1 1, less the least of them, in 2 bits each.
  EXPECT_THAT(Differences(Bytes("\x08\x01\x08\x0e\x03\x02\xc0\x3f...."), &behind),
              ElementsAre(7, 5, 3, 1, 2, 3, 4, 5));
  EXPECT_EQ(behind, "....");
  // One value has no block, and none has only the header.
  EXPECT_THAT(Differences(Bytes("\x80\x01\x04\x01\x13rest"), &behind), ElementsAre(-10));
  EXPECT_EQ(behind, "rest");
  EXPECT_TRUE(Differences(Bytes("\x80\x01\x04\x00\x00"), &behind).empty());
}

TEST(DeltaDecoderTest, DamagedBlocksAreErrors) {
  EXPECT_FALSE(DeltaDecoder::Open(Bytes("\x00\x01\x05\x02")).ok());
  EXPECT_FALSE(DeltaDecoder::Open(Bytes("\x08\x03\x05\x02")).ok());
  EXPECT_FALSE(DeltaDecoder::Open(Bytes("\x08\x01")).ok());
  const auto absurd = DeltaDecoder::Open(Bytes("\x08\x01\xff\xff\xff\xff\x0f\x02\x02\x00"));
  ASSERT_TRUE(absurd.ok());  // It has 9 of the 4 billion values that it tells of.
  EXPECT_FALSE(absurd->Behind().ok());
  EXPECT_EQ(Differences(Bytes("\x08\x01\x05\x02\x02\x41")).size(), 1U);  // 65 bits.
}

absl::StatusOr<std::vector<std::string>> Texts(Encoding encoding, const std::string& bytes,
                                               const std::vector<Value>* dictionary = nullptr) {
  auto decoder = MakeValueDecoder(PhysicalType::kByteArray, encoding, bytes, dictionary);
  if (!decoder.ok()) {
    return decoder.status();
  }
  std::vector<std::string> texts;
  Value value;
  while ((*decoder)->Next(&value).ok()) {
    texts.emplace_back(value.bytes);
  }
  return texts;
}

// Lengths that are all in the header and a block of two bits: at most 3 apart upwards.
std::string Lengths(const std::vector<int>& lengths) {
  std::string bytes = Bytes("\x08\x01") + Varint(lengths.size()) + ZigZag(lengths[0]);
  bytes += ZigZag(-8);
  bytes.push_back(8);  // One byte each.
  for (size_t i = 1; i < 9; ++i) {
    bytes.push_back(static_cast<char>(i < lengths.size() ? lengths[i] - lengths[i - 1] + 8 : 0));
  }
  return bytes;
}

TEST(ValuesTest, TheFormatsExamplesOfTextsAreRead) {
  EXPECT_THAT(*Texts(Encoding::kPlain, PlainTexts({"a", "", "longer"})),
              ElementsAre("a", "", "longer"));
  EXPECT_THAT(
      *Texts(Encoding::kDeltaLengthByteArray, Lengths({5, 5, 6, 6}) + "HelloWorldFoobarABCDEF"),
      ElementsAre("Hello", "World", "Foobar", "ABCDEF"));
  EXPECT_THAT(*Texts(Encoding::kDeltaByteArray,
                     Lengths({0, 2, 0, 3}) + Lengths({4, 2, 6, 5}) + "axislebabbleyhood"),
              ElementsAre("axis", "axle", "babble", "babyhood"));
  const std::string stored = PlainTexts({"zero", "one"});
  const auto dictionary = DictionaryValues(PhysicalType::kByteArray, stored, 2);
  ASSERT_TRUE(dictionary.ok());
  EXPECT_THAT(*Texts(Encoding::kRleDictionary, Bytes("\x01\x06\x01\x02\x00"), &*dictionary),
              ElementsAre("one", "one", "one", "zero"));
}

TEST(ValuesTest, NumbersAndTruthValuesAreRead) {
  const auto integers = [](PhysicalType type, Encoding encoding, const std::string& bytes) {
    auto decoder = MakeValueDecoder(type, encoding, bytes, nullptr);
    std::vector<int64_t> values;
    Value value;
    while (decoder.ok() && (*decoder)->Next(&value).ok() && values.size() < 9) {
      values.push_back(value.integer);
    }
    return values;
  };
  EXPECT_THAT(integers(PhysicalType::kInt32, Encoding::kPlain, Bytes("\xfe\xff\xff\xff\x01\0\0\0")),
              ElementsAre(-2, 1));
  EXPECT_THAT(integers(PhysicalType::kInt64, Encoding::kDeltaBinaryPacked, CountingUp(-3)),
              ElementsAre(-3, -2, -1, 0, 1));
  EXPECT_THAT(integers(PhysicalType::kBoolean, Encoding::kPlain, Bytes("\x05")),
              ElementsAre(1, 0, 1, 0, 0, 0, 0, 0));
  EXPECT_THAT(integers(PhysicalType::kBoolean, Encoding::kRle, Bytes("\x02\0\0\0\x06\x01")),
              ElementsAre(1, 1, 1));
}

TEST(ValuesTest, DamagedAndUnknownValuesAreNamed) {
  const auto why = [](Encoding encoding, const std::string& bytes) {
    auto decoder = MakeValueDecoder(PhysicalType::kByteArray, encoding, bytes, nullptr);
    Value value;
    const absl::Status status = decoder.ok() ? (*decoder)->Next(&value) : decoder.status();
    return std::string(status.message());
  };
  EXPECT_THAT(why(Encoding::kPlain, Bytes("\xff\xff\xff\xff...")),
              HasSubstr("a value of 4294967295 bytes begins 3 bytes before its end"));
  EXPECT_THAT(why(Encoding::kDeltaLengthByteArray, CountingUp(-1)),
              HasSubstr("a value of -1 bytes"));
  EXPECT_THAT(why(Encoding::kDeltaByteArray, Lengths({4, 2}) + Lengths({1, 1}) + "ab"),
              HasSubstr("shares 4 bytes with one of 0"));
  EXPECT_THAT(why(Encoding::kRleDictionary, "\x01"), HasSubstr("a dictionary that is not there"));
  EXPECT_THAT(why(static_cast<Encoding>(9), "..."),
              HasSubstr("BYTE_STREAM_SPLIT is not read for the type BYTE_ARRAY"));
  const std::vector<Value> none;
  EXPECT_EQ(Texts(Encoding::kRleDictionary, Bytes("\x01\x06\x01"), &none)->size(), 0U);
  EXPECT_FALSE(DictionaryValues(PhysicalType::kByteArray, "....", 1 << 30).ok());
}

TEST(BlockCodecsTest, LiteralsAndOverlappingCopiesAreMade) {
  std::string out;
  // "abcd", then 10 bytes from 4 before (a copy of kind 2), then 4 from 14 before (of kind 1).
  const std::string snappy = Bytes("\x12\x0c") + "abcd" + Bytes("\x26\x04\x00\x01\x0e");
  ASSERT_TRUE(DecompressSnappy(snappy, 18, &out).ok());
  EXPECT_EQ(out, "abcdabcdabcdababcd");
  std::string large(70, 'x');
  ASSERT_TRUE(DecompressSnappy(Bytes("\x46\xf0\x45") + large, 70, &out).ok());
  EXPECT_EQ(out, large);
  // The same in LZ4: a literal of 4, a copy of 10; the last sequence is a literal alone.
  ASSERT_TRUE(
      DecompressLz4(Bytes("\x46") + "abcd" + Bytes("\x04\x00\x40") + "last", 18, &out).ok());
  EXPECT_EQ(out, "abcdabcdabcdablast");
  // A literal of 15 + 255 + 0 bytes.
  large.assign(270, 'y');
  ASSERT_TRUE(DecompressLz4(Bytes("\xf0\xff\x00") + large, 270, &out).ok());
  EXPECT_EQ(out, large);
}

TEST(BlockCodecsTest, DamagedBlocksAreErrors) {
  std::string out;
  const auto snappy = [&out](const std::string& block, size_t bytes) {
    return std::string(DecompressSnappy(block, bytes, &out).message());
  };
  EXPECT_THAT(snappy("", 4), HasSubstr("ends inside its header"));
  EXPECT_THAT(snappy(Bytes("\x05\x0c") + "abcd", 4), HasSubstr("holds 5 bytes"));
  EXPECT_THAT(snappy(Bytes("\x04\x0c") + "abc", 4), HasSubstr("inside a literal"));
  EXPECT_THAT(snappy(Bytes("\x04\x08") + "abc", 4), HasSubstr("ends too early"));
  EXPECT_THAT(snappy(Bytes("\x08\x0c") + "abcd" + Bytes("\x01\x05"), 8),
              HasSubstr("before its beginning"));
  EXPECT_THAT(snappy(Bytes("\x06\x0c") + "abcd" + Bytes("\x01\x04"), 6), HasSubstr("more bytes"));
  EXPECT_THAT(snappy(Bytes("\x80\x80\x80\x80\x01....."), 1 << 28), HasSubstr("too short"));
  EXPECT_FALSE(DecompressLz4(Bytes("\x46") + "abcd" + Bytes("\x05\x00"), 14, &out).ok());
  EXPECT_FALSE(DecompressLz4(Bytes("\x46") + "abcd" + Bytes("\x04"), 14, &out).ok());
  EXPECT_FALSE(DecompressLz4(Bytes("\xf0\xff"), 600, &out).ok());
  EXPECT_FALSE(DecompressLz4("", 1 << 30, &out).ok());
}

TEST(DecompressTest, CodecsAreReadOrRefusedByName) {
  const std::string text(100000, 't');
  std::string out;
  for (const auto& [codec, stored] :
       {std::pair(Codec::kUncompressed, text), std::pair(Codec::kGzip, Gzip(text)),
        std::pair(Codec::kGzip, Gzip(text.substr(1)) + Gzip("t")),
        std::pair(Codec::kZstd, Zstd(text))}) {
    ASSERT_TRUE(Decompress(codec, stored, text.size(), &out).ok()) << CodecName(codec);
    EXPECT_EQ(out, text);
    const size_t half = stored.size() / 2;
    EXPECT_FALSE(Decompress(codec, stored.substr(0, half), text.size(), &out).ok());
    EXPECT_FALSE(Decompress(codec, stored, text.size() + 1, &out).ok()) << CodecName(codec);
  }
  EXPECT_THAT(CheckCodec(static_cast<Codec>(4)).message(),
              HasSubstr("compressed by BROTLI; allowed"));
  EXPECT_THAT(CheckCodec(static_cast<Codec>(77)).message(), HasSubstr("codec 77"));
}

}  // namespace
}  // namespace dtrain::plan::parquet::parquet_decoders_test
