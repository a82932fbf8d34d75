// Journals of runs that lose power and are killed again and again, while they append, begin a
// segment, resume and collect: each step that was durable is there, with its bytes. And random
// damage to a journal's files: no changed step counts.
//
// One seed is one run, or one damage: `--gtest_random_seed=SEED` takes that one alone again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/journal/journal.h"
#include "checkpoint/journal/segment_writer.h"
#include "checkpoint/storage/faulty_file_system.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"

namespace dtrain::checkpoint::long_journal_test {
namespace {

constexpr int64_t kElements = 4000;  // Records of two pages, and whole words.

bool Long() { return std::getenv("DTRAIN_TEST_LONG") != nullptr; }

SegmentHeader HeaderOf(const StepId& id, int64_t attempt_base, int rank, int world_size) {
  return {.job = "job",
          .id = id,
          .attempt_base = attempt_base,
          .rank = rank,
          .world_size = world_size,
          .layout_hash = "0123456789abcdef",
          .settings = {{"seed", 7}},
          .dtype = DType::kBFloat16,
          .ranges = {{rank * kElements, (rank + 1) * kElements}}};
}

// All that a rank journals of a step: the same whichever attempt takes it.
struct Record {
  Record(int64_t step, int rank) : gradient(kElements * sizeof(uint16_t)) {
    SplitMix64 random(MixBits(static_cast<uint64_t>(step)) + static_cast<uint64_t>(rank));
    for (size_t at = 0; at < gradient.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random.Next();
      std::memcpy(gradient.data() + at, &word, sizeof(word));
    }
    after = {.state = {{"tracked", step}}, .blobs = {{"rng.cpu", {gradient[0], gradient[1]}}}};
    whole = {.step = step, .end = {{"count", step + rank}}, .gradient = gradient, .after = &after};
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;
  std::vector<std::byte> gradient;
  AfterStep after;
  JournalStep whole;
};

// OK: the step of the file has the bytes that were appended.
absl::Status Compare(const SegmentReader& file, int64_t step) {
  const Record record(step, file.header().rank);
  DT_RETURN_IF_ERROR(file.Verify(step));
  DT_ASSIGN_OR_RETURN(const SegmentReader::Text text, file.ReadText(step));
  DT_ASSIGN_OR_RETURN(const AfterStep after, file.ReadAfter(step));
  std::vector<std::byte> gradient(record.gradient.size());
  DT_RETURN_IF_ERROR(file.ReadGradient(step, 0, absl::MakeSpan(gradient)));
  return text.end == record.whole.end && after.state == record.after.state &&
                 after.blobs.size() == 1 && after.blobs[0].bytes == record.after.blobs[0].bytes &&
                 gradient == record.gradient
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrCat("step ", step, " has other bytes"));
}

void ExpectSteps(const Journal& journal, int64_t from, int64_t last) {
  for (int64_t step = from + 1; step <= last; ++step) {
    for (const auto& file : journal.FilesOf(step)) {
      const absl::Status same = Compare(*file, step);
      ASSERT_TRUE(same.ok()) << "step " << step << ": " << same;
    }
  }
}

// The ranks' files of one segment.
class Segment {
 public:
  static absl::StatusOr<Segment> Create(Storage& storage, const StepId& id, int64_t attempt_base,
                                        int world_size) {
    Segment segment;
    for (int rank = 0; rank < world_size; ++rank) {
      DT_ASSIGN_OR_RETURN(
          auto file, SegmentWriter::Create(storage, HeaderOf(id, attempt_base, rank, world_size)));
      segment.files_.push_back(std::move(file));
    }
    return segment;
  }
  absl::Status Append(int64_t step) {
    for (size_t rank = 0; rank < files_.size(); ++rank) {
      DT_RETURN_IF_ERROR(files_[rank]->Append(Record(step, static_cast<int>(rank)).whole));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<SegmentWriter>> files_;
};

// Counts what the runs met, over all seeds.
struct Seen {
  int64_t losses = 0;
  int64_t kills = 0;
  int64_t lost = 0;        // States without the last step that was begun.
  int64_t zeros = 0;       // States in which a file ends with room that nothing was written to.
  int64_t unreported = 0;  // States with a step of which nobody was told that it is durable.
  int64_t collected = 0;   // Checkpoints that became durable.
  int64_t replays = 0;     // Attempts that began behind a checkpoint.
};

// One run over all of its attempts. Its checkpoints are not written here: one is durable from the
// moment that a test says so, which is all that a journal knows of them.
class LosingRun {
 public:
  LosingRun(uint64_t seed, Seen& seen) : random_(MixBits(seed)), seen_(seen) {
    DT_CHECK_OK(BeginEpoch(*MakePosixStorage(memory_), "job", 1, std::nullopt).status());
  }

  void Live() {
    const uint64_t attempts = 2 + random_.Below(5);
    for (uint64_t attempt = 0; attempt < attempts && !::testing::Test::HasFailure(); ++attempt) {
      SCOPED_TRACE(absl::StrCat("attempt ", attempt + 1, " of ", attempts));
      const auto at = static_cast<int64_t>(random_.Below(140));
      FaultyFileSystem faulty(
          memory_, {at, random_.Below(2) == 0 ? FaultKind::kStop : FaultKind::kTornStop});
      Attempt(*MakePosixStorage(faulty)).IgnoreError();  // It ends where the file system stops.
      if (random_.Below(3) == 0) {
        ++seen_.kills;  // What it wrote is there, but for writes that were on their way.
        memory_.EndProcess(random_.Next());
      } else {
        memory_.Crash(random_.Next());
        ++seen_.losses;
      }
      Check();
    }
  }

 private:
  absl::Status Attempt(Storage& storage) {
    const int world_size = 1 + static_cast<int>(random_.Below(2));
    DT_ASSIGN_OR_RETURN(const EpochRecord epoch, BeginEpoch(storage, "job", world_size, from_));
    DT_ASSIGN_OR_RETURN(Journal journal, Journal::Open(storage, from_));
    journal.CutTo(journal.Verify(0, 1));
    int64_t step = journal.last();
    seen_.replays += step > from_.step ? 1 : 0;
    const int64_t attempt_base = step;
    DT_ASSIGN_OR_RETURN(Segment segment,
                        Segment::Create(storage, {epoch.epoch, step}, attempt_base, world_size));
    std::optional<StepId> saving;  // A checkpoint that is being written.
    for (;;) {
      tried_ = std::max(tried_, step + 1);
      DT_RETURN_IF_ERROR(segment.Append(++step));
      durable_ = std::max(durable_, step);
      if (saving.has_value() && random_.Below(2) == 0) {
        if (random_.Below(4) != 0) {  // Else its save has failed.
          from_ = *saving;
          ++seen_.collected;
          DT_RETURN_IF_ERROR(RemoveSegmentsBefore(storage, from_));
        }
        saving.reset();
      } else if (!saving.has_value() && random_.Below(3) == 0) {
        saving = StepId{epoch.epoch, step};
        DT_ASSIGN_OR_RETURN(segment, Segment::Create(storage, *saving, attempt_base, world_size));
      }
    }
  }

  // A run that starts now goes on behind every durable step.
  void Check() {
    const auto storage = MakePosixStorage(memory_);
    const auto journal = Journal::Open(*storage, from_);
    ASSERT_TRUE(journal.ok()) << journal.status();
    const int64_t last = journal->Verify(0, 1);
    ASSERT_GE(last, durable_) << "a durable step is gone";
    ASSERT_LE(last, tried_);
    seen_.unreported += last > durable_ ? 1 : 0;
    seen_.lost += last < tried_ ? 1 : 0;
    seen_.zeros += EndsInZeros(*storage) ? 1 : 0;
    ExpectSteps(*journal, from_.step, last);
    durable_ = last;  // Verify has made it so.
  }

  // Whether the last page of a file holds nothing but zeros.
  static bool EndsInZeros(Storage& storage) {
    constexpr size_t kPageBytes = 4096;
    const auto segments = ListSegments(storage);
    for (const StepId& id : segments.value_or(std::vector<StepId>())) {
      const auto files = storage.List(SegmentFolder(id));
      for (const Storage::Entry& entry : files.value_or(std::vector<Storage::Entry>())) {
        const std::string path = absl::StrCat(SegmentFolder(id), "/", entry.name);
        const std::string text = ReadSmallFile(storage, path, 1 << 24).value_or("");
        const size_t begin = text.size() - std::min(text.size(), kPageBytes);
        if (text.size() > kPageBytes && text.find_first_not_of('\0', begin) == text.npos) {
          return true;
        }
      }
    }
    return false;
  }

  MemoryFileSystem memory_;
  SplitMix64 random_;
  Seen& seen_;
  StepId from_ = {1, 0};  // The newest durable checkpoint.
  int64_t durable_ = 0;   // The last step that all ranks were told to be durable.
  int64_t tried_ = 0;     // The last step whose append began.
};

// The seeds to try: one that the command line names, or `count` of them.
std::pair<uint64_t, uint64_t> Seeds(uint64_t count) {
  const auto chosen = static_cast<uint64_t>(::testing::GTEST_FLAG(random_seed));
  return chosen > 0 ? std::pair(chosen, chosen) : std::pair(uint64_t{1}, count);
}

TEST(JournalLossTest, NoLossOfPowerAndNoKillLosesADurableStep) {
  SetLogLevel(LogLevel::kError);
  Seen seen;
  const auto [first, last] = Seeds(Long() ? 5'000 : 150);
  for (uint64_t seed = first; seed <= last && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, "; to run it alone: --gtest_random_seed=", seed));
    LosingRun(seed, seen).Live();
  }
  std::printf(
      "seeds %llu to %llu: %lld losses of power, %lld kills; %lld checkpoints, %lld attempts went "
      "on behind one; in %lld states the last step is lost, in %lld a file ends in zeros, in %lld "
      "a step counts that was not reported\n",
      static_cast<unsigned long long>(first), static_cast<unsigned long long>(last),
      static_cast<long long>(seen.losses), static_cast<long long>(seen.kills),
      static_cast<long long>(seen.collected), static_cast<long long>(seen.replays),
      static_cast<long long>(seen.lost), static_cast<long long>(seen.zeros),
      static_cast<long long>(seen.unreported));
  if (first != last && !HasFailure()) {  // All that may be lost was there to lose.
    const auto runs = static_cast<int64_t>(last);
    EXPECT_GT(seen.losses, runs);
    EXPECT_GT(seen.kills, runs / 2);
    EXPECT_GT(seen.collected, runs / 2);
    EXPECT_GT(seen.replays, runs / 2);
    EXPECT_GT(seen.lost, runs / 2);
    EXPECT_GT(seen.zeros, runs / 10);
    EXPECT_GT(seen.unreported, 0);
  }
}

// Steps 1 to 6 of two ranks in two segments.
class Journalled {
 public:
  Journalled() {
    const auto storage = MakePosixStorage(memory_);
    for (const int64_t base : {0, 3}) {
      auto segment = Segment::Create(*storage, {1, base}, 0, 2);
      DT_CHECK_OK(segment.status());
      for (int64_t step = base + 1; step <= base + 3; ++step) {
        DT_CHECK_OK(segment->Append(step));
      }
      for (const int rank : {0, 1}) {
        const std::string path = SegmentPath({1, base}, rank, 2);
        paths_.push_back(path);
        good_[path] = *ReadSmallFile(*storage, path, 1 << 24);
      }
    }
  }

