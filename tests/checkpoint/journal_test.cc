// The step journal's files: what was appended comes back, a file that was cut or changed counts up
// to the last whole step, and of several attempts the right steps are chosen.
#include "checkpoint/journal/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/journal/segment_writer.h"
#include "checkpoint/storage/faulty_file_system.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::journal_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kElements = 3000;

std::vector<std::byte> RandomBytes(size_t bytes, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) {
    byte = static_cast<std::byte>(random.Next());
  }
  return data;
}

SegmentHeader HeaderOf(int64_t epoch, int64_t base, int rank = 0, int world_size = 1) {
  return {.job = "job",
          .id = {epoch, base},
          .attempt_base = base,
          .rank = rank,
          .world_size = world_size,
          .layout_hash = "0123456789abcdef",
          .settings = {{"seed", 7}},
          .dtype = DType::kBFloat16,
          .ranges = {{0, 1000}, {5000, 5000 + kElements - 1000}}};
}

// The content that rank `rank` journals of a step, as a function of both.
struct Content {
  explicit Content(int64_t step, int rank = 0)
      : gradient(step % 4 == 0 ? 0 : kElements * 2),
        after{.state = {{"tracked", {{"data", step}}}},
              .blobs = {{"rng.cpu", RandomBytes(500, static_cast<uint64_t>(step))},
                        {"empty", {}},
                        {"buffer.mean", RandomBytes(33, 5)}}} {
    gradient = RandomBytes(gradient.size(), static_cast<uint64_t>(step * 100 + rank));
    record = {.step = step,
              .end = {{"count", step * 10}},
              .gradient = gradient,
              .after = step % 3 == 0 ? nullptr : &after};
  }
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;
  std::vector<std::byte> gradient;
  AfterStep after;
  JournalStep record;
};

// Appends steps base + 1 to last on one rank. The first error ends it.
absl::Status WriteSegment(Storage& storage, const SegmentHeader& header, int64_t last) {
  auto segment = SegmentWriter::Create(storage, header);
  if (!segment.ok()) {
    return segment.status();
  }
  for (int64_t step = header.id.step + 1; step <= last; ++step) {
    if (absl::Status status = (*segment)->Append(Content(step, header.rank).record); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

void ExpectContent(const SegmentReader& file, int64_t step, int rank) {
  const Content content(step, rank);
  const auto text = file.ReadText(step);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->end, content.record.end);
  EXPECT_EQ(file.has_after(step), content.record.after != nullptr);
  EXPECT_EQ(file.has_gradient(step), !content.gradient.empty());
  if (file.has_after(step)) {
    const auto after = file.ReadAfter(step);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(after->state, content.after.state);
    ASSERT_EQ(after->blobs.size(), content.after.blobs.size());
    for (size_t i = 0; i < after->blobs.size(); ++i) {
      EXPECT_EQ(after->blobs[i].name, content.after.blobs[i].name);
      EXPECT_EQ(after->blobs[i].bytes, content.after.blobs[i].bytes);
    }
  }
  if (!content.gradient.empty()) {
    std::vector<std::byte> part(1001);
    ASSERT_TRUE(file.ReadGradient(step, 77, absl::MakeSpan(part)).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), content.gradient.begin() + 77));
  }
  EXPECT_TRUE(file.Verify(step).ok());
}

std::string PathOf(int64_t epoch, int64_t base) { return SegmentPath({epoch, base}, 0, 1); }

std::string Slurp(Storage& storage, const std::string& path) {
  auto text = ReadSmallFile(storage, path, 1 << 24);
  DT_CHECK_OK(text.status());
  return *text;
}

// A storage that holds this one file.
std::unique_ptr<Storage> With(MemoryFileSystem& files, const std::string& path,
                              absl::string_view content) {
  auto storage = MakePosixStorage(files);
  DT_CHECK_OK(storage->MakeDirectory(path.substr(0, path.rfind('/'))));
  DT_CHECK_OK(storage->Replace(path, content));
  return storage;
}

TEST(JournalTest, GivesBackWhatWasAppended) {
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(WriteSegment(*storage, HeaderOf(2, 100, rank, 3), 109).ok());
  }
  auto journal = Journal::Open(*storage, {2, 100});
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_EQ(journal->last(), 109);
  EXPECT_EQ(journal->Verify(1, 2), 109);
  for (int64_t step = 101; step <= 109; ++step) {
    ASSERT_EQ(journal->FilesOf(step).size(), 3U);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(journal->FilesOf(step)[static_cast<size_t>(rank)]->header(),
                HeaderOf(2, 100, rank, 3));
      ExpectContent(*journal->FilesOf(step)[static_cast<size_t>(rank)], step, rank);
    }
  }
  journal->CutTo(109);  // From behind 108, a multiple of 3, nothing can go on.
  EXPECT_EQ(journal->last(), 109);
  journal->CutTo(108);
  EXPECT_EQ(journal->last(), 107);
  journal->CutTo(100);
  EXPECT_EQ(journal->last(), 100);
}

