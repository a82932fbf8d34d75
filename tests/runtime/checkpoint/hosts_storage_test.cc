// The disks and memories of two hosts as one storage, seen by a rank of each: which copy of a file
// is read, what becomes of damaged ones, and how replicas of the journal grow.
#include "runtime/checkpoint/tiers/hosts_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device_error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "checkpoint/journal/journal.h"
#include "checkpoint/journal/mend_segments.h"
#include "checkpoint/journal/segment_writer.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "runtime/checkpoint/tiers/hosts_replicas.h"
#include "tests/checkpoint/forwarding_storage.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::hosts_storage_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kStep[] = "step-000000000001.e1/state";
constexpr char kSegment[] = "journal/step-000000000000.e1";
constexpr char kFirstRanks[] = "journal/step-000000000000.e1/rank-0-of-1.journal";

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

// The places of two hosts, each a folder.
class HostsStorageTest : public ::testing::Test {
 protected:
  HostsStorageTest() {
    for (const char* const name : {"disk-0", "disk-1", "memory-0", "memory-1", "behind"}) {
      places_.push_back(*checkpoint::OpenPosixStorage(Path(name)));
    }
  }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_.path(), "/", name);
  }
  std::string Text(const std::string& path) const { return ReadFile(Path(path)).value_or("none"); }
  void Write(const std::string& path, const std::string& text) const {
    ASSERT_TRUE(MakeDirectories(std::filesystem::path(Path(path)).parent_path().string()).ok());
    ASSERT_TRUE(WriteFileAtomic(Path(path), text).ok());
  }

  std::unique_ptr<HostsStorage> RankOf(size_t host) {
    return std::make_unique<HostsStorage>(HostsStorage::Options{
        .disks = {{places_[0].get(), nullptr}, {places_[1].get(), nullptr}},
        .memories = {{places_[2].get(), nullptr}, {places_[3].get(), nullptr}},
        .behind = places_[4].get(),
        .reads_behind = true,
        .host = host,
        .is_rank0 = host == 0,
        .on_journal_alone = [this](const std::string& /*file*/, const std::string& why) {
          alone_.push_back(why);
        }});
  }

  static std::string Read(HostsStorage& storage, const std::string& path) {
    return checkpoint::ReadSmallFile(storage, path, 1000).value_or("none");
  }

  std::unique_ptr<checkpoint::WritableFile> CreateJournal(HostsStorage& storage) {
    EXPECT_TRUE(storage.MakeDirectory(kSegment).ok());
    auto file = storage.CreateFile(absl::StrCat(kSegment, "/a"), 0, checkpoint::Access::kOwner);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : nullptr;
  }

  const testing::TempFolder folder_;
  std::vector<std::unique_ptr<checkpoint::Storage>> places_;
  std::vector<std::string> alone_;
};

TEST_F(HostsStorageTest, RanksThatDropFilesOfOneFolderAtOnceKeepTheCopiesThatAreWhole) {
  for (const char* const name : {"a", "b"}) {
    Write(absl::StrCat("disk-1/", kStep, "/", name), "damaged");
    Write(absl::StrCat("memory-0/", kStep, "/", name), "whole__");
  }
  const std::string a = absl::StrCat(kStep, "/a");
  const std::string b = absl::StrCat(kStep, "/b");
  const auto first = RankOf(0);
  const auto second = RankOf(1);
  ASSERT_EQ(Read(*first, a), "damaged");
  ASSERT_EQ(Read(*first, b), "damaged");
  ASSERT_EQ(Read(*second, b), "damaged");
  EXPECT_TRUE(second->DropDamaged(b).value());
  EXPECT_TRUE(first->DropDamaged(a).value());  // It sees that of `b` one copy is left,
  EXPECT_TRUE(first->DropDamaged(b).value());  // which is not the one that it has read.
  for (const std::string& path : {a, b}) {
    EXPECT_EQ(Read(*first, path), "whole__");
    EXPECT_EQ(Text("memory-0/" + path), "whole__");
    EXPECT_EQ(Text("disk-1/" + path), "none");
  }
  EXPECT_FALSE(first->DropDamaged(b).value());  // Now it is the last one.
  EXPECT_EQ(Text("memory-0/" + b), "whole__");
}

