// Weights on their way: who reads one waits for what it reads, and for nothing else.
#include "runtime/shard/pending_values.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/record_function.h"
#include "comm/work_state.h"
#include "torch/nn/module.h"

namespace dtrain::pending_values_test {
namespace {

// A gather that the test ends.
class Gather final : public comm::WorkState {
 public:
  absl::Status Wait(Deadline /*deadline*/) override {
    std::unique_lock lock(mutex_);
    asked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return done_; });
    return result_;
  }
  bool Done() const override {
    const std::lock_guard lock(mutex_);
    asked_ = true;
    changed_.notify_all();
    return done_;
  }
  int64_t DurationNanos() const override { return 0; }

  void End(const absl::Status& result = absl::OkStatus()) {
    const std::lock_guard lock(mutex_);
    done_ = true;
    result_ = result;
    changed_.notify_all();
  }
  void Forget() {
    const std::lock_guard lock(mutex_);
    asked_ = false;
  }
  // Until somebody wants to know since Forget.
  void AwaitReader() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return asked_; });
  }
  bool asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool asked_ = false;
  bool done_ = false;
  absl::Status result_;
};

// In layout order, the reverse: c in bucket 0, b in 1, a in 2.
struct Net : torch::nn::Module {
  explicit Net(int64_t elements) {
    a = register_parameter("a", at::zeros({elements}));
    b = register_parameter("b", at::zeros({elements}));
    c = register_parameter("c", at::zeros({elements}));
  }
  at::Tensor a, b, c;
};

class PendingValuesTest : public ::testing::Test {
 protected:
  // Each parameter is a bucket of `elements`; all three are on their way.
  void Make(int64_t elements) {
    at::set_num_threads(1);
    net_ = std::make_unique<Net>(elements);
    flat_ = *FlatParameters::Describe(*net_, DType::kFloat32, device_);
    shards_ = std::make_unique<plan::ShardPlan>(*plan::ShardPlan::Create(
        flat_->layout(),
        {.buckets = {.bucket_elements = elements, .first_bucket_elements = elements}}));
    ASSERT_EQ(shards_->buckets().size(), 3U);
    ASSERT_TRUE(flat_
                    ->MoveIn({.with_gradients = false, .values = ValueMemory::kGuarded},
                             [](const auto&, const auto&) {})
                    .ok());
    pending_ = std::make_unique<PendingValues>(*flat_, *shards_);
    Expect();
  }
  void Expect() {
    std::vector<comm::Work> works;
    for (auto& gather : gathers_) {
      gather = std::make_shared<Gather>();
      works.emplace_back(gather);
    }
    ASSERT_TRUE(pending_->Expect(std::move(works)).ok());
    for (auto& gather : gathers_) {
      gather->Forget();
    }
  }
  // As a collective does it: through the other mapping.
  void Arrive(size_t bucket, float value) {
    const plan::FlatRange range = shards_->buckets()[bucket];
    auto* const values = reinterpret_cast<float*>(flat_->values_of_collectives());
    std::fill(values + range.begin, values + range.end, value);
    gathers_[bucket]->End();
  }
  void TearDown() override {
    for (const auto& gather : gathers_) {
      if (gather != nullptr) {
        gather->End();
      }
    }
  }

  const Device device_;
  std::unique_ptr<Net> net_;
  std::unique_ptr<FlatParameters> flat_;
  std::unique_ptr<plan::ShardPlan> shards_;
  std::array<std::shared_ptr<Gather>, 3> gathers_;
  std::unique_ptr<PendingValues> pending_;
};

constexpr int64_t kPages = 3 * 1024;  // fp32 elements of three pages.

TEST_F(PendingValuesTest, AnOperationWaitsForWhatItReadsAlone) {
  Make(kPages);
  Arrive(2, 5);
  EXPECT_EQ(net_->a.sum().item<float>(), 5 * kPages) << "b and c are on their way";
  float sum = 0;
  std::thread reader([&] { sum = net_->b.narrow(0, 7, 10).sum().item<float>(); });
  gathers_[1]->AwaitReader();
  Arrive(1, 3);
  reader.join();
  EXPECT_EQ(sum, 30);
  EXPECT_FALSE(gathers_[0]->asked()) << "nobody read c";
  EXPECT_GT(pending_->TakeWaitedSeconds(), 0);
}

TEST_F(PendingValuesTest, CodeThatIsNoOperationWaitsToo) {
  Make(kPages);
  float read = 0;
  const volatile float* const data = net_->b.const_data_ptr<float>();
  std::thread reader([&] { read = data[kPages / 2]; });
  gathers_[1]->AwaitReader();
  Arrive(1, 4);
  reader.join();
  EXPECT_EQ(read, 4);
  volatile float* const c = net_->c.mutable_data_ptr<float>();
  std::thread writer([&] { c[1] = 9; });
  gathers_[0]->AwaitReader();
  Arrive(0, 2);
  writer.join();
  EXPECT_EQ(net_->c.sum().item<float>(), 2 * kPages + 7)
      << "a write is not overtaken by the gather";
}

