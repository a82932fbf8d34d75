// A save waits at once for all files that are on their way, where the storage gains by it.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/status.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/forwarding_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::syncs_at_once_test {
namespace {

constexpr size_t kAtOnce = 2;

// Makes files of model/ durable only when so many of them are waited for at once.
class MeetingStorage final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  absl::StatusOr<std::unique_ptr<WritableFile>> CreateFile(const std::string& path, uint64_t bytes,
                                                           Access access) override {
    DT_ASSIGN_OR_RETURN(auto file, inner_.CreateFile(path, bytes, access));
    if (!absl::StrContains(path, "/model/")) {
      return file;
    }
    return std::make_unique<File>(std::move(file), *this);
  }
  size_t syncs_at_once() const override { return kAtOnce; }

 private:
  class File final : public WritableFile {
   public:
    File(std::unique_ptr<WritableFile> inner, MeetingStorage& storage)
        : inner_(std::move(inner)), storage_(storage) {}
    absl::Status Append(absl::Span<const std::byte> data) override { return inner_->Append(data); }
    absl::Status Finish() override {
      DT_RETURN_IF_ERROR(storage_.Meet());
      return inner_->Finish();
    }

   private:
    const std::unique_ptr<WritableFile> inner_;
    MeetingStorage& storage_;
  };

  absl::Status Meet() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::minutes(1), [this] { return waiting_ >= kAtOnce; })
               ? absl::OkStatus()
               : absl::DeadlineExceededError("a file waits alone until it is durable");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t waiting_ = 0;
};

TEST(SyncsAtOnceTest, TheFilesOfTheModelAreMadeDurableSideBySide) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  auto storage = OpenPosixStorage(folder.path());
  ASSERT_TRUE(storage.ok()) << storage.status();
  const auto epoch = BeginEpoch(**storage, "job", 1, std::nullopt);
  ASSERT_TRUE(epoch.ok()) << epoch.status();
  MeetingStorage meeting(**storage);
  const std::vector<SaveReport> reports = SaveOnRanks(meeting, OptionsFor(*epoch), 1, 12);
  ASSERT_EQ(reports[0].outcome, SaveOutcome::kCommitted) << reports[0].status;
  const auto found = FindLatest(**storage);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(FakeState(12, 0, 1).Compare(**found).ok());
}

}  // namespace
}  // namespace dtrain::checkpoint::syncs_at_once_test
