// Each call of the storage seam, on both servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/numeric/prng.h"
#include "checkpoint/storage/s3/aws_settings.h"
#include "checkpoint/storage/s3/s3_client.h"
#include "tests/checkpoint/s3/fault_proxy.h"
#include "tests/checkpoint/s3/s3_server.h"

namespace dtrain::checkpoint::s3::storage_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::byte> RandomBytes(size_t bytes, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) {
    byte = static_cast<std::byte>(random.Next());
  }
  return data;
}

class StorageTest : public ::testing::TestWithParam<S3Server::Kind> {
 protected:
  S3Server& server_ = S3Server::Of(GetParam());
  const std::string url_ = server_.NewUrl();
  const std::unique_ptr<Storage> storage_ = OpenOrDie(url_, OptionsOf(server_.endpoint()));

  // Writes a file in appends of `append_bytes`.
  absl::Status Write(Storage& storage, const std::string& path, const std::vector<std::byte>& data,
                     size_t append_bytes) {
    auto file = storage.CreateFile(path, data.size(), Access::kOwner);
    if (!file.ok()) {
      return file.status();
    }
    for (size_t at = 0; at < data.size(); at += append_bytes) {
      const absl::Status status =
          (*file)->Append(absl::MakeConstSpan(data).subspan(at, append_bytes));
      if (!status.ok()) {
        return status;
      }
    }
    return (*file)->Finish();
  }

  std::vector<std::byte> Read(const std::string& path) {
    auto file = storage_->OpenFile(path);
    DT_CHECK_OK(file.status());
    std::vector<std::byte> data((*file)->bytes());
    DT_CHECK_OK((*file)->ReadAt(0, absl::MakeSpan(data)));
    return data;
  }

  // The unfinished uploads below the storage's root.
  std::vector<ListedUpload> Uploads() {
    const S3Url url = *ParseS3Url(url_);
    const S3Options options = OptionsOf(server_.endpoint());
    const auto transport = MakeCurlTransport("");
    DT_CHECK_OK(transport.status());
    const auto settings = ResolveSettings(url, options, *options.environment, {});
    DT_CHECK_OK(settings.status());
    S3Client client(*settings, options, *options.environment, {}, **transport);
    const auto uploads = client.ListUploads(url.prefix + "/");
    DT_CHECK_OK(uploads.status());
    return *uploads;
  }
};

TEST_P(StorageTest, FilesOfEverySizeAreReadBack) {
  constexpr size_t kPart = 5 << 20;
  uint64_t seed = 1;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, kPart - 1, kPart, kPart + 1,
                             3 * kPart, 3 * kPart + 12345}) {
    const std::vector<std::byte> data = RandomBytes(bytes, seed);
    const std::string path = absl::StrCat("folder/file-", bytes);
    const absl::Status written = Write(*storage_, path, data, 777'777);
    ASSERT_TRUE(written.ok()) << written << " at " << bytes << " bytes";
    EXPECT_TRUE(Read(path) == data) << bytes << " bytes, seed " << seed;
    ++seed;
  }
  EXPECT_THAT(Uploads(), IsEmpty());
}

