// The real program on CPU ranks, under the real launcher, maps no CUDA library by itself.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/system/mapped_libraries.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/launched_job.h"
#include "tests/testing/cuda_libraries.h"

namespace dtrain::launcher::cpu_rank_test {
namespace {

constexpr char kConfig[] = R"({
  "train_batch_size": 4, "train_steps": 1000000,
  "data": {"train": ["%s/train.bin"], "validation": ["%s/val.bin"], "sequence_length": 16},
  "model": {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16}})";

// Libraries to which the wheel's libtorch_cpu.so itself is linked, so that the loader maps them.
bool IsNeededByTorchCpu(absl::string_view path) {
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  return absl::StartsWith(name, "libcudart.so") || absl::StartsWith(name, "libcupti.so");
}

TEST(CpuRank, OfTheRealProgramMapsNoDriverNcclOrCudaHalfOfLibTorch) {
  LaunchedJob data({"data", "prepare", "--out", "data", DTRAIN_CORPUS});
  ASSERT_EQ(data.Wait(), 0) << data.Err();
  const std::string folder = absl::StrCat(data.folder(), "/data");
  const std::string config = absl::StrCat(data.folder(), "/config.json");
  ASSERT_TRUE(WriteFileAtomic(config, absl::StrFormat(kConfig, folder, folder)).ok());

  const LaunchedJob job(
      {"launch", "--nproc-per-node", "2", "--run-dir", "run", "--", DTRAIN_GPT_PROGRAM, config});
  ASSERT_TRUE(job.AwaitText("run/metrics/rank-0.jsonl", "\"step\":3,")) << job.Out() << job.Err();
  ASSERT_TRUE(job.AwaitRanks(2));
  const std::vector<pid_t> ranks = job.Ranks();
  for (const pid_t rank : ranks) {
    const auto maps = ReadFile(absl::StrCat("/proc/", rank, "/maps"));
    ASSERT_TRUE(maps.ok()) << maps.status();
    const std::vector<std::string> libraries = LibrariesInMaps(*maps);
    EXPECT_THAT(libraries, ::testing::Contains(::testing::HasSubstr("libtorch_cpu.so")));
    for (const std::string& path : libraries) {
      EXPECT_TRUE(!IsCudaLibrary(path) || IsNeededByTorchCpu(path)) << path;
    }
  }
}

}  // namespace
}  // namespace dtrain::launcher::cpu_rank_test