  // Damages a file as `seed` chooses. Every step that still counts has its bytes, and fewer count.
  void Try(uint64_t seed, std::map<std::string, int>& done) const {
    SplitMix64 random(MixBits(seed));
    std::map<std::string, std::string> files = good_;
    const std::string& path = paths_[random.Below(paths_.size())];
    std::string kind;
    while (files == good_) {
      kind = Damage(path, files, random);
    }
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", kind, " in ", path));
    MemoryFileSystem memory;
    const auto storage = MakePosixStorage(memory);
    for (const auto& [name, content] : files) {
      DT_CHECK_OK(storage->MakeDirectory(name.substr(0, name.rfind('/'))));
      DT_CHECK_OK(storage->Replace(name, content));
    }
    const auto journal = Journal::Open(*storage, {1, 0});
    ASSERT_TRUE(journal.ok()) << journal.status();
    const int64_t last = journal->Verify(0, 1);
    EXPECT_LT(last, 6) << "the damage was not found";
    ExpectSteps(*journal, 0, last);
    ++done[kind];
  }

 private:
  std::string Damage(const std::string& path, std::map<std::string, std::string>& files,
                     SplitMix64& random) const {
    std::string& content = files[path];
    switch (random.Below(7)) {
      case 0:
        content.resize(random.Below(content.size()));
        return "a truncation";
      case 1: {  // As of sectors that were never written.
        const size_t at = random.Below(content.size()) / 512 * 512;
        const size_t bytes = std::min<size_t>(content.size() - at, 512 * (1 + random.Below(16)));
        content.replace(at, bytes, bytes, '\0');
        return "lost sectors";
      }
      case 2:
        for (uint64_t i = 1 + random.Below(8); i > 0; --i) {
          content[random.Below(content.size())] = static_cast<char>(random.Next());
        }
        return "random bytes";
      case 3: {
        std::string& other = files[paths_[random.Below(paths_.size())]];
        if (&other != &content) {
          std::swap(content, other);
        }
        return "a swapped file";
      }
      case 4:
        files.erase(path);
        return "a missing file";
      default: {
        const auto bit = static_cast<unsigned char>(1U << random.Below(8));
        char& byte = content[random.Below(content.size())];
        byte = static_cast<char>(static_cast<unsigned char>(byte) ^ bit);
        return "a flipped bit";
      }
    }
  }

  MemoryFileSystem memory_;
  std::vector<std::string> paths_;
  std::map<std::string, std::string> good_;
};

TEST(JournalDamageTest, NoDamagedStepCounts) {
  SetLogLevel(LogLevel::kError);
  const Journalled journalled;
  std::map<std::string, int> done;
  const auto [first, last] = Seeds(Long() ? 10'000 : 200);
  for (uint64_t seed = first; seed <= last && !HasFailure(); ++seed) {
    journalled.Try(seed, done);
  }
  for (const auto& [kind, times] : done) {
    std::printf("%s %d; ", kind.c_str(), times);
  }
  std::printf("all were found\n");
  if (first != last && !HasFailure()) {
    EXPECT_EQ(done.size(), 6U);
  }
}

}  // namespace
}  // namespace dtrain::checkpoint::long_journal_test
