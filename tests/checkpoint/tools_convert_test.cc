// `dtrain checkpoint export` and `import`: what they write, and that they write it whole or not at
// all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/numeric/float16.h"
#include "checkpoint/format/hugging_face_folder.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/tool_runs.h"

namespace dtrain::checkpoint::tools_convert_test {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A safetensors file of a header and data.
std::string File(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string Entry(const std::string& name, const std::string& dtype, int elements, int begin,
                  int end) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", elements,
                      "],\"data_offsets\":[", begin, ",", end, "]}");
}

class ConvertTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const RunFolder run = BeginRun(runs_.path() + "/run");
    SaveSharded(*run.storage, run.epoch, 2, 100, state_);
  }
  template <class T>
  static std::vector<T> Read(const std::string& folder, const std::string& name,
                             const std::string& dtype) {
    const auto opened = HuggingFaceFolder::Open(folder);
    DT_CHECK(opened.ok()) << opened.status().ToString();
    const TensorEntry& entry = *opened->tensors().at(name);
    EXPECT_EQ(entry.dtype, dtype) << name;
    std::vector<T> values(entry.bytes() / sizeof(T));
    DT_CHECK_OK(opened->Read(
        name, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), entry.bytes())));
    return values;
  }
  // Whether anything but the named entries is in the folder of outputs.
  std::vector<std::string> Outputs() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  void Write(const std::string& path, const std::string& content) {
    fs::create_directories(fs::path(path).parent_path());
    DT_CHECK_OK(WriteFileAtomic(path, content));
  }

  const TemporaryFolder runs_{TemporaryFolder::Where::kMemory};
  const TemporaryFolder folder_{TemporaryFolder::Where::kMemory};
  const std::string run_ = runs_.path() + "/run";
  const std::string out_ = folder_.path() + "/out";
  ShardedState state_ = ShardedState::Random(1);
};

