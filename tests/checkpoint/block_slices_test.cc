// TensorReads reads blocks slice by slice, straight to where the bytes belong, where the storage
// takes small reads, and each block at once where it does not. Both give the same bytes and find
// the same damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status.h"
#include "checkpoint/restore/tensor_reads.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/forwarding_storage.h"
#include "tests/checkpoint/restore/large_states.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::block_slices_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr char kStateFile[] = "/step-000000000002.e1/state/rank-0-of-2.safetensors";

struct Read {
  const std::byte* into = nullptr;
  uint64_t bytes = 0;
};

// A storage that says whether it takes small reads, and notes what is read of its files.
class NotedStorage final : public ForwardingStorage {
 public:
  NotedStorage(Storage& inner, bool small_reads)
      : ForwardingStorage(inner), small_reads_(small_reads) {}
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) override {
    DT_ASSIGN_OR_RETURN(auto file, inner_.OpenFile(path));
    return std::make_unique<File>(std::move(file), *this);
  }
  std::vector<Read> TakeReads() {
    const std::lock_guard lock(mutex_);
    return std::exchange(reads_, {});
  }

 private:
  class File final : public ReadableFile {
   public:
    File(std::unique_ptr<ReadableFile> file, NotedStorage& storage)
        : file_(std::move(file)), storage_(storage) {}
    uint64_t bytes() const override { return file_->bytes(); }
    absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
      {
        const std::lock_guard lock(storage_.mutex_);
        storage_.reads_.push_back({into.data(), into.size()});
      }
      return file_->ReadAt(offset, into);
    }
    bool takes_small_reads() const override { return storage_.small_reads_; }

   private:
    const std::unique_ptr<ReadableFile> file_;
    NotedStorage& storage_;
  };

  const bool small_reads_;
  std::mutex mutex_;
  std::vector<Read> reads_;
};

class BlockSlicesTest : public LargeStatesTest {
 protected:
  static std::unique_ptr<Checkpoint> Open(Storage& storage) {
    auto opened = Checkpoint::Open(storage, {1, 2}, Verify::kSizes);
    DT_CHECK_OK(opened.status());
    return *std::move(opened);
  }
  // The first block of the file that is all of "master".
  static uint64_t BlockOf(const Checkpoint& from) {
    return (PlaceOf(from) + kBlockBytes - 1) / kBlockBytes;
  }
  // The byte of "master" with which it begins.
  static uint64_t StartOf(const Checkpoint& from) {
    return BlockOf(from) * kBlockBytes - PlaceOf(from);
  }
  static Checkpoint::Place Find(const Checkpoint& from) {
    const auto place = from.FindStateTensor(0, {"master", DType::kFloat32, {kElements}});
    DT_CHECK_OK(place.status());
    return *place;
  }
  static uint64_t PlaceOf(const Checkpoint& from) { return Find(from).offset; }
  static size_t FileOf(const Checkpoint& from) { return Find(from).file; }
  void Flip(uint64_t offset) {
    std::fstream file(folder_.path() + kStateFile, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
    ASSERT_TRUE(file.good());
  }
};

TEST_F(BlockSlicesTest, PiecesOfAnySizeAndPlaceGetTheSavedBytes) {
  constexpr uint64_t kSizes[] = {1, 4, 700, 5000, 32767, 32768, 131072, 131073, 300001, 5000000};
  for (const bool small_reads : {true, false}) {
    NotedStorage storage(*storage_, small_reads);
    SplitMix64 random(20261127);
    for (int round = 0; round < 20; ++round) {
      SCOPED_TRACE(absl::StrCat("small reads ", small_reads, ", round ", round));
      const auto from = Open(storage);
      TensorReads reads(*from);
      std::vector<std::pair<uint64_t, std::vector<std::byte>>> pieces;
      // Every third round asks for some bytes several times; the others for none.
      uint64_t at = random.Below(3) * kBlockBytes / 2;
      for (int i = 0; i < 12 && at < kStateBytes; ++i) {
        const uint64_t bytes = std::min(kSizes[random.Below(std::size(kSizes))], kStateBytes - at);
        pieces.emplace_back(at, std::vector<std::byte>(bytes, std::byte{0x5a}));
        at = round % 3 == 0 ? random.Below(kStateBytes) : at + bytes + random.Below(2) * 3001;
      }
      for (auto& [offset, bytes] : pieces) {
        ASSERT_TRUE(Ask(reads, offset, absl::MakeSpan(bytes)).ok());
      }
      ASSERT_TRUE(reads.Run().ok());
      for (const auto& [offset, bytes] : pieces) {
        EXPECT_TRUE(IsSaved(offset, bytes)) << bytes.size() << " bytes from " << offset;
      }
    }
  }
}

TEST_F(BlockSlicesTest, ALargePieceIsReadToItsPlaceAndTheRestOfItsBlockInSlices) {
  NotedStorage storage(*storage_, /*small_reads=*/true);
  const auto from = Open(storage);
  TensorReads reads(*from);
  std::vector<std::byte> piece(3 << 20);
  const uint64_t offset = StartOf(*from) + 1000;
  ASSERT_TRUE(Ask(reads, offset, absl::MakeSpan(piece)).ok());
  storage.TakeReads();
  ASSERT_TRUE(reads.Run().ok());
  EXPECT_TRUE(IsSaved(offset, piece));
  uint64_t in_place = 0;
  uint64_t all = 0;
  std::vector<uint64_t> sizes;
  for (const Read& read : storage.TakeReads()) {
    const bool inside = piece.data() <= read.into && read.into < piece.data() + piece.size();
    in_place += inside ? read.bytes : 0;
    all += read.bytes;
    sizes.push_back(read.bytes);
  }
  EXPECT_EQ(in_place, piece.size());
  EXPECT_EQ(all, kBlockBytes) << "each byte of the block once";
  EXPECT_THAT(sizes, Each(Le(kSliceBytes)));
}

TEST_F(BlockSlicesTest, AHeaderIsReadByItselfAndTheRestOfItsBlockInSlices) {
  NotedStorage storage(*storage_, /*small_reads=*/true);
  const auto from = Open(storage);
  TensorReads reads(*from);
  reads.AddBlock(from->first_block(FileOf(*from)));
  storage.TakeReads();
  ASSERT_TRUE(reads.Run().ok());
  uint64_t all = 0;
  std::vector<uint64_t> sizes;
  for (const Read& read : storage.TakeReads()) {
    all += read.bytes;
    sizes.push_back(read.bytes);
  }
  EXPECT_EQ(all, kBlockBytes);
  EXPECT_EQ(sizes[0], from->HeaderBytes(FileOf(*from)));
  EXPECT_THAT(sizes, Each(Le(kSliceBytes)));
}

TEST_F(BlockSlicesTest, AHeaderWithMoreThanTheManifestKnowsIsDamage) {
  absl::StatusOr<Manifest> manifest = ReadManifest(*storage_, {1, 2});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const size_t file = FileOf(*Open(*storage_));
  std::vector<ManifestTensor>& tensors = manifest->tensors;  // In the order of their offsets.
  const auto last = std::find_if(tensors.rbegin(), tensors.rend(),
                                 [&](const ManifestTensor& one) { return one.file == file; });
  ASSERT_NE(last, tensors.rend());
  tensors.erase(std::next(last).base());
  ASSERT_TRUE(WriteFileAtomic(folder_.path() + "/step-000000000002.e1/MANIFEST.json",
                              EncodeManifest(*manifest))
                  .ok());
  for (const bool small_reads : {true, false}) {
    NotedStorage storage(*storage_, small_reads);
    const auto from = Open(storage);
    TensorReads reads(*from);
    reads.AddBlock(from->first_block(file));
    const absl::Status status = reads.Run();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(kStateFile), HasSubstr("its tensors begin at byte")));
  }
}