TEST_P(StorageTest, RangesAreReadAndTheEndIsKnown) {
  const std::vector<std::byte> data = RandomBytes(100'000, 3);
  ASSERT_TRUE(Write(*storage_, "file", data, data.size()).ok());
  const auto file = storage_->OpenFile("file");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->bytes(), data.size());
  for (const auto& [offset, bytes] : std::vector<std::pair<size_t, size_t>>{
           {0, 1}, {0, 100'000}, {99'999, 1}, {12'345, 60'000}, {50, 0}}) {
    std::vector<std::byte> got(bytes);
    const absl::Status status = (*file)->ReadAt(offset, absl::MakeSpan(got));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(absl::MakeConstSpan(got) == absl::MakeConstSpan(data).subspan(offset, bytes));
  }
  std::vector<std::byte> more(10);
  EXPECT_TRUE(absl::IsOutOfRange((*file)->ReadAt(99'995, absl::MakeSpan(more))));
  EXPECT_TRUE(absl::IsOutOfRange((*file)->ReadAt(200'000, absl::MakeSpan(more))));
  EXPECT_TRUE(absl::IsNotFound(storage_->OpenFile("nothing").status()));
}

TEST_P(StorageTest, AFileIsThereOnlyWhenItIsFinished) {
  const std::vector<std::byte> data = RandomBytes(12 << 20, 4);
  {
    auto file = storage_->CreateFile("a/big", data.size(), Access::kOwner);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Append(data).ok());
    EXPECT_TRUE(absl::IsNotFound(storage_->OpenFile("a/big").status()));
    EXPECT_TRUE(absl::IsNotFound(storage_->List("a").status()));
  }
  EXPECT_THAT(Uploads(), SizeIs(1)) << "the dropped file's upload";
  EXPECT_TRUE(storage_->RemoveFile("a/big").ok());
  EXPECT_THAT(Uploads(), IsEmpty());
  ASSERT_TRUE(Write(*storage_, "a/big", data, 1 << 20).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Write(*storage_, "a/big", data, 1 << 20)));
}

TEST_P(StorageTest, UploadsOfWritersThatDiedAreRemovedByTheirPath) {
  const std::vector<std::byte> data = RandomBytes(6 << 20, 5);
  for (const char* const path : {"old/file", "new/file"}) {
    auto file = storage_->CreateFile(path, data.size(), Access::kOwner);
    ASSERT_TRUE(file.ok() && (*file)->Append(data).ok());
  }
  ASSERT_THAT(Uploads(), SizeIs(2));
  const absl::Status status =
      storage_->RemoveUnfinished([](const std::string& path) { return path == "old/file"; });
  ASSERT_TRUE(status.ok()) << status;
  const auto left = Uploads();
  ASSERT_THAT(left, SizeIs(1));
  EXPECT_THAT(left[0].key, HasSubstr("/run/new/file"));
}

TEST_P(StorageTest, PublishIsExclusiveAndReplaceIsNot) {
  EXPECT_TRUE(storage_->Publish("folder/MANIFEST.json", "one").ok());
  const absl::Status second = storage_->Publish("folder/MANIFEST.json", "two");
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr(url_ + "/folder/MANIFEST.json"));
  EXPECT_EQ(ReadAll(*storage_, "folder/MANIFEST.json"), "one");
  EXPECT_TRUE(storage_->Replace("latest", "one").ok());
  EXPECT_TRUE(storage_->Replace("latest", "two").ok());
  EXPECT_EQ(ReadAll(*storage_, "latest"), "two");
}

TEST_P(StorageTest, OfManyWritersThatPublishAtOnceOneWins) {
  // moto looks for the object and writes it in two steps, between which another request may come.
  std::mutex one_at_a_time;
  for (int round = 0; round < 10; ++round) {
    const std::string path = absl::StrCat("race/", round);
    std::atomic<int> won{0};
    std::atomic<int> lost{0};
    std::string winner;
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back([&, i] {
        const std::string mine = absl::StrCat("writer ", i);
        std::unique_lock lock(one_at_a_time, std::defer_lock);
        if (GetParam() == S3Server::Kind::kMoto) {
          lock.lock();
        }
        const absl::Status status = storage_->Publish(path, mine);
        if (status.ok()) {
          winner = mine;
          ++won;
        } else {
          EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
          ++lost;
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(won, 1) << "round " << round;
    EXPECT_EQ(lost, 5);
    EXPECT_EQ(ReadAll(*storage_, path), winner);
  }
}

TEST_P(StorageTest, FoldersAreListedOneLevelDeep) {
  EXPECT_TRUE(storage_->List("")->empty()) << "the root is there, even if nothing is in it";
  EXPECT_TRUE(absl::IsNotFound(storage_->List("folder").status()));
  EXPECT_TRUE(storage_->MakeDirectory("folder/inner").ok());
  EXPECT_TRUE(storage_->SyncDirectory("").ok());
  for (const char* const path : {"folder/b", "folder/a", "folder/inner/c", "folder.2/x", "top"}) {
    ASSERT_TRUE(Write(*storage_, path, RandomBytes(5, 1), 5).ok());
  }
  const auto root = storage_->List("");
  ASSERT_TRUE(root.ok());
  ASSERT_THAT(*root, SizeIs(3));
  EXPECT_EQ((*root)[0].name, "folder");
  EXPECT_TRUE((*root)[0].is_directory);
  EXPECT_EQ((*root)[2].name, "top");
  EXPECT_EQ((*root)[2].bytes, 5U);
  const auto folder = storage_->List("folder");
  ASSERT_THAT(*folder, SizeIs(3));
  EXPECT_EQ((*folder)[0].name, "a");
  EXPECT_EQ((*folder)[2].name, "inner");
  EXPECT_TRUE(RemoveTree(*storage_, "folder").ok());
  EXPECT_THAT(FilesBelow(*storage_, ""), ElementsAre("folder.2/x", "top")) << "that is another";
  EXPECT_TRUE(storage_->RemoveFile("nothing").ok());
}

TEST_P(StorageTest, PathsThatLeadOutAreRefused) {
  for (const char* const path : {"", "../x", "a/../b", "/a", "a//b", "./a"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(storage_->OpenFile(path).status())) << path;
    EXPECT_TRUE(absl::IsInvalidArgument(storage_->Publish(path, "x"))) << path;
    EXPECT_TRUE(absl::IsInvalidArgument(storage_->RemoveFile(path))) << path;
  }
}

// On SeaweedFS: moto takes a minute for as many objects.
TEST(PagesTest, AListOfMoreThanOnePageIsWhole) {
  const S3Server& server = S3Server::Of(S3Server::Kind::kSeaweed);
  const auto storage = OpenOrDie(server.NewUrl(), OptionsOf(server.endpoint()));
  constexpr int kFiles = 1012;  // A page has 1,000.
  std::vector<std::thread> threads;
  std::atomic<int> next{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int file = next++; file < kFiles; file = next++) {
        EXPECT_TRUE(storage->Replace(absl::StrCat("many/f", file), "x").ok());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const auto entries = storage->List("many");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_THAT(*entries, SizeIs(kFiles));
}

// On moto, which does not see that the request is no longer the one that was signed.
TEST(ConditionsTest, AStoreThatHeedsNoneIsRefusedForCommits) {
  const S3Server& server = S3Server::Of(S3Server::Kind::kMoto);
  FaultProxy proxy(server.port(), [](const std::string&, int) { return Fault::kDropCondition; });
  const auto storage = OpenOrDie(server.NewUrl(), OptionsOf(proxy.endpoint()));
  const absl::Status status = storage->Publish("first", "x");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("does not heed `If-None-Match: *`"));
}

INSTANTIATE_TEST_SUITE_P(Servers, StorageTest, ::testing::ValuesIn(S3Server::kKinds),
                         [](const auto& test) { return S3Server::Name(test.param); });

}  // namespace
}  // namespace dtrain::checkpoint::s3::storage_test