// A file of which a disk cannot read the bytes from `bad` on.
class BadSectors final : public checkpoint::ReadableFile {
 public:
  BadSectors(std::unique_ptr<checkpoint::ReadableFile> file, uint64_t bad)
      : file_(std::move(file)), bad_(bad) {}
  uint64_t bytes() const override { return file_->bytes(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
    return offset + into.size() > bad_ ? ErrnoStatus(EIO, "cannot read disk-1")
                                       : file_->ReadAt(offset, into);
  }

 private:
  const std::unique_ptr<checkpoint::ReadableFile> file_;
  const uint64_t bad_;
};

class BadDisk final : public checkpoint::ForwardingStorage {
 public:
  BadDisk(Storage& disk, uint64_t bad) : ForwardingStorage(disk), bad_(bad) {}
  absl::StatusOr<std::unique_ptr<checkpoint::ReadableFile>> OpenFile(
      const std::string& path) override {
    DT_ASSIGN_OR_RETURN(auto file, inner_.OpenFile(path));
    return std::make_unique<BadSectors>(std::move(file), bad_);
  }

 private:
  const uint64_t bad_;
};

TEST_F(HostsStorageTest, ACopyThatADiskCannotReadIsDroppedForOneThatIsWhole) {
  const std::string path = absl::StrCat(kStep, "/a");
  checkpoint::FileChecksummer checksummer;
  checksummer.Add(AsBytes("whole__"));
  const checkpoint::FileChecksum whole = checksummer.Finish();
  Write("disk-1/" + path, "whole__");
  const auto disk = std::exchange(places_[1], nullptr);
  places_[1] = std::make_unique<BadDisk>(*disk, /*bad=*/3);
  const absl::Status lost =
      checkpoint::VerifyFile(*RankOf(1), path, whole, checkpoint::Verify::kHashes);
  EXPECT_TRUE(IsDeviceError(lost)) << lost;
  EXPECT_EQ(Text("disk-1/" + path), "whole__") << "it is the last one";
  Write("memory-0/" + path, "whole__");
  const auto rank = RankOf(1);
  const absl::Status found =
      checkpoint::VerifyFile(*rank, path, whole, checkpoint::Verify::kHashes);
  EXPECT_TRUE(found.ok()) << found;
  EXPECT_EQ(Read(*rank, path), "whole__");
  EXPECT_EQ(Text("disk-1/" + path), "none");
}

TEST_F(HostsStorageTest, AJournalGrowsOnTheDiskAndInTheMemoryOfTheNextHost) {
  const auto rank = RankOf(1);
  rank->SetJournalRoom(1000);
  const auto file = CreateJournal(*rank);
  ASSERT_NE(file, nullptr);
  ASSERT_TRUE(file->Append(AsBytes("one")).ok());
  ASSERT_TRUE(file->Append(AsBytes("two")).ok());
  ASSERT_TRUE(file->Sync().ok());
  const std::string path = absl::StrCat(kSegment, "/a");
  EXPECT_EQ(Text("disk-1/" + path), "onetwo");
  EXPECT_EQ(Text("memory-0/" + path), "onetwo");
  EXPECT_THAT(alone_, IsEmpty());
}

// Notes what is appended to it, and how.
class NotedFile final : public checkpoint::WritableFile {
 public:
  explicit NotedFile(std::string& calls) : calls_(calls) {}
  absl::Status Append(absl::Span<const std::byte> data) override { return Note("append", data); }
  absl::Status AppendHeld(absl::Span<const std::byte> data) override { return Note("held", data); }
  void EndAppending() override { absl::StrAppend(&calls_, "end\n"); }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  absl::Status Note(const char* how, absl::Span<const std::byte> data) {
    absl::StrAppend(&calls_, how, " ",
                    absl::string_view(reinterpret_cast<const char*>(data.data()), data.size()),
                    "\n");
    return absl::OkStatus();
  }
  std::string& calls_;
};

TEST(ReplicatedFileTest, MemoryThatStaysIsNotCopiedForTheDiskAndGoesToTheReplica) {
  std::string near;
  std::string replica;
  ReplicatedFile file(std::make_unique<NotedFile>(near),
                      {.file = std::make_unique<NotedFile>(replica), .end = nullptr});
  EXPECT_TRUE(file.Append(AsBytes("head")).ok());
  EXPECT_TRUE(file.AppendHeld(AsBytes("gradient")).ok());
  file.EndAppending();
  EXPECT_EQ(near, "append head\nheld gradient\nend\n");
  EXPECT_EQ(replica, "append head\nappend gradient\n");
}

TEST_F(HostsStorageTest, AReplicaOfTheJournalEndsWhereItsRoomDoesAndTheJournalGoesOn) {
  const auto rank = RankOf(0);
  rank->SetJournalRoom(40);  // Four segments share it.
  const auto file = CreateJournal(*rank);
  ASSERT_NE(file, nullptr);
  for (const char* const text : {"12345678", "abcdefgh", "ijklmnop"}) {
    ASSERT_TRUE(file->Append(AsBytes(text)).ok());
    ASSERT_TRUE(file->Sync().ok());
  }
  const std::string path = absl::StrCat(kSegment, "/a");
  EXPECT_EQ(Text("disk-0/" + path), "12345678abcdefghijklmnop");
  EXPECT_EQ(Text("memory-1/" + path), "12345678");
  EXPECT_THAT(alone_, ElementsAre(HasSubstr("it has 8 bytes and room for 10")));
}

TEST_F(HostsStorageTest, SegmentsThatNoCheckpointRemovesDoNotFillTheMemory) {
  const auto rank = RankOf(0);
  rank->SetJournalRoom(1000);
  for (int step = 1; step <= 4; ++step) {
    ASSERT_TRUE(
        MakeDirectories(Path(absl::StrCat("memory-1/journal/step-00000000000", step, ".e1"))).ok());
  }
  const auto file = CreateJournal(*rank);
  ASSERT_NE(file, nullptr);
  EXPECT_TRUE(file->Append(AsBytes("one")).ok());
  EXPECT_EQ(Text(absl::StrCat("memory-1/", kSegment, "/a")), "none");
  EXPECT_THAT(alone_, ElementsAre(HasSubstr("has 5 segments and room for 4")));
}

// Steps 1 to `last` of a journal of one rank, as they lie on a disk.
std::string Journalled(const std::string& folder, int64_t last = 3) {
  const auto storage = *checkpoint::OpenPosixStorage(folder);
  const checkpoint::SegmentHeader header{.job = "test",
                                         .id = {1, 0},
                                         .attempt_base = 0,
                                         .layout_hash = "0123456789abcdef",
                                         .settings = Json::object(),
                                         .ranges = {{0, 1000}}};
  auto segment = *checkpoint::SegmentWriter::Create(*storage, header);
  for (int64_t step = 1; step <= last; ++step) {
    const std::vector<std::byte> gradient(2000, static_cast<std::byte>(step));
    checkpoint::AfterStep after;
    EXPECT_TRUE(
        segment
            ->Append(
                {.step = step, .end = {{"count", step}}, .gradient = gradient, .after = &after})
            .ok());
  }
  return *ReadFile(absl::StrCat(folder, "/", kFirstRanks), 1 << 20);
}

std::string Flipped(std::string text, size_t at) {
  text[at] = static_cast<char>(text[at] ^ 4);
  return text;
}

int64_t LastWhole(HostsStorage& storage) {
  const auto journal = checkpoint::Journal::Open(storage, {1, 0});
  return journal.ok() ? journal->Verify(0, 1) : -1;
}

class MendTest : public HostsStorageTest {
 protected:
  // Host 1 has `on_disk`, host 0 the replica of it.
  void Put(const std::string& on_disk, const std::string& replica) {
    Write(absl::StrCat("disk-1/", kFirstRanks), on_disk);
    Write(absl::StrCat("memory-0/", kFirstRanks), replica);
  }
  // Whether MendSegments has dropped a copy, and what it said.
  bool Mend(HostsStorage& storage) {
    ::testing::internal::CaptureStderr();
    const absl::StatusOr<bool> mended = checkpoint::MendSegments(storage, {1, 0}, 0, 1);
    said_ = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(mended.ok()) << mended.status();
    return mended.value_or(false);
  }

