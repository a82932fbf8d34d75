// Blocks are read side by side and come in order; the first bad one is the one that is told.
#include "checkpoint/storage/block_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/threads/work_count.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/storage/checked_file.h"

namespace dtrain::checkpoint::block_reader_test {
namespace {

using ::testing::HasSubstr;

// A file whose bytes follow from their places.
class PatternFile final : public ReadableFile {
 public:
  explicit PatternFile(uint64_t bytes) : bytes_(bytes) {}
  static std::byte At(uint64_t offset) {
    return static_cast<std::byte>(offset * 2654435761U >> 13U);
  }

  uint64_t bytes() const override { return bytes_; }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
    EXPECT_LE(offset + into.size(), bytes_);
    for (size_t i = 0; i < into.size(); ++i) {
      into[i] = At(offset + i);
    }
    return on_read ? on_read(offset, into) : absl::OkStatus();
  }
  std::function<absl::Status(uint64_t offset, absl::Span<std::byte> into)> on_read;

 private:
  const uint64_t bytes_;
};

// Lets nobody through before `count` have come, or it was opened.
class Gate {
 public:
  explicit Gate(size_t count) : left_(count) {}
  void Pass() {
    std::unique_lock lock(mutex_);
    left_ -= left_ > 0 ? 1 : 0;
    changed_.notify_all();
    changed_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t left_;
};

TEST(BlockReaderTest, GivesTheBlocksInOrder) {
  for (const uint64_t bytes : {uint64_t{1}, kBlockBytes - 1, kBlockBytes, kBlockBytes + 1,
                               3 * kBlockBytes, 9 * kBlockBytes + 5}) {
    SCOPED_TRACE(bytes);
    const PatternFile file(bytes);
    BlockReader reader(file, bytes);
    for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
      const auto block = reader.Next();
      ASSERT_TRUE(block.ok()) << block.status();
      ASSERT_EQ(block->size(), std::min(kBlockBytes, bytes - at));
      for (size_t i = 0; i < block->size(); i += 4093) {
        ASSERT_EQ((*block)[i], PatternFile::At(at + i));
      }
      ASSERT_EQ(block->back(), PatternFile::At(at + block->size() - 1));
    }
  }
}

TEST(BlockReaderTest, HasSeveralReadsUnderWay) {
  PatternFile file(8 * kBlockBytes);
  Gate gate(kReaders);  // One read alone would wait for ever.
  file.on_read = [&](uint64_t /*offset*/, absl::Span<std::byte> /*into*/) {
    gate.Pass();
    return absl::OkStatus();
  };
  BlockReader reader(file, file.bytes());
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(reader.Next().ok());
  }
}

TEST(BlockReaderTest, AnErrorComesInTheBlocksPlace) {
  for (const uint64_t blocks : {2, 8}) {
    PatternFile file(blocks * kBlockBytes);
    file.on_read = [](uint64_t offset, absl::Span<std::byte> /*into*/) {
      return offset >= kBlockBytes ? absl::UnavailableError(absl::StrCat("byte ", offset))
                                   : absl::OkStatus();
    };
    BlockReader reader(file, file.bytes());
    EXPECT_TRUE(reader.Next().ok());
    EXPECT_EQ(reader.Next().status(), absl::UnavailableError(absl::StrCat("byte ", kBlockBytes)));
  }
}

TEST(BlockReaderTest, AnExceptionOfAReadIsAnError) {
  PatternFile file(5 * kBlockBytes);
  file.on_read = [](uint64_t /*offset*/, absl::Span<std::byte> /*into*/) -> absl::Status {
    throw std::runtime_error("no memory");
  };
  BlockReader reader(file, file.bytes());
  EXPECT_EQ(reader.Next().status().code(), absl::StatusCode::kInternal);
}

TEST(ForEachAtOnceTest, CallsEachOnceAndGivesTheFirstError) {
  for (const uint64_t count : {0, 1, 2, 5, 100}) {
    std::vector<std::atomic<int>> calls(count);
    EXPECT_TRUE(ForEachAtOnce(count, [&](uint64_t i) {
                  ++calls[i];
                  return absl::OkStatus();
                }).ok());
    for (const std::atomic<int>& call : calls) {
      EXPECT_EQ(call.load(), 1);
    }
  }
  for (int run = 0; run < 50; ++run) {
    const absl::Status status = ForEachAtOnce(40, [&](uint64_t i) {
      return i == 7 || i == 8 || i == 30 ? absl::UnavailableError(absl::StrCat(i))
                                         : absl::OkStatus();
    });
    EXPECT_EQ(status, absl::UnavailableError("7"));
  }
}

