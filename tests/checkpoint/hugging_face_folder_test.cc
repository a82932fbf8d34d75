// Model folders of other people: shards, links, and errors that name what is wrong.
#include "checkpoint/format/hugging_face_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "tests/checkpoint/testing.h"
#include "tests/testing/shortest.h"

namespace dtrain::checkpoint::hugging_face_folder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRefusalSeconds = 20;
#else
constexpr int kRefusalSeconds = 1;
#endif

class HuggingFaceFolderTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
  }
  // A file of one fp32 tensor of two elements.
  static std::string Weights(const std::string& tensor) {
    return File(
        absl::StrCat(R"({")", tensor, R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
        std::string("\0\0\0\0\0\0\x80\x3f", 8));
  }
  static std::string File(const std::string& header, const std::string& data) {
    std::string length(8, '\0');
    const uint64_t n = header.size();
    std::memcpy(length.data(), &n, 8);
    return length + header + data;
  }
  void WriteIndex(const std::string& map) {
    Write("model.safetensors.index.json", absl::StrCat(R"({"weight_map":)", map, "}"));
  }
  std::string Refused() {
    const auto folder = HuggingFaceFolder::Open(folder_);
    EXPECT_FALSE(folder.ok());
    EXPECT_EQ(ExitCodeFor(folder.status()), kExitUsage) << folder.status();
    return std::string(folder.status().message());
  }
  // The same, which comes so soon and is one line.
  std::string RefusedSoon() {
    std::string line;
    const absl::Duration limit = absl::Seconds(kRefusalSeconds);
    const absl::Duration shortest = testing::ShortestOf(10, limit, [&] {
      const int64_t begin = Clock::Real().MonotonicNanos();
      line = Refused();
      return absl::Nanoseconds(Clock::Real().MonotonicNanos() - begin);
    });
    EXPECT_LT(shortest, limit) << line;
    EXPECT_THAT(line, ::testing::Not(HasSubstr("\n")));
    return line;
  }

  const TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

TEST_F(HuggingFaceFolderTest, ShardsAreReadThroughTheirIndexAndThroughLinks) {
  Write("blob", Weights("b"));
  Write("model-00001-of-00002.safetensors", Weights("a"));
  fs::create_symlink(folder_ + "/blob", folder_ + "/model-00002-of-00002.safetensors");
  WriteIndex(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  const auto folder = HuggingFaceFolder::Open(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(folder->tensors().size(), 2U);
  float value = 0;
  ASSERT_TRUE(folder->Read("b", 4, absl::MakeSpan(reinterpret_cast<std::byte*>(&value), 4)).ok());
  EXPECT_EQ(value, 1.0F);
  std::array<std::byte, 8> more;
  EXPECT_TRUE(absl::IsOutOfRange(folder->Read("b", 4, absl::MakeSpan(more))));
  EXPECT_TRUE(absl::IsNotFound(folder->Read("c", 0, absl::MakeSpan(more))));
}

// The bytes behind a tensor in its file belong to another one.
TEST_F(HuggingFaceFolderTest, APartIsReadFromItsTensorAlone) {
  Write("model.safetensors", File(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                                  R"("b":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})",
                                  "abcdefghABCDEFGH"));
  const auto folder = HuggingFaceFolder::Open(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto read = [&](const char* name, uint64_t offset, size_t bytes) {
    std::string text(bytes, '-');
    const absl::Status status = folder->Read(
        name, offset, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), bytes));
    EXPECT_TRUE(status.ok() || absl::IsOutOfRange(status)) << status;
    return status.ok() ? text : "refused";
  };
  EXPECT_EQ(read("a", 0, 8), "abcdefgh");
  EXPECT_EQ(read("b", 2, 3), "CDE");
  EXPECT_EQ(read("a", 7, 1), "h");
  EXPECT_EQ(read("a", 8, 0), "");
  EXPECT_EQ(read("a", 7, 2), "refused");
  EXPECT_EQ(read("a", 0, 9), "refused");
  EXPECT_EQ(read("a", 9, 0), "refused");
  EXPECT_EQ(read("a", ~uint64_t{0}, 2), "refused");
}

TEST_F(HuggingFaceFolderTest, AFolderWithoutWeightsSaysWhatIsThere) {
  EXPECT_THAT(Refused(), HasSubstr("neither model.safetensors nor"));
  Write("pytorch_model.bin", "x");
  EXPECT_THAT(Refused(), AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("save_pretrained")));
  EXPECT_THAT(std::string(HuggingFaceFolder::Open(folder_ + "/none").status().message()),
              HasSubstr("is not a folder"));
}