  const std::string whole_ = Journalled(Path("elsewhere"));
  std::string said_;
};

// In the gradient of the last step, in the heads of others and in the header.
TEST_F(MendTest, AFlippedBitAnywhereIsMendedFromTheReplicaAndNamed) {
  for (size_t from_end = 9; from_end + 20 < whole_.size(); from_end += 977) {
    const size_t at = whole_.size() - from_end;
    SCOPED_TRACE(at);
    Put(Flipped(whole_, at), whole_);
    const auto rank = RankOf(1);
    EXPECT_LT(LastWhole(*rank), 3);
    EXPECT_TRUE(Mend(*rank));
    EXPECT_THAT(said_, HasSubstr(Path(absl::StrCat("disk-1/", kFirstRanks))));
    EXPECT_THAT(said_, HasSubstr("leads to step 3"));
    EXPECT_EQ(LastWhole(*rank), 3);
    EXPECT_EQ(Text(absl::StrCat("disk-1/", kFirstRanks)), whole_);  // It is there again.
    EXPECT_FALSE(Mend(*rank));
  }
}

TEST_F(MendTest, StepsThatADiskCannotReadAreTakenFromTheReplica) {
  const auto disk = std::exchange(places_[1], nullptr);
  for (size_t bad = 10; bad < whole_.size(); bad += 977) {  // In the header, heads and gradients.
    SCOPED_TRACE(bad);
    Put(whole_, whole_);
    places_[1] = std::make_unique<BadDisk>(*disk, bad);
    const auto rank = RankOf(1);
    EXPECT_LT(LastWhole(*rank), 3);
    EXPECT_TRUE(Mend(*rank));
    EXPECT_THAT(said_, HasSubstr("leads to step 3"));
  }
}

TEST_F(MendTest, TheBytesThatAreDamagedAreNamed) {
  Put(Flipped(whole_, whole_.size() - 9), whole_);
  EXPECT_TRUE(Mend(*RankOf(1)));
  EXPECT_THAT(said_, HasSubstr(absl::StrCat("the gradient of step 3 at byte ", whole_.size() - 2000,
                                            " is damaged")));
}

TEST_F(MendTest, WhatNoCopyHoldsIsLeftAsItIs) {
  // A record that was cut short on the disk, of which the replica has less.
  const std::string torn = whole_.substr(0, whole_.size() - 10);
  Put(torn, whole_.substr(0, whole_.size() - 1500));
  const auto rank = RankOf(1);
  EXPECT_FALSE(Mend(*rank));
  EXPECT_EQ(LastWhole(*rank), 2);
  EXPECT_EQ(Text(absl::StrCat("disk-1/", kFirstRanks)), torn);
  // Both copies are damaged, the replica nearer to its start.
  Put(Flipped(whole_, whole_.size() - 9), Flipped(whole_, whole_.size() / 2));
  EXPECT_FALSE(Mend(*rank));
  EXPECT_EQ(LastWhole(*rank), 2);
}

// What a host saves on its own disk of a segment whose longest copy a memory holds.
class SaveHereTest : public MendTest {
 protected:
  // Opens the file as a run does that resumes, and has it made durable.
  absl::Status Save() {
    const auto rank = RankOf(1);
    const auto opened = rank->OpenFile(kFirstRanks);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? (*opened)->MakeDurable() : opened.status();
  }
  std::string OnDisk() const { return Text(absl::StrCat("disk-1/", kFirstRanks)); }
  // The files of the segment on this host's disk, those of no meaning too.
  int FilesOnDisk() const {
    int files = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(Path(absl::StrCat("disk-1/", kSegment)))) {
      files += entry.is_regular_file() ? 1 : 0;
    }
    return files;
  }