TEST_F(ConvertTest, AnExportHasTheValuesAndTheSmallFilesOfTheCheckpoint) {
  const ToolRun run = RunTool(absl::StrCat("export ", run_, " ", out_));
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_EQ(run.output, absl::StrCat("exported step 100: 2 tensors (464 B) in 2 files, every byte "
                                     "verified, to ",
                                     out_, "\n"));
  EXPECT_EQ(Read<float>(out_, "layers.0.weight", "F32"), state_.weight);
  EXPECT_EQ(Read<uint16_t>(out_, "layers.0.bias", "BF16"), state_.bias);
  EXPECT_EQ(*ReadFile(out_ + "/config.json"), state_.config);
  struct stat info {};
  ASSERT_EQ(stat((out_ + "/model.safetensors").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0644U);
  EXPECT_THAT(Outputs(), ::testing::ElementsAre("out"));
}

TEST_F(ConvertTest, AnEmptyFolderIsFilledAndTheStepCanBeChosen) {
  fs::create_directory(out_);
  const Json json =
      ToolJson(absl::StrCat("export ", run_, " ", out_, "/ --name step-000000000100.e1"));
  EXPECT_EQ(json["step"], 100);
  EXPECT_EQ(json["tensors"], 2);
  EXPECT_EQ(json["bytes"], 464);
  EXPECT_EQ(Read<float>(out_, "layers.0.weight", "F32"), state_.weight);
}

TEST_F(ConvertTest, FloatsAreRoundedToNearestAndTheConfigurationSaysSo) {
  EXPECT_EQ(RunTool(absl::StrCat("export --dtype bf16 ", run_, " ", out_)).code, 0);
  std::vector<uint16_t> rounded;
  for (const float value : state_.weight) {
    rounded.push_back(ToBFloat16(value).bits);
  }
  EXPECT_EQ(Read<uint16_t>(out_, "layers.0.weight", "BF16"), rounded);
  EXPECT_EQ(Read<uint16_t>(out_, "layers.0.bias", "BF16"), state_.bias);
  const std::string wide = folder_.path() + "/wide";
  EXPECT_EQ(RunTool(absl::StrCat("export --dtype fp32 ", run_, " ", wide)).code, 0);
  std::vector<float> widened;
  for (const uint16_t bits : state_.bias) {
    widened.push_back(ToFloat(BFloat16{bits}));
  }
  EXPECT_EQ(Read<float>(wide, "layers.0.bias", "F32"), widened);
  EXPECT_EQ((*ReadModelJson(wide))["torch_dtype"], "float32");
  EXPECT_EQ((*ReadModelJson(wide))["model_type"], "llama");
}

TEST_F(ConvertTest, ValuesBeyondFp16AreRefusedAndNothingIsLeft) {
  state_.weight[17] = 70000.0F;
  const RunFolder run = BeginRun(runs_.path() + "/large");
  SaveSharded(*run.storage, run.epoch, 1, 100, state_);
  ExpectRefused(absl::StrCat("export --dtype fp16 ", runs_.path(), "/large ", out_), 64,
                {"layers.0.weight has values beyond the range of fp16", "bf16 or fp32"});
  EXPECT_THAT(Outputs(), IsEmpty());
}

TEST_F(ConvertTest, ShardsAreNoLargerThanAskedAndTheIndexNamesThem) {
  EXPECT_EQ(RunTool(absl::StrCat("export --max-shard-size 400B ", run_, " ", out_)).code, 0);
  EXPECT_TRUE(FileExists(out_ + "/model-00001-of-00002.safetensors"));
  EXPECT_EQ(Read<float>(out_, "layers.0.weight", "F32"), state_.weight);
  const Json index = *ParseJson(*ReadFile(out_ + "/model.safetensors.index.json"), "index");
  EXPECT_EQ(index["metadata"]["total_size"], 464);
  EXPECT_EQ(index["metadata"]["total_parameters"], 136);
  for (const char* wrong : {"5XB", "0", "-1", "99999999999999GB", "1.5GB"}) {
    ExpectRefused(absl::StrCat("export --max-shard-size=", wrong, " ", run_, " ", out_, "2"), 64,
                  {"--max-shard-size is \"", "as 5GB or 512MiB"});
  }
}

TEST_F(ConvertTest, EnginesAfterTheFirstAreNoPartOfTheModel) {
  const RunFolder run = BeginRun(runs_.path() + "/two");
  SpanSource source;
  const std::vector<std::byte> bytes(8);
  source.model = {{{"w", DType::kFloat32, {2}}, bytes},
                  {{"teacher/w", DType::kFloat32, {2}}, bytes}};
  source.job.engine = {{"engines", {{"teacher", {{"step", 1}}}}}};
  AloneExchange alone;
  ASSERT_TRUE(Writer(*run.storage, OptionsFor(run.epoch)).Save(1, source, alone).durable());
  const ToolRun done = RunTool(absl::StrCat("export ", runs_.path(), "/two ", out_));
  EXPECT_EQ(done.code, 0) << done.output;
  EXPECT_THAT(done.output, HasSubstr("left out: 1 tensor of engines after the first\n"));
  EXPECT_EQ(HuggingFaceFolder::Open(out_)->tensors().size(), 1U);
}

TEST_F(ConvertTest, WhatIsInTheWayIsLeftAlone) {
  Write(out_ + "/mine", "text");
  Write(folder_.path() + "/file", "text");
  fs::create_directory(folder_.path() + "/empty");
  fs::create_symlink(folder_.path() + "/empty", folder_.path() + "/link");
  const auto before = Snapshot(folder_.path());
  ASSERT_EQ(RunTool(absl::StrCat("export ", run_, " ", runs_.path(), "/model")).code, 0);
  for (const std::string& command :
       {absl::StrCat("export ", run_), absl::StrCat("import ", runs_.path(), "/model")}) {
    ExpectRefused(absl::StrCat(command, " ", out_), 64,
                  {out_, "is a folder that is not empty; it is left alone"});
    for (const char* name : {"file", "link"}) {
      const std::string path = absl::StrCat(folder_.path(), "/", name);
      ExpectRefused(absl::StrCat(command, " ", path), 64, {path, "is no folder"});
    }
  }
  EXPECT_EQ(Snapshot(folder_.path()), before);
}

TEST_F(ConvertTest, DamageIsFoundWhileItIsReadAndNothingIsLeft) {
  const std::string model = run_ + "/step-000000000100.e1/model/";
  for (const auto& entry : fs::directory_iterator(model)) {
    const std::string file = entry.path();
    if (absl::StrContains(file, "index")) {
      continue;  // It is written anew.
    }
    FlipBit(file, -1);
    ExpectRefused(absl::StrCat("export ", run_, " ", out_), 64, {file, "is damaged: bytes 0 to"});
    EXPECT_THAT(Outputs(), IsEmpty());
    FlipBit(file, -1);
  }
  fs::remove(model + "config.json");
  ExpectRefused(absl::StrCat("export ", run_, " ", out_), 64,
                {model + "config.json", "the file is missing"});
  ExpectRefused(absl::StrCat("export ", run_, " ", out_, " --name ../other"), 64,
                {"--name is \"../other\""});
  EXPECT_THAT(Outputs(), IsEmpty());
}

TEST_F(ConvertTest, AFullDiskIsNamedWithWhatIsNeededAndWhatIsFree) {
  const SmallDisk disk(64 << 10);
  if (!disk.mounted()) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here: run as root to test a full disk";
  }
  const RunFolder run = BeginRun(runs_.path() + "/big");
  ASSERT_TRUE(SaveOnRanks(*run.storage, OptionsFor(run.epoch), 1, 3, 64)[0].durable());
  const std::string out = disk.path() + "/out";
  ExpectRefused(absl::StrCat("export ", runs_.path(), "/big ", out), 75,
                {out, "(65692 bytes), but only 66 kB (65536 bytes) are free there"});
  ASSERT_EQ(RunTool(absl::StrCat("export ", runs_.path(), "/big ", out_)).code, 0);
  ExpectRefused(absl::StrCat("import ", out_, " ", out), 75,
                {out, "takes 66 kB (65668 bytes)", "make room"});
  EXPECT_THAT(Snapshot(disk.path()), IsEmpty());
}