TEST(JournalTest, ARunWithoutAJournalHasNoSteps) {
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  const auto journal = Journal::Open(*storage, {1, 40});
  ASSERT_TRUE(journal.ok());
  EXPECT_EQ(journal->last(), 40);
  EXPECT_EQ(journal->Verify(0, 1), 40);
  EXPECT_TRUE(RemoveSegmentsBefore(*storage, {1, 40}).ok());
}

// The file may be cut anywhere: what is whole before the cut counts, and nothing else.
TEST(JournalTest, AFileThatIsCutCountsUpToTheLastWholeStep) {
  MemoryFileSystem whole;
  const auto storage = MakePosixStorage(whole);
  ASSERT_TRUE(WriteSegment(*storage, HeaderOf(1, 0), 3).ok());
  const std::string text = Slurp(*storage, PathOf(1, 0));
  const auto reader = SegmentReader::Open(*storage, {{1, 0}, 0, 1});
  ASSERT_TRUE(reader.ok());
  SetLogLevel(LogLevel::kError);
  std::vector<int64_t> steps;
  for (size_t bytes = 0; bytes < text.size(); bytes += bytes < 700 ? 1 : 97) {
    MemoryFileSystem files;
    const auto cut = With(files, PathOf(1, 0), text.substr(0, bytes));
    const auto journal = Journal::Open(*cut, {1, 0});
    ASSERT_TRUE(journal.ok()) << journal.status();
    steps.push_back(journal->last());
    EXPECT_EQ(journal->Verify(0, 1), journal->last());
    for (int64_t step = 1; step <= journal->last(); ++step) {
      ExpectContent(*journal->FilesOf(step)[0], step, 0);
    }
  }
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.front(), 0);
  EXPECT_EQ(steps.back(), 2);
}

// Every bit of a file matters: whichever is wrong, no step from there on counts.
TEST(JournalTest, AChangedBitEndsWhatCounts) {
  MemoryFileSystem whole;
  const auto storage = MakePosixStorage(whole);
  ASSERT_TRUE(WriteSegment(*storage, HeaderOf(1, 0), 3).ok());
  const std::string text = Slurp(*storage, PathOf(1, 0));
  SetLogLevel(LogLevel::kError);
  SplitMix64 random(20261126);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string changed = text;
    const size_t at = random.Next() % text.size();
    changed[at] = static_cast<char>(changed[at] ^ (1 << (random.Next() % 8)));
    MemoryFileSystem files;
    const auto rotten = With(files, PathOf(1, 0), changed);
    const auto journal = Journal::Open(*rotten, {1, 0});
    ASSERT_TRUE(journal.ok()) << journal.status();
    const int64_t last = journal->Verify(0, 1);
    ASSERT_LT(last, 3) << "bit of byte " << at << " of " << text.size();
    for (int64_t step = 1; step <= last; ++step) {
      ExpectContent(*journal->FilesOf(step)[0], step, 0);
    }
  }
}

TEST(JournalTest, NamesFileAndPlaceOfWhatIsDamaged) {
  MemoryFileSystem whole;
  const auto storage = MakePosixStorage(whole);
  ASSERT_TRUE(WriteSegment(*storage, HeaderOf(1, 0), 2).ok());
  std::string text = Slurp(*storage, PathOf(1, 0));
  text[text.size() - 5] ^= 1;
  MemoryFileSystem files;
  const auto rotten = With(files, PathOf(1, 0), text);
  const auto reader = SegmentReader::Open(*rotten, {{1, 0}, 0, 1});
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT((*reader)->Verify(2).message(),
              ::testing::AllOf(HasSubstr("rank-0-of-1.journal"), HasSubstr("gradient of step 2"),
                               HasSubstr("is damaged")));
  EXPECT_TRUE((*reader)->Verify(1).ok());
  // A file under another one's name.
  MemoryFileSystem moved;
  const auto wrong = With(moved, PathOf(4, 9), text);
  EXPECT_THAT(SegmentReader::Open(*wrong, {{4, 9}, 0, 1}).status().message(),
              HasSubstr("holds the journal of rank 0 of 1 from step 0 of epoch 1 on"));
}

