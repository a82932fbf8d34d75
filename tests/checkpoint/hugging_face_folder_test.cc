// Model folders of other people: shards, links, and what is wrong with them, by name.
#include "checkpoint/hugging_face_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
      {R"([])", "weight_map"},
  };
  for (const auto& [map, what] : cases) {
    WriteIndex(map);
    EXPECT_THAT(Refused(), HasSubstr(what)) << map;
  }
  Write("model-2.safetensors", Weights("a"));
  WriteIndex(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  EXPECT_THAT(Refused(), HasSubstr("tensor a is in two files"));
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
    EXPECT_THAT(Refused(), AllOf(HasSubstr("model.safetensors"), HasSubstr(what)));
  }
  // 99 MB are the format's limit for one header; a folder's headers have one of their own.
  fs::remove(folder_ + "/model.safetensors");
  const std::string header = R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  Write("model-1.safetensors", File(header + std::string(99'000'000 - header.size(), ' '), ""));
  const uint64_t length = 99'000'000;
  Write("model-2.safetensors", std::string(reinterpret_cast<const char*>(&length), 8));
  fs::resize_file(folder_ + "/model-2.safetensors", 8 + length);
  WriteIndex(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  EXPECT_THAT(Refused(), AllOf(HasSubstr("model-2.safetensors"), HasSubstr("header too large")));
}

TEST_F(HuggingFaceFolderTest, ConfigJsonIsReadFromAFolderOrAFile) {
  Write("config.json", R"({"model_type":"llama"})");
  EXPECT_EQ(ReadModelJson(folder_)->at("model_type"), "llama");
  EXPECT_EQ(ReadModelJson(folder_ + "/config.json")->at("model_type"), "llama");
  EXPECT_THAT(std::string(ReadModelJson(folder_ + "/none").status().message()), HasSubstr("/none"));
}

}  // namespace
}  // namespace dtrain::checkpoint