TEST_F(ConvertTest, APlaceThatMayNotBeWrittenIsNamed) {
  fs::permissions(runs_.path(), fs::perms(0755));
  fs::permissions(folder_.path(), fs::perms(0755));
  ExpectRefused(absl::StrCat("export ", run_, " ", out_), 64, {out_, "Permission denied"}, 65534);
  EXPECT_THAT(Outputs(), IsEmpty());
}

TEST_F(ConvertTest, AddressesAndEmptyPathsAreNoFolders) {
  const std::string model = runs_.path() + "/model";
  ASSERT_EQ(RunTool(absl::StrCat("export ", run_, " ", model)).code, 0);
  const std::string store = "s3://bucket/out";
  for (const std::string& command :
       {absl::StrCat("export ", run_, " ", store), absl::StrCat("import ", model, " ", store),
        absl::StrCat("import ", store, " ", out_)}) {
    ExpectRefused(command, 64, {"s3://bucket/out is in an object store", "dtrain checkpoint copy"});
  }
  EXPECT_FALSE(FileExists("s3:")) << "a folder of that name was made where the test runs";
  for (const char* command : {"export ", "copy ", "diff "}) {
    ExpectRefused(absl::StrCat(command, run_, " http://host/out"), 64,
                  {"http://host/out is no path; allowed: a folder, or s3://bucket/prefix"});
    ExpectRefused(absl::StrCat(command, run_, " ''"), 64, {"a path is empty"});
  }
  ExpectRefused(absl::StrCat("copy ", run_, " s3:///"), 64, {"is no name of a bucket"});
  EXPECT_THAT(Outputs(), IsEmpty());
}

// --- import