TEST(JournalTest, ThePathOfAFileSaysWhichItIs) {
  const auto file = SegmentFile::FromPath(SegmentPath({3, 137}, 2, 16));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->id, (StepId{3, 137}));
  EXPECT_EQ(file->rank, 2);
  EXPECT_EQ(file->world_size, 16);
  for (const char* const other :
       {"", "journal", "journal/step-000000000137.e3", "journal/step-000000000137.e3/",
        "journal/step-000000000137.e3/rank-2-of-16", "journal/step-137.e3/rank-2-of-16.journal",
        "journal/step-000000000137.e3/rank-02-of-16.journal", "other/step-000000000137.e3/rank-2",
        "journal/step-000000000137.e3/.tmp-rank-2-of-16.journal-0123456789abcdef"}) {
    EXPECT_FALSE(SegmentFile::FromPath(other).has_value()) << other;
  }
}

// A file of a host that is lost while it is read.
class LostFile final : public ReadableFile {
 public:
  LostFile(std::string text, uint64_t lost_from) : text_(std::move(text)), lost_from_(lost_from) {}
  uint64_t bytes() const override { return text_.size(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
    if (offset >= lost_from_) {
      return absl::UnavailableError("the host is lost");
    }
    std::memcpy(into.data(), text_.data() + offset, into.size());
    return absl::OkStatus();
  }

 private:
  const std::string text_;
  const uint64_t lost_from_;
};

// Else a copy that is whole would be removed as damaged.
TEST(JournalTest, AFileThatCannotBeReadIsNotTakenForADamagedOne) {
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  ASSERT_TRUE(WriteSegment(*storage, HeaderOf(1, 0), 2).ok());
  const std::string text = Slurp(*storage, PathOf(1, 0));
  const auto reader = SegmentReader::OpenCopy(
      {std::make_unique<LostFile>(text, text.size() / 3), "copy"}, {{1, 0}, 0, 1});
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->last(), 1);
  EXPECT_TRUE(absl::IsUnavailable((*reader)->end())) << (*reader)->end();
}

TEST(JournalTest, ASegmentThatLacksARanksFileIsNotUsed) {
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  SetLogLevel(LogLevel::kError);
  ASSERT_TRUE(WriteSegment(*storage, HeaderOf(1, 0, 1, 2), 5).ok());
  EXPECT_EQ(Journal::Open(*storage, {1, 0})->last(), 0);
  // With both, the steps that both have count.
  ASSERT_TRUE(WriteSegment(*storage, HeaderOf(1, 0, 0, 2), 3).ok());
  EXPECT_EQ(Journal::Open(*storage, {1, 0})->last(), 3);
}

TEST(JournalTest, SegmentsOfAnAttemptFollowEachOther) {
  const std::vector<SegmentSummary> segments = {
      {{1, 0}, 0, 10}, {{1, 10}, 0, 20}, {{1, 20}, 0, 23}};
  EXPECT_EQ(ChainFrom({1, 10}, segments),
            (std::vector<ChainLink>{{{1, 10}, 11, 20}, {{1, 20}, 21, 23}}));
  EXPECT_EQ(ChainFrom({1, 0}, segments),
            (std::vector<ChainLink>{{{1, 0}, 1, 10}, {{1, 10}, 11, 20}, {{1, 20}, 21, 23}}));
  // A checkpoint in the midst of a segment: the save of its end failed, or it is an older one.
  EXPECT_EQ(ChainFrom({1, 5}, {{{1, 0}, 0, 10}}), (std::vector<ChainLink>{{{1, 0}, 6, 10}}));
  // The journal was off for some steps: what follows them cannot be reached.
  EXPECT_EQ(ChainFrom({1, 0}, {{{1, 0}, 0, 4}, {{1, 10}, 0, 20}}),
            (std::vector<ChainLink>{{{1, 0}, 1, 4}}));
  EXPECT_TRUE(ChainFrom({1, 4}, {{{1, 10}, 0, 20}}).empty());
  EXPECT_TRUE(ChainFrom({1, 23}, segments).empty());
}

