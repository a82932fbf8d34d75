// Optimizer states in a far tier: how they are cut and streamed, what a tier does when it cannot
// work, and that nothing but the place of the states changes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <tuple>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/offload/far_tier.h"
#include "runtime/offload/mapped_file.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/state_stream.h"
#include "runtime/plan/memory/offload_plan.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::offload_test {
namespace {

using ::testing::HasSubstr;

TEST(CutChunks, CutsLongPiecesJoinsShortOnesAndKeepsBucketsApart) {
  const std::vector<std::vector<UpdatePiece>> buckets = {
      {{.flat = 100, .local = 0, .elements = 25, .settings = 1},
       {.flat = 140, .local = 28, .elements = 4, .settings = 2}},
      {},
      {{.flat = 300, .local = 40, .elements = 10, .settings = 3}}};
  const std::vector<StateChunk> chunks = CutChunks(buckets, 10);
  struct Expected {
    int64_t local, elements;
    size_t pieces;
    int bucket;
    bool ends;
  };
  const std::vector<Expected> expected = {{0, 10, 1, 0, false},  {10, 10, 1, 0, false},
                                          {20, 10, 2, 0, false}, {30, 2, 1, 0, true},
                                          {0, 0, 0, 1, true},    {40, 10, 1, 2, true}};
  ASSERT_EQ(chunks.size(), expected.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i].local, expected[i].local) << i;
    EXPECT_EQ(chunks[i].elements, expected[i].elements) << i;
    EXPECT_EQ(chunks[i].pieces.size(), expected[i].pieces) << i;
    EXPECT_EQ(chunks[i].bucket, expected[i].bucket) << i;
    EXPECT_EQ(chunks[i].ends_bucket, expected[i].ends) << i;
  }
  EXPECT_EQ(chunks[2].pieces[0], (UpdatePiece{120, 20, 5, 1}));
  EXPECT_EQ(chunks[2].pieces[1], (UpdatePiece{140, 28, 2, 2}));
  EXPECT_EQ(chunks[3].pieces[0], (UpdatePiece{142, 30, 2, 2}));
}

TEST(CutChunks, SeparatesWhatIsNearFromWhatTravels) {
  const std::vector<std::vector<UpdatePiece>> buckets = {
      {{.flat = 100, .local = 0, .elements = 25}}, {{.flat = 200, .local = 25, .elements = 9}}};
  const std::vector<StateChunk> chunks = CutChunks(buckets, 10, 12);
  const std::vector<std::tuple<int64_t, int64_t, bool, bool>> expected = {{0, 10, true, false},
                                                                          {10, 2, true, false},
                                                                          {12, 10, false, false},
                                                                          {22, 3, false, true},
                                                                          {25, 9, false, true}};
  ASSERT_EQ(chunks.size(), expected.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_EQ(
        std::tuple(chunks[i].local, chunks[i].elements, chunks[i].near, chunks[i].ends_bucket),
        expected[i])
        << i;
  }
  EXPECT_TRUE(CutChunks(buckets, 10, 100).back().near) << "ratio 0: nothing travels";
}

absl::StatusOr<FarState> Make(const std::string& folder, int64_t elements, at::ScalarType type,
                              float value, int64_t near_elements = 0) {
  return folder.empty() ? FarState::InMemory(elements, type, value)
                        : FarState::InFile(folder, elements, type, value, "key", near_elements);
}