  const std::string two_steps_ = Journalled(Path("two"), 2);
  const std::string one_step_ = Journalled(Path("one"), 1);
};

TEST_F(SaveHereTest, AReplicaThatIsWholeTakesThePlaceOfATornFile) {
  Put(whole_.substr(0, whole_.size() - 1500), whole_);
  EXPECT_TRUE(Save().ok());
  EXPECT_EQ(OnDisk(), whole_);
  EXPECT_EQ(FilesOnDisk(), 1);
}

TEST_F(SaveHereTest, AReplicaThatNoDiskHasIsSaved) {
  Write(absl::StrCat("memory-0/", kFirstRanks), whole_);
  EXPECT_TRUE(Save().ok());
  EXPECT_EQ(OnDisk(), whole_);
}

TEST_F(SaveHereTest, ALongerReplicaThatIsDamagedTakesNoWholeStepFromTheDisk) {
  const std::string torn = whole_.substr(0, whole_.size() - 10);  // Steps 1 and 2 are whole.
  for (const size_t at : {two_steps_.size() - 9, one_step_.size() - 9, size_t{40}}) {
    SCOPED_TRACE(at);
    Put(torn, Flipped(whole_, at));
    const auto rank = RankOf(1);
    const auto opened = rank->OpenFile(kFirstRanks);
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_EQ((*opened)->bytes(), whole_.size()) << "the replica is read";
    EXPECT_TRUE((*opened)->MakeDurable().ok());
    EXPECT_EQ(OnDisk(), torn);
    EXPECT_EQ(FilesOnDisk(), 1);
    EXPECT_TRUE(Mend(*rank));
    EXPECT_EQ(LastWhole(*rank), 2);
  }
}

