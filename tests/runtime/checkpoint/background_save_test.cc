// checkpoint.async: a save that is written while training goes on holds, to the byte, what one
// holds for which training stood still.
#include "runtime/checkpoint/background_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/system/resource_limits.h"
#include "checkpoint/commit/writer.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/storage/posix_storage.h"
#include "comm/group.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/model/cpu_rng.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::background_save_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RankContext;
using testing::Tokens;

// A chain whose forward also changes a buffer.
class Counting : public testing::Chain {
 public:
  // `wide`: elements of a weight that no loss uses, and eight times those of another one, for a
  // state that is larger than blocks of it.
  explicit Counting(int64_t wide = 0) {
    seen = register_buffer("seen", at::zeros({3}));
    if (wide > 0) {
      register_parameter("wide", at::linspace(-1, 1, wide));
      // The file has it ahead of all that come before it here.
      register_parameter("also_wide", at::linspace(-1, 1, wide / 8));
    }
  }
  at::Tensor Count(const at::Tensor& tokens) {
    {
      const at::NoGradGuard no_grad;
      seen.add_(static_cast<double>(tokens.size(0)));
    }
    return Loss(tokens);
  }
  at::Tensor seen;
};

struct Training {
  std::vector<std::string> overrides;
  int64_t steps = 9;
  int64_t wide = 0;  // Counting's.
  std::function<void()> after_first_step = [] {};
};

