#include "runtime/data/remote/block_fetcher.h"

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::remote::block_fetcher_test {
namespace {

constexpr int64_t kBytes = 1 << 10;

// A server whose blocks are filled with their number, which counts requests and can be closed.
class FakeServer {
 public:
  BlockFetcher::Fetch fetch() {
    return [this](const BlockId& id, absl::Span<std::byte> into) -> absl::Status {
      std::unique_lock lock(mutex_);
      ++requests_[id.number];
      changed_.notify_all();
      changed_.wait(lock, [this] { return is_open_; });
      if (fails_) {
        return absl::UnavailableError("the server is away");
      }
      std::fill(into.begin(), into.end(), static_cast<std::byte>(id.number));
      return absl::OkStatus();
    };
  }
  void Set(bool is_open, bool fails) {
    const std::lock_guard lock(mutex_);
    is_open_ = is_open;
    fails_ = fails;
    changed_.notify_all();
  }
  // Waits until so many blocks have been asked for.
  void Await(size_t blocks) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return requests_.size() >= blocks; });
  }
  int requests(int64_t number) {
    const std::lock_guard lock(mutex_);
    return requests_[number];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, int> requests_;
  bool is_open_ = true;
  bool fails_ = false;
};

BlockId Id(int64_t number) { return {7, number, kBytes}; }

absl::Status ReadOne(BlockFetcher& fetcher, int64_t number) {
  std::byte bytes[16];
  const absl::Status status = fetcher.Read(Id(number), 100, bytes);
  if (status.ok()) {
    EXPECT_EQ(bytes[0], static_cast<std::byte>(number));
    EXPECT_EQ(bytes[15], static_cast<std::byte>(number));
  }
  return status;
}

class BlockFetcherTest : public ::testing::Test {
 protected:
  std::unique_ptr<BlockFetcher> Make(bool with_folder, FetcherOptions options = {}) {
    std::unique_ptr<BlockFolder> folder;
    if (with_folder) {
      folder = *BlockFolder::Open(temporary_.path() + "/cache", 1 << 20);
    }
    return std::make_unique<BlockFetcher>(options, std::move(folder), server_.fetch());
  }

  plan::TempFolder temporary_;
  FakeServer server_;
};

TEST_F(BlockFetcherTest, EachBlockIsFetchedOnceByAllThatShareAFolder) {
  const auto one = Make(true);
  const auto other = Make(true);
  for (int round = 0; round < 2; ++round) {
    for (int64_t number = 0; number < 20; ++number) {
      ASSERT_TRUE(ReadOne(*one, number).ok());
      ASSERT_TRUE(ReadOne(*other, number).ok());
    }
  }
  for (int64_t number = 0; number < 20; ++number) {
    EXPECT_EQ(server_.requests(number), 1);
  }
}

TEST_F(BlockFetcherTest, ReadersThatWantABlockAtOnceShareOneRequest) {
  const auto fetcher = Make(false);
  server_.Set(/*is_open=*/false, /*fails=*/false);
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] { EXPECT_TRUE(ReadOne(*fetcher, 3).ok()); });
  }
  server_.Await(1);
  server_.Set(true, false);
  for (std::thread& reader : readers) {
    reader.join();
  }
  EXPECT_EQ(server_.requests(3), 1);
}

TEST_F(BlockFetcherTest, ReadersThatMeetAtEveryBlockShareItsRequest) {
  constexpr int64_t kBlocks = 2000;
  for (const bool with_folder : {false, true}) {
    const auto fetcher = Make(with_folder, {.memory_bytes_max = 2 * kBlocks * kBytes});
    const int64_t first = with_folder ? kBlocks : 0;
    const int64_t end = first + (with_folder ? kBlocks / 10 : kBlocks);
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back([&] {
        for (int64_t number = first; number < end; ++number) {
          EXPECT_TRUE(ReadOne(*fetcher, number).ok());
        }
      });
    }
    for (std::thread& reader : readers) {
      reader.join();
    }
    for (int64_t number = first; number < end; ++number) {
      EXPECT_EQ(server_.requests(number), 1) << "block " << number;
    }
  }
}