TEST_F(ConvertTest, AnImportIsACheckpointOfStepZeroWithTheWeightsAlone) {
  const std::string model = runs_.path() + "/model";
  ASSERT_EQ(RunTool(absl::StrCat("export ", run_, " ", model)).code, 0);
  Write(model + "/tokenizer.json", "{}");
  Write(model + "/README.md", "not of the model");
  const ToolRun run = RunTool(absl::StrCat("import ", model, "/ ", out_));
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("imported 2 tensors (464 B) to " + out_ +
                                          "/checkpoints/step-000000000000.e1\n"),
                                HasSubstr("--run-dir " + out_ + " starts from them at step 0")));
  EXPECT_EQ(RunTool("verify " + out_).code, 0);
  const Json shown = ToolJson("show " + out_);
  EXPECT_EQ(shown["step"], 0);
  EXPECT_EQ(shown["layout_hash"], "");
  EXPECT_EQ(shown["engine"]["weights_only"], true);
  EXPECT_EQ(shown["engine"]["imported_from"], "model");
  std::vector<std::string> names;
  for (const Json& file : shown["files"]) {
    names.push_back(file["path"]);
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("model/model.safetensors", "model/config.json",
                                                     "model/tokenizer.json",
                                                     "state/rank-0-of-1.safetensors"));
  // A run finds it.
  const auto storage = OpenPosixStorage(out_ + "/checkpoints");
  auto latest = FindLatest(**storage);
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ((*latest)->manifest().rank_state[0], Json({{"ranges", Json::array()}}));
  EXPECT_THAT((*latest)->StateTensors(0), IsEmpty());
  EXPECT_EQ(ListEpochs(**storage)->size(), 1U);
  // The export gives back what the import was made of.
  const std::string again = folder_.path() + "/again";
  ASSERT_EQ(RunTool(absl::StrCat("export ", out_, " ", again)).code, 0);
  EXPECT_EQ(*ReadFile(again + "/model.safetensors"), *ReadFile(model + "/model.safetensors"));
  EXPECT_EQ(*ReadFile(again + "/config.json"), state_.config);
}

TEST_F(ConvertTest, OneFileIsImportedAndConverted) {
  const std::string file = runs_.path() + "/weights.safetensors";
  const double value = 1.0 / 3;
  Write(file, File("{" + Entry("i", "I64", 1, 0, 8) + "," + Entry("w", "F64", 1, 8, 16) + "}",
                   std::string(8, '\7') + std::string(reinterpret_cast<const char*>(&value), 8)));
  const Json json = ToolJson(absl::StrCat("import --dtype fp16 ", file, " ", out_));
  EXPECT_EQ(json["tensors"], 2);
  const std::string model = out_ + "/checkpoints/step-000000000000.e1/model";
  EXPECT_EQ(Read<uint16_t>(model, "w", "F16")[0], ToFloat16(static_cast<float>(value)).bits);
  EXPECT_EQ(Read<int64_t>(model, "i", "I64")[0], 0x0707070707070707);
}

TEST_F(ConvertTest, ANameThatControlsATerminalIsShownWithoutThat) {
  const std::string file = runs_.path() + "/weights.safetensors";
  Write(file, File("{" + Entry("a\\u001b[31m\\nb", "F32", 1, 0, 4) + "}", "xxxx"));
  ASSERT_EQ(RunTool(absl::StrCat("import ", file, " ", out_)).code, 0);
  EXPECT_THAT(RunTool(absl::StrCat("show --tensors ", out_)).output, HasSubstr("a?[31m?b"));
  Write(file, File("{" + Entry("a\\nb", "F99", 1, 0, 4) + "}", "xxxx"));
  ExpectRefused(absl::StrCat("import ", file, " ", out_ + "-2"), 64, {"a?b"});
}