TEST(JournalTest, AnAttemptGoesOnFromTheOneBefore) {
  // The second attempt has replayed up to 7, and the third up to 12.
  const std::vector<SegmentSummary> segments = {{{1, 0}, 0, 7}, {{2, 7}, 7, 12}, {{3, 12}, 12, 13}};
  EXPECT_EQ(ChainFrom({1, 0}, segments),
            (std::vector<ChainLink>{{{1, 0}, 1, 7}, {{2, 7}, 8, 12}, {{3, 12}, 13, 13}}));
  // The first attempt was thought dead: its steps behind 7 are not the run's.
  EXPECT_EQ(ChainFrom({1, 0}, {{{1, 0}, 0, 9}, {{2, 7}, 7, 7}}),
            (std::vector<ChainLink>{{{1, 0}, 1, 7}}));
  // They are not the run's either where the second attempt's first segment is gone.
  EXPECT_EQ(ChainFrom({1, 0}, {{{1, 0}, 0, 9}, {{2, 20}, 7, 25}}),
            (std::vector<ChainLink>{{{1, 0}, 1, 7}}));
  // Attempts without a segment, as `dtrain checkpoint repair` begins one, change nothing.
  EXPECT_EQ(ChainFrom({1, 0}, {{{1, 0}, 0, 9}, {{3, 7}, 7, 12}}),
            (std::vector<ChainLink>{{{1, 0}, 1, 7}, {{3, 7}, 8, 12}}));
  // Attempts before the checkpoint's do not matter.
  EXPECT_TRUE(ChainFrom({2, 7}, {{{1, 0}, 0, 9}}).empty());
}

TEST(JournalTest, RemovesWhatADurableCheckpointHasMadeNeedless) {
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  ASSERT_TRUE(BeginEpoch(*storage, "old", 1, std::nullopt).ok());
  ASSERT_TRUE(BeginEpoch(*storage, "job", 1, std::nullopt).ok());  // A fresh start.
  ASSERT_TRUE(BeginEpoch(*storage, "job", 1, StepId{2, 0}).ok());
  for (const StepId& id : {StepId{1, 0}, {2, 0}, {2, 10}, {3, 10}, {3, 20}, {4, 5}}) {
    ASSERT_TRUE(WriteSegment(*storage, HeaderOf(id.epoch, id.step), id.step + 2).ok());
  }
  ASSERT_TRUE(RemoveSegmentsBefore(*storage, {3, 20}).ok());
  EXPECT_EQ(*ListSegments(*storage), (std::vector<StepId>{{1, 0}, {3, 20}, {4, 5}}));
  // The attempt whose record is damaged may be the fresh start.
  ASSERT_TRUE(storage->RemoveFile(EpochPath(2)).ok());
  ASSERT_TRUE(WriteSmallFile(*storage, EpochPath(2), "damaged", Access::kEveryone).ok());
  ASSERT_TRUE(RemoveSegmentsBefore(*storage, {3, 20}).ok());
  EXPECT_EQ(*ListSegments(*storage), (std::vector<StepId>{{1, 0}, {3, 20}, {4, 5}}));
}

// The machine may lose its power at any call: each step whose Append had returned is there.
TEST(JournalTest, KeepsEveryDurableStepThroughAPowerCut) {
  SetLogLevel(LogLevel::kError);
  int64_t calls = 0;
  {
    MemoryFileSystem memory;
    FaultyFileSystem counted(memory, FaultPlan{});
    ASSERT_TRUE(WriteSegment(*MakePosixStorage(counted), HeaderOf(1, 0), 4).ok());
    calls = counted.calls();
  }
  EXPECT_GT(calls, 15);
  for (int64_t at = 0; at < calls; ++at) {
    for (const FaultKind kind : {FaultKind::kStop, FaultKind::kTornStop}) {
      for (uint64_t seed = 0; seed < 25; ++seed) {
        SCOPED_TRACE(absl::StrCat("call ", at, " of ", calls, ", seed ", seed));
        MemoryFileSystem memory;
        int64_t durable = 0;
        {
          FaultyFileSystem faulty(memory, {.at = at, .kind = kind});
          const auto storage = MakePosixStorage(faulty);
          auto segment = SegmentWriter::Create(*storage, HeaderOf(1, 0));
          while (segment.ok() && durable < 4 &&
                 (*segment)->Append(Content(durable + 1).record).ok()) {
            ++durable;
          }
        }
        memory.Crash(seed);
        const auto storage = MakePosixStorage(memory);
        const auto journal = Journal::Open(*storage, {1, 0});
        ASSERT_TRUE(journal.ok()) << journal.status();
        const int64_t last = journal->Verify(0, 1);
        ASSERT_GE(last, durable);
        for (int64_t step = 1; step <= last; ++step) {
          ExpectContent(*journal->FilesOf(step)[0], step, 0);
        }
      }
    }
  }
}