TEST_F(BlockFetcherTest, BlocksAheadAreReadDuringAnOutage) {
  const auto fetcher = Make(true);
  for (int64_t number = 0; number < 10; ++number) {
    ASSERT_TRUE(fetcher->WillRead(Id(number)));
  }
  server_.Await(10);
  for (int64_t number = 0; number < 10; ++number) {  // Those under way land before their read ends.
    ASSERT_TRUE(ReadOne(*fetcher, number).ok());
  }
  server_.Set(/*is_open=*/true, /*fails=*/true);
  for (int64_t number = 0; number < 10; ++number) {
    EXPECT_TRUE(ReadOne(*fetcher, number).ok());
    EXPECT_EQ(server_.requests(number), 1);
  }
  EXPECT_EQ(ReadOne(*fetcher, 11).code(), absl::StatusCode::kUnavailable);
  server_.Set(true, false);
  EXPECT_TRUE(ReadOne(*fetcher, 11).ok()) << "a failure does not stay";
}

TEST_F(BlockFetcherTest, NoMoreBlocksWaitThanThereIsRoomFor) {
  for (const bool with_folder : {false, true}) {
    const auto fetcher = Make(
        with_folder, {.threads = 2, .memory_bytes_max = 8 * kBytes, .ahead_bytes_max = 4 * kBytes});
    const int64_t first = with_folder ? 100 : 0;
    int64_t said = 0;
    while (said < 50 && fetcher->WillRead(Id(first + said))) {
      ++said;
    }
    EXPECT_EQ(said, 4);
    EXPECT_TRUE(fetcher->WillRead(Id(first))) << "it is one of those that wait";
    ASSERT_TRUE(ReadOne(*fetcher, first).ok());
    EXPECT_TRUE(fetcher->WillRead(Id(first + 4))) << "a read makes room";
    EXPECT_FALSE(fetcher->WillRead(Id(first + 5)));
    fetcher->ForgetAhead();
    EXPECT_TRUE(fetcher->WillRead(Id(first + 6)));
  }
}

TEST_F(BlockFetcherTest, ProcessesThatShareAFolderShareItsRoomForBlocksAhead) {
  int64_t first = 0;
  for (const int processes : {1, 4, 1000}) {
    const auto fetcher = Make(true, {.threads = 0, .processes = processes});
    int64_t said = 0;
    while (said < 1000 && fetcher->WillRead(Id(first + said))) {
      ++said;
    }
    // A quarter of the folder's 1024 blocks, and one block at least.
    EXPECT_EQ(said, std::max(1, 256 / processes)) << processes;
    first += 1000;
  }
}

TEST_F(BlockFetcherTest, TheBlocksThatWereSeenInTheFolderDoNotGrowForEver) {
  const auto kept = BlockFolder::Open(temporary_.path() + "/cache", 1 << 20);
  const std::vector<std::byte> block(static_cast<size_t>(kBytes));
  for (int64_t number = 0; number < 3; ++number) {
    ASSERT_TRUE((*kept)->Keep(Id(number), block).ok());
  }
  const auto fetcher = Make(true, {.threads = 0, .ahead_bytes_max = kBytes, .seen_max = 2});
  for (int64_t number = 0; number < 3; ++number) {
    ASSERT_TRUE(fetcher->WillRead(Id(number)));
  }
  for (const auto& object : std::filesystem::directory_iterator(temporary_.path() + "/cache")) {
    std::filesystem::remove(object.path() / "0");
    std::filesystem::remove(object.path() / "2");
  }
  EXPECT_TRUE(fetcher->WillRead(Id(2)));
  EXPECT_TRUE(fetcher->WillRead(Id(50))) << "block 2 is remembered, so that none waits yet";
  fetcher->ForgetAhead();
  EXPECT_TRUE(fetcher->WillRead(Id(0)));
  EXPECT_FALSE(fetcher->WillRead(Id(50))) << "block 0 was looked for again, and waits";
}