// Trains with a tracked average, and calls MaybeSave after each step.
absl::Status Train(RankContext* context, const std::string& folder, const Training& training) {
  at::set_num_threads(1);
  std::vector<std::string> overrides = {"train_batch_size=36",
                                        "zero_optimization.stage3_param_persistence_threshold=0",
                                        "deterministic=true", "checkpoint.keep=0"};
  overrides.push_back(absl::StrCat("train_micro_batch_size_per_gpu=",
                                   context == nullptr ? 36 : 36 / context->size));
  overrides.insert(overrides.end(), training.overrides.begin(), training.overrides.end());
  DT_ASSIGN_OR_RETURN(
      auto job, testing::MakeTestJob({.run_dir = folder, .overrides = overrides, .rank = context}));
  at::manual_seed(5);
  Counting model(training.wide);
  at::Tensor average = at::zeros({100, 40});
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  checkpoints->Track("mean", {{"average", average}});
  Tokens source{0, job->rank(), job->world_size(), 1};
  while (engine->step() < training.steps) {
    DT_RETURN_IF_ERROR(engine
                           ->Step(source,
                                  [&](const at::Tensor& tokens) {
                                    return Loss(model.Count(tokens), tokens.size(0));
                                  })
                           .status());
    average.add_(static_cast<double>(engine->step()));
    if (engine->step() == 1) {
      training.after_first_step();
    }
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  return checkpoints->Finish();
}

// Path and hash of every file, by checkpoint, and what else the manifest says of the state.
std::map<int64_t, std::string> Saves(const std::string& folder) {
  std::map<int64_t, std::string> saves;
  const auto storage = *checkpoint::OpenPosixStorage(folder + "/checkpoints");
  const std::vector<checkpoint::Storage::Entry> entries = *storage->List("");
  for (const checkpoint::Storage::Entry& entry : entries) {
    const checkpoint::StepId id =
        checkpoint::StepId::FromDirectoryName(entry.name).value_or(checkpoint::StepId{});
    const auto manifest = checkpoint::ReadManifest(*storage, id);
    if (!manifest.ok()) {
      continue;  // Another folder, or the remains of a save.
    }
    std::string& text = saves[id.step];
    for (const checkpoint::ManifestFile& file : manifest->files) {
      absl::StrAppend(&text, file.path, " ", file.checksum.xxh3_128, "\n");
    }
    absl::StrAppend(&text, DumpJson(manifest->state.engine), "\n");
    for (const Json& rank : manifest->rank_state) {
      absl::StrAppend(&text, DumpJson(rank), "\n");
    }
  }
  return saves;
}

std::vector<Json> CheckpointRecords(const std::string& folder, int rank) {
  std::vector<Json> records;
  const auto text = ReadFile(absl::StrCat(folder, "/metrics/rank-", rank, ".jsonl"), 1 << 24);
  for (const absl::string_view line : absl::StrSplit(text.value_or(""), '\n', absl::SkipEmpty())) {
    const auto record = ParseJson(line, "metrics");
    if (record.ok() && (*record)["kind"] == "ckpt") {
      records.push_back(*record);
    }
  }
  return records;
}

struct Way {
  const char* name;
  std::vector<std::string> overrides;
  int64_t wide = 0;  // Counting's.
};

class BackgroundSaveTest : public ::testing::TestWithParam<std::tuple<Way, int>> {};

INSTANTIATE_TEST_SUITE_P(
    Ways, BackgroundSaveTest,
    ::testing::Combine(
        ::testing::Values(Way{"stage0_waves", {"checkpoint.staging_memory=4194304"}, 1'300'000},
                          Way{"stage1_bf16", {"zero_optimization.stage=1", "bf16.enabled=true"}},
                          Way{"stage2_far",
                              {"zero_optimization.stage=2",
                               R"(zero_optimization.offload_optimizer={"device":"cpu"})"}},
                          Way{"stage3_own_buffers",
                              {"zero_optimization.stage=3", "module_buffers=local"}},
                          // One block, through which the gathered weights pass.
                          Way{"stage3_waves",
                              {"zero_optimization.stage=3", "checkpoint.staging_memory=4194304"},
                              1'300'000}),
        ::testing::Values(1, 3)),
    [](const auto& test) {
      return absl::StrCat(std::get<0>(test.param).name, "_ranks", std::get<1>(test.param));
    });

TEST_P(BackgroundSaveTest, HoldsWhatASaveHoldsForWhichTrainingStandsStill) {
  const auto& [way, ranks] = GetParam();
  std::map<int64_t, std::string> saves[2];
  for (const bool async : {false, true}) {
    const testing::TempFolder folder;
    std::vector<std::string> overrides = way.overrides;
    overrides.push_back(absl::StrCat("checkpoint.async=", async ? "true" : "false"));
    overrides.push_back("checkpoint.interval=3");
    for (const auto& result : testing::RunRanks({.size = ranks}, [&](RankContext& context) {
           return Train(ranks == 1 ? nullptr : &context, folder.path(),
                        {.overrides = overrides, .wide = way.wide});
         })) {
      ASSERT_TRUE(result.status.ok()) << result.status;
    }
    saves[async ? 1 : 0] = Saves(folder.path());
    if (!async) {
      continue;
    }
    // Each save that came due is durable or counted as skipped, on every rank alike.
    for (int rank = 0; rank < ranks; ++rank) {
      std::map<int64_t, std::string> ended;
      for (const Json& record : CheckpointRecords(folder.path(), rank)) {
        ended[record["step"]] = record.contains("skipped")       ? "skipped"
                                : record.value("durable", false) ? "durable"
                                                                 : DumpJson(record);
      }
      EXPECT_EQ(ended[3], "durable") << "rank " << rank;
      EXPECT_THAT(ended[6], ::testing::AnyOf("durable", "skipped")) << "rank " << rank;
      EXPECT_EQ(ended[9], "durable") << "rank " << rank;
    }
  }
  ASSERT_EQ(saves[0].size(), 3U);
  ASSERT_TRUE(saves[1].contains(3) && saves[1].contains(9));
  for (const auto& [step, text] : saves[1]) {
    EXPECT_EQ(text, saves[0][step]) << "step " << step;
  }
}

// What the ranks must know of each other's saves travels in the agreements of steps: behind the
// first save no call of the group that trains is a save's.
TEST(BackgroundSaveCallsTest, ASaveCostsTrainingNoExchange) {
  const testing::TempFolder folder;
  for (const auto& result :
       testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
         at::set_num_threads(1);
         DT_ASSIGN_OR_RETURN(
             auto job,
             testing::MakeTestJob(
                 {.run_dir = folder.path(),
                  .overrides = {"train_batch_size=36", "train_micro_batch_size_per_gpu=18",
                                "checkpoint.interval=3", "checkpoint.async=true"},
                  .rank = &context}));
         testing::Chain model;
         DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
         DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
         checkpoints->Track("engine", *engine);
         Tokens source{0, job->rank(), job->world_size(), 1};
         uint64_t calls_of_step = 0;
         const std::string first =
             absl::StrCat(folder.path(), "/checkpoints/", checkpoint::StepId{1, 3}.DirectoryName(),
                          "/MANIFEST.json");
         while (engine->step() < 300) {
           // Else the first save may take all of them on a busy machine.
           const Deadline bound = Deadline::After(absl::Seconds(60));
           while (engine->step() == 4 && !FileExists(first) && !bound.Expired()) {
             Clock::Real().Sleep(absl::Milliseconds(5));
           }
           const uint64_t before = job->group().sequence();
           DT_RETURN_IF_ERROR(TakeStep(*engine, model, source).status());
           const uint64_t behind = job->group().sequence();
           DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
           const uint64_t calls_of_save = job->group().sequence() - behind;
           // The first steps also agree on how gradients are cut into buckets.
           calls_of_step = engine->step() == 20 ? behind - before : calls_of_step;
           const bool is_other = engine->step() > 20 && behind - before != calls_of_step;
           if (engine->step() > 5 && (calls_of_save > 0 || is_other)) {
             return absl::InternalError(absl::StrCat("step ", engine->step(), ": ", behind - before,
                                                     " calls, step 20: ", calls_of_step,
                                                     "; its save: ", calls_of_save));
           }
         }
         return checkpoints->Finish();
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  int saves = 0;
  for (const Json& record : CheckpointRecords(folder.path(), 0)) {
    saves += record.value("background", false) && record["step"] > 3 ? 1 : 0;
  }
  EXPECT_GT(saves, 0) << "all were skipped";
}

// Else the next save would begin while the report of this one is still to be recorded.
TEST(BackgroundSaveCallsTest, ASaveThatHasEndedCountsUntilItsReportIsTaken) {
  const testing::TempFolder folder;
  const auto job = testing::MakeTestJob(
      {.run_dir = folder.path(),
       .overrides = {"train_batch_size=4", "train_micro_batch_size_per_gpu=4"}});
  ASSERT_TRUE(job.ok()) << job.status();
  const auto storage = *checkpoint::OpenPosixStorage(folder.path());
  checkpoint::Writer writer(*storage, {.epoch = {.epoch = 1}});
  std::promise<void> ended;  // The thread that saves drops the snapshot last.
  char byte = 0;
  EngineSnapshot snapshot;
  snapshot.source.status = absl::InternalError("there is no snapshot");
  const auto dropped = [&](void*) { ended.set_value(); };
  snapshot.keep.push_back(at::from_blob(&byte, {1}, dropped, at::TensorOptions(at::kByte)));
  const auto save = std::make_shared<BackgroundSave>(**job);
  ASSERT_TRUE(*save->Prepare());
  save->Start(1, writer, std::move(snapshot));
  ended.get_future().wait();
  EXPECT_FALSE(*save->Prepare());
  const auto report = save->Take();
  ASSERT_TRUE(report.has_value());
  EXPECT_THAT(std::string(report->status.message()), HasSubstr("there is no snapshot"));
  EXPECT_TRUE(*save->Prepare());
}

// A limit on file sizes stands for a full disk.
TEST(BackgroundSaveFailureTest, IsRecordedAndTrainingGoesOn) {
  const testing::TempFolder folder;
  for (const auto& result : testing::RunRanks({.size = 2}, [&](RankContext& context) {
         Training training{{"checkpoint.async=true", "checkpoint.interval=4"}};
         if (context.rank == 1) {
           training.after_first_step = [] {
             EndWithALineAtLimits();  // Every program of dtrain calls it.
             const rlimit small{.rlim_cur = 1000, .rlim_max = RLIM_INFINITY};
             setrlimit(RLIMIT_FSIZE, &small);
           };
         }
         const absl::Status trained = Train(&context, folder.path(), training);
         // The last save is Finish's, and fails the run.
         return trained.ok() ? absl::InternalError("the last save cannot have worked")
                             : absl::OkStatus();
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  EXPECT_TRUE(Saves(folder.path()).empty());
  // The save of step 8 failed too, or was skipped because this one was still under way.
  std::map<int64_t, std::string> errors;
  for (const Json& record : CheckpointRecords(folder.path(), 0)) {
    EXPECT_FALSE(record.value("durable", false)) << DumpJson(record);
    errors[record["step"]] += record.value("error", "");
  }
  EXPECT_THAT(errors[4], AllOf(HasSubstr("save of step 4: rank 1: "), HasSubstr("File too large")));
}

TEST(StagingMemoryTest, MoreThanThereIsIsRefusedBeforeTheFirstStep) {
  const testing::TempFolder folder;
  const absl::Status refused = Train(nullptr, folder.path(),
                                     {{"checkpoint.async=true", "checkpoint.interval=3",
                                       "checkpoint.staging_memory=1000000000000000"}});
  EXPECT_EQ(ExitCodeFor(refused), kExitUsage);
  for (const char* const part : {"checkpoint.staging_memory is 1000000000000000 bytes on each of 1",
                                 "together 1.0 PB", "are available"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
  }
}

// A program that goes back to its last checkpoint, for instance after a spike of the loss.
TEST(BackgroundSaveRestoreTest, WaitsForTheSaveThatIsUnderWay) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = *testing::MakeTestJob(
      {.run_dir = folder.path(),
       .overrides = {"train_batch_size=36", "checkpoint.interval=2", "checkpoint.async=true"}});
  testing::Chain model;
  auto engine = *Engine::Create(*job, model);
  auto checkpoints = *Checkpointer::Open(*job);
  checkpoints->Track("engine", *engine);
  Tokens source;
  std::vector<double> losses;
  const auto train_to = [&](int64_t last) -> absl::Status {
    while (engine->step() < last) {
      source.call = engine->step();
      DT_ASSIGN_OR_RETURN(const auto report, TakeStep(*engine, model, source));
      losses.push_back(report.loss);
      DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
    }
    return absl::OkStatus();
  };
  ASSERT_TRUE(train_to(2).ok());
  ASSERT_TRUE(checkpoints->RestoreLatest().ok());
  EXPECT_EQ(engine->step(), 2);
  ASSERT_TRUE(train_to(3).ok());
  ASSERT_TRUE(checkpoints->RestoreLatest().ok());
  EXPECT_EQ(engine->step(), 2);
  ASSERT_TRUE(train_to(4).ok());
  EXPECT_EQ(losses.at(2), losses.at(3)) << "the third step, twice";
  EXPECT_TRUE(checkpoints->Finish().ok());
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0;
  int64_t resident = 0;
  statm >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Descriptors, threads and memory stay the same over many saves.
TEST(BackgroundSaveResourcesTest, StayTheSameOverManySaves) {
  const auto count = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder),
                         std::filesystem::directory_iterator());
  };
  at::set_num_threads(1);  // LibTorch's pool would stay, and the next test forks.
  const testing::TempFolder folder;
  auto job = *testing::MakeTestJob(
      {.run_dir = folder.path(),
       .overrides = {"train_batch_size=36", "checkpoint.interval=1", "checkpoint.async=true"}});
  testing::Chain model;
  auto engine = *Engine::Create(*job, model);
  auto checkpoints = *Checkpointer::Open(*job);
  checkpoints->Track("engine", *engine);
  Tokens source;
  std::ptrdiff_t files = 0;
  std::ptrdiff_t threads = 0;
  int64_t memory = 0;
  const int last = std::getenv("DTRAIN_TEST_LONG") != nullptr ? 1000 : 200;
  for (int step = 1; step <= last; ++step) {
    ASSERT_TRUE(TakeStep(*engine, model, source).ok());
    ASSERT_TRUE(checkpoints->MaybeSave(step).ok());
    if (step == 20) {
      ASSERT_TRUE(checkpoints->Finish().ok());
      files = count("/proc/self/fd");
      threads = count("/proc/self/task");
      memory = ResidentBytes();
    }
  }
  ASSERT_TRUE(checkpoints->Finish().ok());
  EXPECT_EQ(count("/proc/self/fd"), files);
  EXPECT_EQ(count("/proc/self/task"), threads);
  // Far less than one of the snapshots for each save.
  EXPECT_LT(ResidentBytes() - memory, int64_t{16} << 20);
}

// Snapshots keep the list of tensors, and notice that one has other memory or another shape now.
TEST(EngineSnapshotsTest, ABufferIsTakenFromWhereItIsNow) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job =
      *testing::MakeTestJob({.run_dir = folder.path(), .overrides = {"train_batch_size=36"}});
  Counting model;
  auto engine = *Engine::Create(*job, model);
  EngineSnapshots snapshots(engine->state(), {}, "");
  const auto expect_seen = [&](const at::Tensor& values) {
    EngineSnapshot snapshot;
    EXPECT_TRUE(snapshots.AddTo(snapshot).ok());
    const auto& all = snapshot.source.model;
    const auto saved = std::find_if(all.begin(), all.end(),
                                    [](const auto& item) { return item.spec.name == "seen"; });
    ASSERT_NE(saved, all.end());
    EXPECT_EQ(at::IntArrayRef(saved->spec.shape), values.sizes());
    ASSERT_EQ(saved->bytes.size(), values.nbytes());
    EXPECT_EQ(std::memcmp(saved->bytes.data(), values.const_data_ptr(), values.nbytes()), 0);
  };
  expect_seen(at::zeros({3}));
  model.seen.fill_(1);
  expect_seen(at::ones({3}));
  model.seen.set_data(at::full({2, 3}, 2.0F));
  expect_seen(at::full({2, 3}, 2.0F));
  const at::Tensor rows = at::arange(6, at::TensorOptions(at::kFloat)).view({2, 3});
  model.seen.set_data(rows);
  expect_seen(rows);
  model.seen.set_data(rows.view({3, 2}));  // At the same address.
  expect_seen(rows.view({3, 2}));
  model.seen.set_data(rows.t());  // There too, in another order.
  expect_seen(rows.t().contiguous());
}

TEST(EngineSnapshotsTest, TheRandomStateIsThatOfTheMoment) {
  at::manual_seed(5);
  at::randn({3});  // One number of a pair is left.
  const at::Tensor then = CpuRngState();
  const CpuRngSnapshot saved;
  at::randn({8});
  EXPECT_FALSE(at::equal(CpuRngState(), then));
  EXPECT_TRUE(at::equal(saved.CpuState(), then));
  EXPECT_EQ(then.nbytes(), kCpuRngBytes);
}

}  // namespace
}  // namespace dtrain::background_save_test