TEST(StateStream, GivesEveryElementOnceInOrderAndKeepsWhatIsWritten) {
  const testing::TempFolder folder;
  for (const std::string& where : {std::string(), folder.path()}) {
    for (const int buffers : {2, 3, 64}) {
      std::vector<FarState> states;
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        auto state = Make(where, 1000, type, 0.5F);
        ASSERT_TRUE(state.ok()) << state.status();
        states.push_back(*std::move(state));
      }
      const at::Tensor wide = states[0].tensor();
      const at::Tensor narrow = states[1].tensor();
      const int threads = buffers == 3 ? 2 : 1;
      StateStream stream(states, {.chunk_elements = 96, .buffers = buffers, .threads = threads});
      const std::vector<StateChunk> chunks = stream.Cut({{{.elements = 1000}}});
      for (int round = 1; round <= 3; ++round) {
        int64_t next = 0;
        const absl::Status done = stream.Run(chunks, [&](const StateChunk& chunk, auto near) {
          EXPECT_EQ(chunk.local, next);
          next += chunk.elements;
          auto* const floats = reinterpret_cast<float*>(near[0]);
          auto* const halves = reinterpret_cast<at::BFloat16*>(near[1]);
          for (int64_t i = 0; i < chunk.elements; ++i) {
            floats[i] += static_cast<float>(chunk.local + i);
            halves[i] = static_cast<float>(halves[i]) * 2;
          }
        });
        ASSERT_TRUE(done.ok()) << done;
        EXPECT_EQ(next, 1000);
        EXPECT_TRUE(wide.equal(at::arange(0, 1000, at::kFloat) * round + 0.5));
        EXPECT_TRUE(narrow.equal(at::full({1000}, 0.5 * (1 << round), at::kBFloat16)));
      }
    }
  }
}

TEST(StateStream, WhatIsNearIsUpdatedInPlaceInFrontOfTheFile) {
  const testing::TempFolder folder;
  constexpr int64_t kElements = 20000;
  constexpr int64_t kNear = 8192;
  for (const std::string& where : {std::string(), folder.path()}) {
    auto state = Make(where, kElements, at::kFloat, 0.5F, kNear);
    ASSERT_TRUE(state.ok()) << state.status();
    const at::Tensor all = state->tensor();
    EXPECT_TRUE(all.equal(at::full({kElements}, 0.5)));
    StateStream stream({*state}, {.chunk_elements = 3000, .buffers = 2, .near_elements = kNear});
    const std::vector<StateChunk> chunks = stream.Cut({{{.elements = kElements}}});
    for (int round = 1; round <= 2; ++round) {
      const absl::Status done = stream.Run(chunks, [&](const StateChunk& chunk, auto near) {
        EXPECT_EQ(chunk.near, chunk.local < kNear);
        EXPECT_EQ(chunk.near, near[0] == reinterpret_cast<std::byte*>(
                                             all.mutable_data_ptr<float>() + chunk.local));
        auto* const floats = reinterpret_cast<float*>(near[0]);
        for (int64_t i = 0; i < chunk.elements; ++i) {
          floats[i] += static_cast<float>(chunk.local + i);
        }
      });
      ASSERT_TRUE(done.ok()) << done;
      EXPECT_TRUE(all.equal(at::arange(0, kElements, at::kFloat) * round + 0.5));
    }
  }
}

TEST(FarState, AFileHasNoNameSoThatNothingIsLeftOfIt) {
  const testing::TempFolder folder;
  const auto state = FarState::InFile(folder.path(), 100000, at::kFloat, 1, "key");
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "whatever ends the process";
}

TEST(FarState, AMissingFolderAndADiskThatIsTooSmallAreNamed) {
  const auto missing = FarState::InFile("/nowhere/at/all", 10, at::kFloat, 0, "key");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("key \"/nowhere/at/all\""));

  const testing::TempFolder folder;
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};  // For this process this is like a full disk.
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto full = FarState::InFile(folder.path(), 1 << 20, at::kFloat, 0, "key");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(full.ok());
  EXPECT_THAT(std::string(full.status().message()),
              HasSubstr("4194304 bytes cannot be reserved there"));
}