// Counts the descriptors of this process that have a file open.
int TimesOpen(const std::filesystem::path& file) {
  int times = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    times += std::filesystem::read_symlink(entry.path(), closed) == file ? 1 : 0;
  }
  return times;
}

class HeldBlockTest : public BlockFetcherTest {
 protected:
  // The lock of a block as another process of the host holds it while it fetches the block.
  UniqueFd Hold(int64_t number) {
    const auto other = BlockFolder::Open(temporary_.path() + "/cache", 1 << 20);
    UniqueFd lock = (*other)->Lock(Id(number), Deadline::After(absl::Seconds(10)));
    EXPECT_TRUE(lock.valid());
    lock_file_ = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(lock.get()));
    return lock;
  }
  // Waits until somebody else of this process waits for the lock.
  void AwaitWaiter() const {
    while (TimesOpen(lock_file_) < 2) {
      std::this_thread::yield();
    }
  }

 private:
  std::filesystem::path lock_file_;
};

TEST_F(HeldBlockTest, AReadThatWaitsForAnotherProcessEndsWhenItIsCancelled) {
  const UniqueFd held = Hold(3);
  const auto fetcher = Make(true);
  absl::Status status;
  std::thread reader([&] { status = ReadOne(*fetcher, 3); });
  AwaitWaiter();
  fetcher->Cancel();
  reader.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(ReadOne(*fetcher, 3).code(), absl::StatusCode::kCancelled) << "and so does a later one";
  EXPECT_EQ(server_.requests(3), 0);
}

TEST_F(HeldBlockTest, AFetchAheadThatWaitsForAnotherProcessHoldsUpNoDestruction) {
  const UniqueFd held = Hold(3);
  auto fetcher = Make(true);
  ASSERT_TRUE(fetcher->WillRead(Id(3)));
  AwaitWaiter();
  fetcher.reset();
  EXPECT_EQ(server_.requests(3), 0) << "it has not waited until it fetches the block itself";
  EXPECT_EQ(TimesOpen(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(held.get()))),
            1);
}

TEST_F(BlockFetcherTest, ManyMoreBlocksThanMemoryHoldsAreReadThroughIt) {
  const auto fetcher = Make(false, {.threads = 2, .memory_bytes_max = 4 * kBytes});
  for (int round = 0; round < 2; ++round) {
    for (int64_t number = 0; number < 50; ++number) {
      fetcher->WillRead(Id(number + 1));
      ASSERT_TRUE(ReadOne(*fetcher, number).ok());
      ASSERT_TRUE(ReadOne(*fetcher, number).ok());
    }
  }
}

TEST_F(BlockFetcherTest, AFolderThatTakesNoMoreBlocksEndsNoRead) {
  const auto fetcher = Make(true);
  ASSERT_TRUE(ReadOne(*fetcher, 0).ok());
  // A file stands where the folder of the object was, as on a disk that is full.
  std::vector<std::filesystem::path> objects;
  for (const auto& entry : std::filesystem::directory_iterator(temporary_.path() + "/cache")) {
    if (entry.path().filename() != "locks") {
      objects.push_back(entry.path());
    }
  }
  ASSERT_EQ(objects.size(), 1U);
  std::filesystem::remove_all(objects[0]);
  std::ofstream(objects[0]) << "a file";
  for (int64_t number = 1; number < 5; ++number) {
    EXPECT_TRUE(ReadOne(*fetcher, number).ok());
    EXPECT_TRUE(ReadOne(*fetcher, number).ok());
    EXPECT_EQ(server_.requests(number), 1) << "memory keeps it for a while";
  }
}

}  // namespace
}  // namespace dtrain::remote::block_fetcher_test