TEST_F(ConvertTest, FilesThatAreNoWeightsAreRefusedInOneLineAndNothingIsLeft) {
  std::string huge = File("", "");
  huge[4] = 1;  // 4 GiB.
  const std::string hundred = "{" + Entry("w", "F32", 0, 0, 0) + "}";
  const std::pair<std::string, std::string> cases[] = {
      {"abc", "header too small"},
      {huge, "header too large"},
      {File("{" + Entry("a", "F32", 2, 0, 8) + "," + Entry("b", "F32", 2, 4, 12) + "}",
            std::string(12, 'x')),
       "invalid offset for tensor `b`"},
      {File("{" + Entry("a", "F32", 1, 0, 4) + "," + Entry("a", "F32", 1, 4, 8) + "}",
            std::string(8, 'x')),
       "`a` appears twice"},
      {File("{" + Entry("a", "F32", 2, 0, 8) + "}", "xy"), "not fully covered"},
      {File("{" + Entry("a", "F8_E4M3", 4, 0, 4) + "}", "xxxx"), "tensor a has type F8_E4M3"},
      {File("{}", ""), "holds no tensor"},
      {"PK\3\4 a zip of torch.save and more bytes", "or no safetensors file"},
  };
  const std::string file = runs_.path() + "/weights.safetensors";
  for (const auto& [content, what] : cases) {
    Write(file, content);
    ExpectRefused(absl::StrCat("import ", file, " ", out_), 64, {file, what});
    EXPECT_THAT(Outputs(), IsEmpty());
  }
  Write(file, File(hundred + std::string(100'000'001 - hundred.size(), ' '), ""));
  ExpectRefused(absl::StrCat("import ", file, " ", out_), 64, {file, "header too large"});
  Write(file, File(std::string(100'000'000, '{'), ""));
  ExpectRefused(absl::StrCat("import ", file, " ", out_), 64,
                {file, "InvalidHeaderDeserialization"});
  ExpectRefused(absl::StrCat("import ", runs_.path(), "/none ", out_), 64,
                {runs_.path() + "/none", "No such file"});
  ASSERT_EQ(mkfifo((runs_.path() + "/pipe").c_str(), 0600), 0);
  ExpectRefused(absl::StrCat("import ", runs_.path(), "/pipe ", out_), 64,
                {"pipe is not a regular file"});
  EXPECT_THAT(Outputs(), IsEmpty());
}

TEST_F(ConvertTest, FoldersThatLeadOutOrLackAShardAreRefused) {
  const std::string model = runs_.path() + "/model";
  const std::string good = File("{" + Entry("a", "F32", 1, 0, 4) + "}", "xxxx");
  const std::string index = model + "/model.safetensors.index.json";
  Write(runs_.path() + "/outside.safetensors", good);
  Write(index, R"({"weight_map": {"a": "../outside.safetensors"}})");
  ExpectRefused(absl::StrCat("import ", model, " ", out_), 64,
                {index, "../outside.safetensors", "of the same folder"});
  Write(index, R"({"weight_map": {"a": "model-1.safetensors"}})");
  ExpectRefused(absl::StrCat("import ", model, " ", out_), 64,
                {model + "/model-1.safetensors", "No such file"});
  fs::create_symlink("../outside.safetensors", model + "/model-1.safetensors");
  ExpectRefused(absl::StrCat("import ", model, " ", out_), 64,
                {model + "/model-1.safetensors is a link to ", "outside of the folder"});
  fs::remove(model + "/model-1.safetensors");
  Write(model + "/model-1.safetensors", good);
  fs::create_symlink("/etc/passwd", model + "/tokenizer.json");
  ExpectRefused(absl::StrCat("import ", model, " ", out_), 64,
                {model + "/tokenizer.json is a link to /etc/passwd"});
  fs::remove(model + "/tokenizer.json");
  Write(model + "/config.json", "{\"a\": }");
  ExpectRefused(absl::StrCat("import --dtype bf16 ", model, " ", out_), 64,
                {model + "/config.json:1:"});
  EXPECT_THAT(Outputs(), IsEmpty());
  EXPECT_EQ(RunTool(absl::StrCat("import ", model, " ", out_)).code, 0);
}

TEST_F(ConvertTest, LinksOfADownloadCacheAreFollowed) {
  const std::string cache = runs_.path() + "/models--a--b";
  Write(cache + "/blobs/0123", File("{" + Entry("a", "F32", 1, 0, 4) + "}", "xxxx"));
  fs::create_directories(cache + "/snapshots/rev");
  fs::create_symlink("../../blobs/0123", cache + "/snapshots/rev/model.safetensors");
  EXPECT_EQ(RunTool(absl::StrCat("import ", cache, "/snapshots/rev ", out_)).code, 0);
}

}  // namespace
}  // namespace dtrain::checkpoint::tools_convert_test