TEST_F(HuggingFaceFolderTest, AnIndexThatIsWrongIsRefusedByName) {
  Write("model-1.safetensors", Weights("a"));
  Write("model-2.safetensors", Weights("b"));
  const std::pair<const char*, const char*> cases[] = {
      {R"({"a":"../model-1.safetensors"})", "\"../model-1.safetensors\""},
      {R"({"a":"/etc/passwd"})", "/etc/passwd"},
      {R"({"a":7})", "is said to be in 7"},
      {R"({"a":"model-3.safetensors"})", "model-3.safetensors"},
      {R"({"a":"model-2.safetensors","b":"model-2.safetensors"})", "tensor a is not in"},
      {R"({"a":"model-1.safetensors","c":"model-1.safetensors"})", "tensor c is not in"},
      {R"({"a":"model-1.bin"})", "\"model-1.bin\"; allowed: the name of a .safetensors file"},
      {R"({"a":".model-1.safetensors"})", "\".model-1.safetensors\""},
      {R"({"a":"model-1.safetensors\u0000.safetensors"})", "is said to be in"},
      {R"([])", "weight_map"},
  };
  for (const auto& [map, what] : cases) {
    WriteIndex(map);
    EXPECT_THAT(Refused(), HasSubstr(what)) << map;
  }
  Write("model-2.safetensors", Weights("a"));
  WriteIndex(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  EXPECT_THAT(Refused(), HasSubstr("tensor a is in two files"));
  for (const char* const index : {"[]", "7", "{}", "{\"weight_map\": 7}"}) {
    Write("model.safetensors.index.json", index);
    EXPECT_THAT(Refused(), HasSubstr("has no object \"weight_map\"")) << index;
  }
  Write("model.safetensors.index.json", "{\"weight_map\": {,}}");
  EXPECT_THAT(Refused(), HasSubstr("model.safetensors.index.json:1:"));
}

TEST_F(HuggingFaceFolderTest, AMaliciousHeaderGivesAnExactErrorBeforeMemoryIsTaken) {
  std::string huge(8, '\xff');
  huge[7] = '\0';
  const std::pair<std::string, const char*> cases[] = {
      {"abc", "header too small: the file has 3 bytes"},
      {huge + "{}", "header too large"},
      {File("{}", "").substr(0, 9), "invalid header length"},
      {File("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],"
            "\"data_offsets\":[0,8]}}",
            std::string(8, 'x')),
       "ValidationOverflow"},
      {File("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "xy"),
       "not fully covered"},
      {File(std::string(100, '{'), ""), "InvalidHeaderDeserialization"},
  };
  for (const auto& [content, what] : cases) {
    Write("model.safetensors", content);
    EXPECT_THAT(RefusedSoon(), AllOf(HasSubstr("model.safetensors"), HasSubstr(what)));
  }
  // The format's limit for one header is 100 MB, which 99 MB do not exceed; all headers of a folder
  // have a limit of their own.
  fs::remove(folder_ + "/model.safetensors");
  const std::string header = R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  Write("model-1.safetensors", File(header + std::string(99'000'000 - header.size(), ' '), ""));
  const uint64_t length = 99'000'000;
  Write("model-2.safetensors", std::string(reinterpret_cast<const char*>(&length), 8));
  fs::resize_file(folder_ + "/model-2.safetensors", 8 + length);
  WriteIndex(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  EXPECT_THAT(RefusedSoon(),
              AllOf(HasSubstr("model-2.safetensors"), HasSubstr("header too large")));
}

// Opens the folder in a child process and gives its exit code; 0: the folder was read. `bytes`: the
// most memory that this took beyond what the child began with.
int OpenInChild(const std::string& folder, const char* refusal, uint64_t& bytes) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t before = MemoryBytes("VmRSS:");
    const auto opened = HuggingFaceFolder::Open(folder);
    const uint64_t taken = MemoryBytes("VmHWM:") - before;
    const bool as_expected =
        refusal == nullptr ? opened.ok()
                           : opened.status().message().find(refusal) != absl::string_view::npos;
    const bool told = write(ends[1], &taken, sizeof(taken)) == sizeof(taken);
    _exit(as_expected && told ? 0 : 1);
  }
  close(ends[1]);
  EXPECT_EQ(read(ends[0], &bytes, sizeof(bytes)), static_cast<ssize_t>(sizeof(bytes)));
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// `begin`, `entry`(i) for i = 0, 1, ..., and `end`: as many entries as the format's limit allows,
// at most `count`, padded with spaces.
template <class Entry>
std::string LargestHeader(const std::string& begin, const std::string& end, size_t count,
                          Entry entry) {
  std::string header = begin;
  header.reserve(kSafetensorsHeaderBytesMax);
  for (size_t i = 0; i < count; ++i) {
    const std::string next = absl::StrCat(i == 0 ? "" : ",", entry(i));
    if (header.size() + next.size() + end.size() > kSafetensorsHeaderBytesMax) {
      break;
    }
    header += next;
  }
  header += end;
  header.resize(kSafetensorsHeaderBytesMax, ' ');
  return header;
}

std::string Long(char c) { return std::string(kSafetensorsHeaderBytesMax - 16, c); }

// 512 MiB: the text (100 MB), a million entries of 104 bytes in a list of 2^20 (109), their shapes
// (32) and names (64), the set that finds a name twice (64 for names of its own, 70 for 2^21
// places) and half of the list once more while it is sorted (52) are 491 MB; the allocator takes
// the rest. Text and set are freed before the folder makes its indices of views.
TEST_F(HuggingFaceFolderTest, TheLargestHeaderTakesBoundedMemoryWhateverFillsIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is not what is measured";
#endif
  constexpr uint64_t kBytesMax = 512 << 20;
  constexpr size_t kAll = ~size_t{0};
  const auto tensor = [](size_t i, size_t width) {
    return absl::StrCat("\"", std::string(width - std::min(width, absl::StrCat(i).size()), 'n'), i,
                        R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
  };
  const auto tiny = [&](size_t i) { return tensor(i, 1); };
  const auto named = [&](size_t i) { return tensor(i, 48); };
  const auto pair = [](size_t i) { return absl::StrCat("\"", i, "\":\"\""); };
  const struct {
    const char* what;
    const char* refusal;  // The expected error; null: the folder is read.
    std::function<std::string()> header;
  } cases[] = {
      {"a million tensors with long names", nullptr,
       [&] { return LargestHeader("{", "}", kSafetensorsTensorsMax, named); }},
      {"tiny tensors", "too many tensors: 1000000 are allowed",
       [&] { return LargestHeader("{", "}", kAll, tiny); }},
      {"tiny metadata", "too many keys of metadata: 10000 are allowed",
       [&] { return LargestHeader(R"({"__metadata__":{)", "}}", kAll, pair); }},
      {"a shape", "tensor `a` has too many dimensions: 64 are allowed",
       [&] {
         return LargestHeader(R"({"a":{"dtype":"U8","shape":[)", R"(],"data_offsets":[0,0]}})",
                              kAll, [](size_t) { return "0"; });
       }},
      {"one name", "a name or value is too long: 16777216 bytes are allowed",
       [&] { return LargestHeader("{\"", "\":1}", 1, [](size_t) { return Long('n'); }); }},
      {"one number", "a name or value is too long: 16777216 bytes are allowed",
       [&] { return LargestHeader("{\"a\":", "}", 1, [](size_t) { return Long('1'); }); }},
  };
  for (const auto& [what, refusal, header] : cases) {
    SCOPED_TRACE(what);
    Write("model.safetensors", File(header(), ""));
    uint64_t bytes = 0;
    EXPECT_EQ(OpenInChild(folder_, refusal, bytes), 0);
    EXPECT_LE(bytes, kBytesMax);
    EXPECT_GE(bytes, kSafetensorsHeaderBytesMax * 9 / 10) << "the header was not read at all";
  }
}

TEST_F(HuggingFaceFolderTest, TensorsAreCountedOverAllFilesOfAFolder) {
  const auto half = [&](const std::string& prefix) {
    std::string header = "{";
    for (size_t i = 0; i <= kSafetensorsTensorsMax / 2; ++i) {
      absl::StrAppend(&header, i == 0 ? "" : ",", "\"", prefix, i,
                      R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})");
    }
    return File(header + "}", "");
  };
  Write("model-1.safetensors", half("a"));
  Write("model-2.safetensors", half("b"));
  WriteIndex(R"({"a0":"model-1.safetensors","b0":"model-2.safetensors"})");
  EXPECT_THAT(Refused(), AllOf(HasSubstr("model-2.safetensors"),
                               HasSubstr("too many tensors in the folder: 1000000 are allowed")));
}

TEST_F(HuggingFaceFolderTest, ConfigJsonIsReadFromAFolderOrAFile) {
  Write("config.json", R"({"model_type":"llama"})");
  EXPECT_EQ(ReadModelJson(folder_)->at("model_type"), "llama");
  EXPECT_EQ(ReadModelJson(folder_ + "/config.json")->at("model_type"), "llama");
  EXPECT_THAT(std::string(ReadModelJson(folder_ + "/none").status().message()), HasSubstr("/none"));
  Write("config.json", "7");
  EXPECT_EQ(*ReadModelJson(folder_), 7) << "a file of one byte";
}

}  // namespace
}  // namespace dtrain::checkpoint::hugging_face_folder_test