TEST_F(BlockSlicesTest, AStorageThatTakesNoSmallReadsGivesABlockAtOnce) {
  NotedStorage storage(*storage_, /*small_reads=*/false);
  const auto from = Open(storage);
  TensorReads reads(*from);
  std::vector<std::byte> piece(3 << 20);
  ASSERT_TRUE(Ask(reads, StartOf(*from) + 1000, absl::MakeSpan(piece)).ok());
  storage.TakeReads();
  ASSERT_TRUE(reads.Run().ok());
  const std::vector<Read> read = storage.TakeReads();
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].bytes, kBlockBytes);
}

TEST_F(BlockSlicesTest, DamageIsFoundInBytesThatNobodyAskedForToo) {
  const uint64_t block = BlockOf(*Open(*storage_)) * kBlockBytes;
  for (const bool small_reads : {true, false}) {
    // In front of the pieces, in one, in the small one, between them, and behind.
    for (const uint64_t within :
         {uint64_t{0}, uint64_t{500000}, uint64_t{1400005}, uint64_t{2000000}, kBlockBytes - 1}) {
      SCOPED_TRACE(absl::StrCat("small reads ", small_reads, ", byte ", within));
      NotedStorage storage(*storage_, small_reads);
      Flip(block + within);
      const auto from = Open(storage);
      TensorReads reads(*from);
      std::vector<std::byte> large(1 << 20);
      std::vector<std::byte> small(100);
      const uint64_t start = StartOf(*from);
      ASSERT_LE(start + kBlockBytes, kStateBytes) << "a block of this state alone";
      ASSERT_TRUE(Ask(reads, start + 300000, absl::MakeSpan(large)).ok());
      ASSERT_TRUE(Ask(reads, start + 1400000, absl::MakeSpan(small)).ok());
      const absl::Status status = reads.Run();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(kStateFile),
                        HasSubstr(absl::StrCat("bytes ", block, " to ", block + kBlockBytes,
                                               " have CRC-32C"))));
      EXPECT_EQ(from->damage(), status);
      Flip(block + within);
    }
  }
}

}  // namespace
}  // namespace dtrain::checkpoint::block_slices_test