TEST_F(SaveHereTest, ADamagedReplicaIsCutBehindItsLastWholeStepIfThatLeadsFurther) {
  const std::string damaged = Flipped(whole_, whole_.size() - 9);  // In step 3.
  for (const std::string& on_disk : {one_step_, two_steps_.substr(0, two_steps_.size() - 1)}) {
    Put(on_disk, damaged);
    EXPECT_TRUE(Save().ok());
    EXPECT_EQ(OnDisk(), two_steps_);
    EXPECT_EQ(FilesOnDisk(), 1);
  }
}

TEST_F(SaveHereTest, ASegmentOfWhichNothingIsWholeIsNotSaved) {
  Write(absl::StrCat("memory-0/", kFirstRanks), Flipped(whole_, 40));
  EXPECT_TRUE(absl::IsDataLoss(Save()));
  EXPECT_EQ(OnDisk(), "none");
  EXPECT_EQ(FilesOnDisk(), 0);
}

TEST_F(MendTest, TheNextHostGetsTheSegmentsThatOneHostAloneHolds) {
  const std::string path = kFirstRanks;
  Write("disk-1/" + path, whole_);
  const auto rank = RankOf(1);
  rank->SetJournalRoom(100'000);
  checkpoint::KeepSegments(*rank, {checkpoint::StepId{1, 0}}, 0, 1);
  EXPECT_EQ(Text("memory-0/" + path), whole_);
  EXPECT_THAT(alone_, IsEmpty());
  // A copy on the same host does not survive it, and one that is shorter lacks steps.
  Write("memory-1/" + path, whole_);
  Write("memory-0/" + path, whole_.substr(0, 100));
  checkpoint::KeepSegments(*rank, {checkpoint::StepId{1, 0}}, 0, 1);
  EXPECT_EQ(Text("memory-0/" + path), whole_);
}

TEST_F(MendTest, ASegmentForWhichTheNextHostHasNoRoomIsAnAlarm) {
  Write(absl::StrCat("disk-1/", kFirstRanks), whole_);
  const auto rank = RankOf(1);
  rank->SetJournalRoom(4000);  // Four segments share it.
  checkpoint::KeepSegments(*rank, {checkpoint::StepId{1, 0}}, 0, 1);
  EXPECT_EQ(Text(absl::StrCat("memory-0/", kFirstRanks)), "none");
  EXPECT_THAT(alone_, ElementsAre(HasSubstr("room for 1000")));
}

TEST_F(HostsStorageTest, RemovingASegmentRemovesItEverywhere) {
  for (const char* const place : {"disk-0", "disk-1", "memory-0", "memory-1"}) {
    Write(absl::StrCat(place, "/", kSegment, "/", place), "x");
  }
  const auto rank = RankOf(0);
  ASSERT_TRUE(checkpoint::RemoveTree(*rank, kSegment).ok());
  for (const char* const place : {"disk-0", "disk-1", "memory-0", "memory-1"}) {
    EXPECT_FALSE(std::filesystem::exists(Path(absl::StrCat(place, "/", kSegment)))) << place;
  }
}

}  // namespace
}  // namespace dtrain::hosts_storage_test