// The file is cut, which for a mapping is like a failing disk.
TEST(MappedFile, APageThatCannotBeReadOrWrittenEndsTheProcessWithALine) {
  const testing::TempFolder folder;
  auto file = MappedFile::Create(folder.path(), 1 << 20, "key", /*near_bytes=*/4096);
  ASSERT_TRUE(file.ok()) << file.status();
  const MappedFile moved = *std::move(file);
  const auto other = MappedFile::Create(folder.path(), 1 << 20, "other");
  ASSERT_TRUE(other.ok()) << other.status();
  auto* const data = static_cast<volatile char*>(moved.data());
  EXPECT_EXIT(
      {
        static_cast<void>(ftruncate(moved.fd(), 0) == 0);
        data[100] = 1;  // Near memory, which is no file.
        data[8192] = 1;
      },
      ::testing::ExitedWithCode(kExitTemporary),
      "^error: key \"" + folder.path() +
          "\": a page of a file of 1044480 bytes cannot be read or written; check the disk");
  EXPECT_EXIT(
      {
        static_cast<void>(ftruncate(moved.fd(), 0) == 0);
        void* const bare = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, moved.fd(), 0);
        static_cast<void>(*static_cast<volatile char*>(bare));
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST(OffloadChunkElements, AreManyForSmallShardsAndLimitedForLargeOnes) {
  EXPECT_EQ(plan::OffloadChunkElements(100, 4), 4096);
  EXPECT_EQ(plan::OffloadChunkElements(80000, 4), 10000);
  EXPECT_EQ(plan::OffloadChunkElements(int64_t{1} << 40, 4), 1 << 20);
}

class Net : public torch::nn::Module {
 public:
  Net() {
    at::manual_seed(5);
    up = register_parameter("up", at::randn({150, 90}) * 0.1);
    down = register_parameter("down", at::randn({90, 150}) * 0.1);
  }
  at::Tensor Loss(const at::Tensor& x) {
    return at::tanh(x.to(up.scalar_type()).matmul(up.t()))
        .matmul(down.t())
        .square()
        .sum(at::kFloat);
  }
  at::Tensor up, down;
};

// A run of five steps that saves the third, or goes on from there; its weights.
at::Tensor Train(const std::string& run_dir, const std::vector<std::string>& overrides,
                 bool resume) {
  std::vector<std::string> all = {"train_micro_batch_size_per_gpu=1", "checkpoint.interval=3",
                                  "zero_optimization.stage=1", "bf16.enabled=true"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  auto job = testing::MakeTestJob({.run_dir = run_dir, .overrides = all});
  EXPECT_TRUE(job.ok()) << job.status();
  Net net;
  auto engine = Engine::Create(**job, net);
  EXPECT_TRUE(engine.ok()) << engine.status();
  auto checkpoints = Checkpointer::Open(**job);
  EXPECT_TRUE(checkpoints.ok()) << checkpoints.status();
  (*checkpoints)->Track("engine", **engine);
  if (resume) {
    EXPECT_TRUE((*checkpoints)->RestoreLatest().ok());
    EXPECT_EQ((*engine)->step(), 3);
  }
  struct Inputs {
    int64_t calls;
    absl::StatusOr<at::Tensor> Next() {
      return at::sin(at::arange(0, 270, at::kFloat).reshape({3, 90}) +
                     static_cast<double>(++calls));
    }
  } inputs{(*engine)->step()};
  while ((*engine)->step() < 5) {
    const auto report = (*engine)->Step(inputs, [&](const at::Tensor& x) { return net.Loss(x); });
    EXPECT_TRUE(report.ok()) << report.status();
    if (!resume) {
      EXPECT_TRUE((*checkpoints)->MaybeSave((*engine)->step()).ok());
    }
  }
  return at::cat({net.up.flatten(), net.down.flatten()}).detach().clone();
}

TEST(Offload, CheckpointsGoFromAnyTierToAnyToTheBit) {
  const testing::TempFolder disk;
  const std::vector<std::vector<std::string>> tiers = {
      {},
      {"zero_optimization.offload_optimizer.device=cpu",
       "zero_optimization.offload_optimizer.buffer_count=2"},
      {"zero_optimization.offload_optimizer.device=nvme", "aio.intra_op_parallelism=2",
       absl::StrCat("zero_optimization.offload_optimizer.nvme_path=", disk.path())},
      {"zero_optimization.offload_optimizer.device=nvme",
       "zero_optimization.offload_optimizer.ratio=0.6",
       absl::StrCat("zero_optimization.offload_optimizer.nvme_path=", disk.path())}};
  at::Tensor near;
  for (const auto& saved : tiers) {
    const testing::TempFolder folder;
    const at::Tensor whole = Train(folder.path(), saved, false);
    if (!near.defined()) {
      near = whole;
    }
    EXPECT_TRUE(whole.equal(near));
    for (const auto& resumed : tiers) {
      EXPECT_TRUE(Train(folder.path(), resumed, true).equal(near));
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk.path()));
}

}  // namespace
}  // namespace dtrain::offload_test