TEST(ForEachAtOnceTest, RunsOnSeveralThreads) {
  Gate gate(kReaders);
  EXPECT_TRUE(ForEachAtOnce(2 * kReaders, [&](uint64_t /*i*/) {
                gate.Pass();
                return absl::OkStatus();
              }).ok());
}

TEST(WorkCountTest, CountsBlocksAndCallsOfItsThreadsWorkAlone) {
  WorkCount count;
  const PatternFile file(4 * kBlockBytes);
  {
    const WorkCount::Scope counts(&count);
    BlockReader blocks(file, file.bytes());
    for (int block = 0; block < 4; ++block) {
      ASSERT_TRUE(blocks.Next().ok());
    }
    EXPECT_EQ(count.done(), 4U);
    Gate gate(kReaders);
    EXPECT_TRUE(ForEachAtOnce(kReaders, [&](uint64_t /*i*/) {
                  gate.Pass();  // On as many threads.
                  WorkCount::Note();
                  return absl::OkStatus();
                }).ok());
    EXPECT_EQ(count.done(), 4 + 2 * kReaders) << "each call, and what it does";
  }
  WorkCount::Note();
  EXPECT_EQ(count.done(), 4 + 2 * kReaders);
}

TEST(WorkCountTest, WorkGetsOnByAPieceOrWithinTheTimeThatAPieceIsAllowed) {
  WorkCount count;
  const WorkCount::Scope counts(&count);
  uint64_t seen = count.done();
  EXPECT_FALSE(count.GetsOn(seen));
  WorkCount::Note();
  EXPECT_TRUE(count.GetsOn(seen));
  EXPECT_FALSE(count.GetsOn(seen)) << "it has seen this piece";
  WorkCount::Allow(absl::Hours(1));
  EXPECT_TRUE(count.GetsOn(seen));
  EXPECT_TRUE(count.GetsOn(seen));
}

struct Checked {
  PatternFile* file;  // Owned by `checked`.
  std::unique_ptr<CheckedFile> checked;
};

Checked MakeChecked(uint64_t bytes) {
  auto file = std::make_unique<PatternFile>(bytes);
  FileChecksummer checksummer;
  std::vector<std::byte> all(bytes);
  EXPECT_TRUE(file->ReadAt(0, absl::MakeSpan(all)).ok());
  checksummer.Add(all);
  PatternFile* const raw = file.get();
  return {raw, std::make_unique<CheckedFile>(std::move(file), checksummer.Finish(), "file")};
}

TEST(CheckedFileBlocksTest, ReadsRangesOfManyBlocks) {
  const uint64_t bytes = 7 * kBlockBytes + 99;
  const Checked made = MakeChecked(bytes);
  for (const auto& [begin, end] :
       std::vector<std::pair<uint64_t, uint64_t>>{{0, bytes},
                                                  {5, bytes - 5},
                                                  {kBlockBytes, 6 * kBlockBytes},
                                                  {3, kBlockBytes * 2 + 1},
                                                  {kBlockBytes * 4, bytes},
                                                  {bytes - 1, bytes}}) {
    SCOPED_TRACE(absl::StrCat(begin, " to ", end));
    std::vector<std::byte> read(end - begin);
    ASSERT_TRUE(made.checked->ReadAt(begin, absl::MakeSpan(read)).ok());
    for (size_t i = 0; i < read.size(); ++i) {
      ASSERT_EQ(read[i], PatternFile::At(begin + i)) << i;
    }
  }
}

TEST(CheckedFileBlocksTest, TheFirstDamagedBlockOfManyIsNamed) {
  const Checked made = MakeChecked(7 * kBlockBytes);
  made.file->on_read = [](uint64_t offset, absl::Span<std::byte> into) {
    if (offset == 3 * kBlockBytes || offset == 5 * kBlockBytes) {
      into[77] ^= std::byte{1};
    }
    return absl::OkStatus();
  };
  std::vector<std::byte> read(7 * kBlockBytes);
  const absl::Status status = made.checked->ReadAt(0, absl::MakeSpan(read));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("bytes ", 3 * kBlockBytes, " to ", 4 * kBlockBytes)));
}

}  // namespace
}  // namespace dtrain::checkpoint::block_reader_test