TEST_F(PendingValuesTest, NothingIsClosedWhereTheProgramHandlesFaultsItself) {
  Make(kPages);
  for (size_t bucket = 0; bucket < gathers_.size(); ++bucket) {
    Arrive(bucket, 1);
  }
  struct sigaction own = {};
  struct sigaction before = {};
  own.sa_handler = SIG_DFL;
  ASSERT_EQ(sigaction(SIGSEGV, &own, &before), 0);
  std::array<std::shared_ptr<Gather>, 3> gathers;
  std::vector<comm::Work> works;
  for (auto& gather : gathers) {
    works.emplace_back(gather = std::make_shared<Gather>());
  }
  std::thread group([&] {
    for (const auto& gather : gathers) {
      gather->AwaitReader();
      gather->End();
    }
  });
  EXPECT_TRUE(pending_->Expect(std::move(works)).ok());
  group.join();
  EXPECT_EQ(net_->a.const_data_ptr<float>()[0], 1) << "a closed page would end this process";
  EXPECT_EQ(sigaction(SIGSEGV, &before, nullptr), 0);
}

TEST_F(PendingValuesTest, BucketsThatShareAPageComeTogether) {
  for (const int64_t elements : {32, 1024 + 256}) {
    Make(elements);
    Arrive(1, 1);
    float sum = 0;
    std::thread reader([&] { sum = net_->b.sum().item<float>(); });
    gathers_[0]->AwaitReader();
    Arrive(0, 1);
    gathers_[2]->AwaitReader();
    Arrive(2, 1);
    reader.join();
    EXPECT_EQ(sum, static_cast<float>(elements));
    EXPECT_TRUE(pending_->Settle().ok());
    pending_.reset();
  }
}

TEST_F(PendingValuesTest, NothingListensOnceAllIsThere) {
  Make(kPages);
  EXPECT_TRUE(at::hasGlobalCallbacks());
  for (size_t bucket = 0; bucket < 3; ++bucket) {
    Arrive(bucket, 1);
  }
  EXPECT_EQ(at::cat({net_->a, net_->b, net_->c}).sum().item<float>(), 3 * kPages);
  EXPECT_FALSE(at::hasGlobalCallbacks());
  Expect();
  EXPECT_TRUE(at::hasGlobalCallbacks()) << "another step";
  for (size_t bucket = 0; bucket < 3; ++bucket) {
    Arrive(bucket, 2);
  }
  EXPECT_TRUE(pending_->Settle().ok());
  EXPECT_FALSE(at::hasGlobalCallbacks());
  EXPECT_EQ(net_->a.const_data_ptr<float>()[0], 2);
}

TEST_F(PendingValuesTest, ASystemCallGetsAnErrorAndNothingStale) {
  Make(kPages);
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], net_->a.const_data_ptr(), 16), -1);
  EXPECT_EQ(errno, EFAULT);
  Arrive(2, 1);
  EXPECT_EQ(net_->a.sum().item<float>(), kPages);
  EXPECT_EQ(write(ends[1], net_->a.const_data_ptr(), 16), 16);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(PendingValuesTest, AGatherThatFailsIsToldOnce) {
  Make(kPages);
  const absl::Status lost = absl::UnavailableError("rank 1 is gone");
  gathers_[2]->End(lost);
  net_->a.sum();
  EXPECT_EQ(pending_->status(), lost);
  gathers_[0]->End();
  gathers_[1]->End();
  EXPECT_EQ(pending_->Settle(), lost);
  EXPECT_TRUE(pending_->Settle().ok());
  EXPECT_TRUE(pending_->status().ok());
}

using PendingValuesDeathTest = PendingValuesTest;

TEST_F(PendingValuesDeathTest, CodeThatIsNoOperationIsNotGivenWhatDidNotCome) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto read = [this] {
    Make(kPages);
    gathers_[2]->End(absl::UnavailableError("rank 1 is gone"));
    const volatile float* const data = net_->a.const_data_ptr<float>();
    static_cast<void>(data[5]);
  };
  EXPECT_EXIT(read(), ::testing::ExitedWithCode(75),
              "error: weights were read that did not come: rank 1 is gone");
}

TEST_F(PendingValuesTest, AForkedProcessIsToldInsteadOfWaitingForever) {
  Make(kPages);
  const volatile float* const data = net_->a.const_data_ptr<float>();
  for (const bool by_operation : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      if (by_operation) {
        net_->a.sum();
      } else {
        static_cast<void>(data[5]);
      }
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 64) << by_operation;
  }
}

TEST_F(PendingValuesTest, SoIsOneForkedWhileAThreadWaits) {
  Make(kPages);
  std::thread reader([&] { net_->b.sum(); });
  gathers_[1]->AwaitReader();  // It holds the lock from here on, in the child for ever.
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    net_->a.sum();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  Arrive(1, 1);
  reader.join();
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 64);
}

}  // namespace
}  // namespace dtrain::pending_values_test