// Two segments of an attempt and the removal of the first, told to a pipe: a byte for each step
// that is durable, and one before the removal.
absl::Status LiveAndTell(Storage& storage, int to) {
  const auto tell = [to](char what) { DT_CHECK_EQ(write(to, &what, 1), 1); };
  SegmentHeader header = HeaderOf(1, 0);
  for (const int64_t base : {0, 3}) {
    header.id.step = base;
    DT_ASSIGN_OR_RETURN(const auto segment, SegmentWriter::Create(storage, header));
    for (int64_t step = base + 1; step <= base + 3; ++step) {
      DT_RETURN_IF_ERROR(segment->Append(Content(step).record));
      tell('s');
    }
  }
  tell('r');
  return RemoveSegmentsBefore(storage, {1, 3});
}

// A real process in a real folder is killed at every system call of that.
TEST(JournalTest, SigkillAtAnyCallKeepsEveryDurableStep) {
  SetLogLevel(LogLevel::kError);
  int64_t at = 0;
  for (bool killed = true; killed; ++at) {
    SCOPED_TRACE(absl::StrCat("call ", at));
    const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
    const auto files = OpenRealFileSystem(folder.path());
    ASSERT_TRUE(files.ok()) << files.status();
    const auto calm = MakePosixStorage(**files);
    ASSERT_TRUE(BeginEpoch(*calm, "job", 1, std::nullopt).ok());
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // No threads here: the parent's do not survive the fork.
      FaultyFileSystem faulty(**files, {.at = at, .kind = FaultKind::kSigkill});
      _exit(LiveAndTell(*MakePosixStorage(faulty), ends[1]).ok() ? 0 : 1);
    }
    close(ends[1]);
    std::string told;
    for (char byte = 0; read(ends[0], &byte, 1) == 1;) {
      told.push_back(byte);
    }
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    killed = WIFSIGNALED(status);
    ASSERT_TRUE(killed || WEXITSTATUS(status) == 0);
    const bool removes = !told.empty() && told.back() == 'r';
    const int64_t durable = std::count(told.begin(), told.end(), 's');
    const StepId from = {1, removes ? 3 : 0};
    const auto journal = Journal::Open(*calm, from);
    ASSERT_TRUE(journal.ok()) << journal.status();
    const int64_t last = journal->Verify(0, 1);
    EXPECT_GE(last, durable);
    EXPECT_LE(last, durable + 1);
    for (int64_t step = from.step + 1; step <= last; ++step) {
      ExpectContent(*journal->FilesOf(step)[0], step, 0);
    }
  }
  EXPECT_GT(at, 30);
}

TEST(JournalTest, AFailedWriteIsReported) {
  MemoryFileSystem memory;
  for (int64_t at = 0; at < 12; ++at) {
    for (const FaultKind kind :
         {FaultKind::kNoSpace, FaultKind::kIoError, FaultKind::kShortWrite}) {
      MemoryFileSystem files;
      FaultyFileSystem faulty(files, {.at = at, .kind = kind});
      const absl::Status status = WriteSegment(*MakePosixStorage(faulty), HeaderOf(1, 0), 4);
      EXPECT_FALSE(status.ok()) << "call " << at;
    }
  }
}

TEST(JournalFormatTest, HeadsAndHeadersComeBack) {
  const RecordHead head{.step = 9,
                        .text_bytes = 10,
                        .blob_bytes = 11,
                        .gradient_bytes = 5 << 20,
                        .text_crc = 1,
                        .blob_crc = 2,
                        .blocks_crc = 3,
                        .has_after = true};
  EXPECT_EQ(*ParseHead(EncodeHead(head)), head);
  EXPECT_EQ(head.blocks(), 2U);
  EXPECT_EQ(head.bytes(), 64U + 8 + 10 + 11 + (5 << 20));
  RecordHead wrong = head;
  wrong.step = 0;
  EXPECT_THAT(ParseHead(EncodeHead(wrong)).status().message(), HasSubstr("out of range"));
  wrong = head;
  wrong.gradient_bytes = uint64_t{1} << 60;
  EXPECT_THAT(ParseHead(EncodeHead(wrong)).status().message(), HasSubstr("out of range"));
  EXPECT_EQ(HeaderOf(1, 2).gradient_bytes(), static_cast<uint64_t>(kElements) * 2);
  SegmentHeader other = HeaderOf(1, 2);
  other.attempt_base = 3;  // Behind the base.
  MemoryFileSystem files;
  const auto storage = With(files, PathOf(1, 2), EncodeHeader(other));
  EXPECT_THAT(SegmentReader::Open(*storage, {{1, 2}, 0, 1}).status().message(),
              HasSubstr("attempt_base"));
}

}  // namespace
}  // namespace dtrain::checkpoint::journal_test
