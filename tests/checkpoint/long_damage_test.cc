// Random damage to a committed checkpoint: every one is found, the message names the file and where
// in it, and the checkpoint before it is used with all of its bits.
//
// One seed is one damage: `--gtest_random_seed=SEED` does that one alone again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/restore/restore_agreement.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::long_damage_test {
namespace {

using ::testing::HasSubstr;

// The kinds of damage, each with the share of seeds that it gets.
enum class Kind {
  kFlippedBit,
  kRandomBytes,
  kLostPages,  // A run of zeros, as of sectors that were never written.
  kTruncated,
  kGrown,
  kMissing,
  kSwapped,  // Two files of the checkpoint have each other's place.
  kStale,    // The file of the same name of an older checkpoint; the manifest's too.
};
constexpr std::array kKinds = {
    Kind::kFlippedBit, Kind::kFlippedBit, Kind::kFlippedBit, Kind::kTruncated, Kind::kRandomBytes,
    Kind::kLostPages,  Kind::kGrown,      Kind::kMissing,    Kind::kSwapped,   Kind::kStale};
constexpr std::array kKindNames = {"a flipped bit", "random bytes",    "lost pages",
                                   "a truncation",  "a longer file",   "a missing file",
                                   "swapped files", "a file of before"};

// One damage, and what it did.
struct Damage {
  Kind kind = Kind::kFlippedBit;
  std::string file;  // The first of the damaged files, in the manifest's order.
  // The new content of damaged files; none: the file is gone.
  std::map<std::string, std::optional<std::string>> content;
};

// The first byte in which two texts differ; the shorter length if none does.
size_t FirstDifference(const std::string& a, const std::string& b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin());
}

// "bytes A to B" of a message; nothing if it has none.
std::optional<std::pair<uint64_t, uint64_t>> RangeIn(const std::string& message) {
  const size_t at = message.find(": bytes ");
  if (at == std::string::npos) {
    return std::nullopt;
  }
  const std::vector<std::string> words =
      absl::StrSplit(absl::string_view(message).substr(at + std::strlen(": bytes ")), ' ');
  std::pair<uint64_t, uint64_t> range;
  DT_CHECK(words.size() > 2 && absl::SimpleAtoi(words[0], &range.first) &&
           absl::SimpleAtoi(words[2], &range.second))
      << message;
  return range;
}

// Steps 1 and 2, both committed, in a fresh folder. Step 2 is damaged.
class Checkpoints {
 public:
  Checkpoints(int world_size, size_t scale) {
    SetLogLevel(LogLevel::kError);
    auto storage = OpenPosixStorage(folder_.path());
    DT_CHECK_OK(storage.status());
    storage_ = *std::move(storage);
    const auto epoch = BeginEpoch(*storage_, "job", world_size, std::nullopt);
    DT_CHECK_OK(epoch.status());
    for (const int64_t step : {1, 2}) {
      DT_CHECK(SaveOnRanks(*storage_, OptionsFor(*epoch), world_size, step, scale)[0].durable());
    }
    const auto manifest = ReadManifest(*storage_, {1, 2});
    DT_CHECK_OK(manifest.status());
    files_ = {kManifestName};
    for (const ManifestFile& file : manifest->files) {
      files_.push_back(file.path);
    }
    for (const std::string& file : files_) {
      good_[file] = Content(2, file);
      stale_[file] = Content(1, file);
    }
    for (int rank = 0; rank < world_size; ++rank) {
      before_.emplace_back(1, rank, world_size, scale);
    }
  }

  // Damages step 2 as `seed` chooses, checks what is made of it, and undoes it.
  void Try(uint64_t seed, std::map<Kind, int>& done) {
    const Damage damage = Draw(seed);
    SCOPED_TRACE(absl::StrCat("seed ", seed, " (", kKindNames[static_cast<size_t>(damage.kind)],
                              " in ", damage.file,
                              "); to do it alone: --gtest_random_seed=", seed));
    for (const auto& [file, content] : damage.content) {
      Write(file, content);
    }
    ExpectFound(damage);
    ExpectStepBefore();
    for (const auto& [file, content] : damage.content) {
      Write(file, good_.at(file));
    }
    ++done[damage.kind];
  }

  void ExpectUndamaged() {
    EXPECT_TRUE(ReadInOnePass().ok());
    const auto latest = FindLatest(*storage_);
    ASSERT_TRUE(latest.ok()) << latest.status();
    EXPECT_EQ((*latest)->manifest().id.step, 2);
  }

 private:
  std::string Path(int step, const std::string& file) const {
    return absl::StrCat(folder_.path(), "/", StepId{1, step}.DirectoryName(), "/", file);
  }
  std::string Content(int step, const std::string& file) const {
    auto content = ReadFile(Path(step, file));
    DT_CHECK_OK(content.status());
    return *std::move(content);
  }
  void Write(const std::string& file, const std::optional<std::string>& content) const {
    const std::string path = Path(2, file);
    unlink(path.c_str());
    std::FILE* const to = content ? std::fopen(path.c_str(), "wb") : nullptr;
    if (to != nullptr) {
      DT_CHECK_EQ(std::fwrite(content->data(), 1, content->size(), to), content->size());
      DT_CHECK_EQ(std::fclose(to), 0);
    }
  }

  Damage Draw(uint64_t seed) const {
    SplitMix64 random(MixBits(seed));
    for (;;) {
      Damage damage;
      damage.kind = kKinds[random.Below(kKinds.size())];
      damage.file = files_[random.Below(files_.size())];
      if (damage.kind == Kind::kSwapped) {
        const std::string other = files_[random.Below(files_.size())];
        damage.content = {{damage.file, good_.at(other)}, {other, good_.at(damage.file)}};
        if (std::find(files_.begin(), files_.end(), other) <
            std::find(files_.begin(), files_.end(), damage.file)) {
          damage.file = other;
        }
      } else if (damage.kind == Kind::kStale) {
        damage.content = {{damage.file, stale_.at(damage.file)}};
      } else if (damage.kind == Kind::kMissing) {
        damage.content = {{damage.file, std::nullopt}};
      } else {
        damage.content = {{damage.file, Changed(damage.kind, good_.at(damage.file), random)}};
      }
      // Equal files change places, and zeros take the place of zeros: nothing is damaged.
      if (damage.content.at(damage.file) != good_.at(damage.file)) {
        return damage;
      }
    }
  }

  static std::string Changed(Kind kind, std::string content, SplitMix64& random) {
    const auto end = static_cast<uint64_t>(content.size());
    if (kind == Kind::kFlippedBit) {
      content[random.Below(end)] ^= static_cast<char>(1U << random.Below(8));
    } else if (kind == Kind::kRandomBytes) {
      for (uint64_t i = 1 + random.Below(8); i > 0; --i) {
        content[random.Below(end)] = static_cast<char>(random.Next());
      }
    } else if (kind == Kind::kLostPages) {
      const uint64_t at = random.Below(end) / 512 * 512;
      const uint64_t bytes = std::min(end - at, 512 * (1 + random.Below(16)));
      std::memset(content.data() + at, 0, bytes);
    } else if (kind == Kind::kTruncated) {
      content.resize(random.Below(end));
    } else {
      content.append(1 + random.Below(4096), static_cast<char>(random.Next()));
    }
    return content;
  }

  // The line on step 2 by a run that verifies it while it reads.
  absl::Status ReadInOnePass() {
    const auto opened = Checkpoint::Open(*storage_, {1, 2}, Verify::kSizes);
    DT_RETURN_IF_ERROR(opened.status());
    AloneExchange alone;
    DT_ASSIGN_OR_RETURN(const RestoreOutcome outcome,
                        AgreeOnRestore(**opened, absl::OkStatus(), alone, absl::Minutes(1)));
    return outcome.damage;
  }

  void ExpectFound(const Damage& damage) {
    ExpectFound(damage, Checkpoint::Open(*storage_, {1, 2}, Verify::kHashes).status());
    ExpectFound(damage, ReadInOnePass());
  }

  // Step 2 is refused with a message that names the file and where in it.
  void ExpectFound(const Damage& damage, const absl::Status& status) {
    ASSERT_FALSE(status.ok()) << "the damage was not found";
    const std::string message(status.message());
    ASSERT_THAT(message, HasSubstr(Path(2, damage.file)));
    const std::string& good = good_.at(damage.file);
    const std::optional<std::string>& bad = damage.content.at(damage.file);
    if (damage.file == kManifestName) {  // Its hash is of the whole.
      return;
    }
    if (!bad) {
      EXPECT_THAT(message, HasSubstr("the file is missing"));
    } else if (bad->size() != good.size()) {
      EXPECT_THAT(message, HasSubstr(absl::StrCat("it has ", bad->size(),
                                                  " bytes, the manifest says ", good.size())));
    } else {
      const auto range = RangeIn(message);
      ASSERT_TRUE(range.has_value()) << message;
      const size_t first = FirstDifference(good, *bad);
      EXPECT_LE(range->first, first) << message;
      EXPECT_GT(range->second, first) << message;
      EXPECT_LE(range->second - range->first, kBlockBytes) << message;
    }
  }

  void ExpectStepBefore() {
    const auto latest = FindLatest(*storage_);
    ASSERT_TRUE(latest.ok()) << latest.status();
    ASSERT_EQ((*latest)->manifest().id.step, 1);
    for (const FakeState& state : before_) {
      const absl::Status same = state.Compare(**latest);
      EXPECT_TRUE(same.ok()) << same;
    }
  }

  const TemporaryFolder folder_{TemporaryFolder::Where::kMemory};
  std::unique_ptr<Storage> storage_;
  std::vector<std::string> files_;           // The manifest, then in its order.
  std::map<std::string, std::string> good_;  // The content of step 2's files.
  std::map<std::string, std::string> stale_;
  std::vector<FakeState> before_;  // Step 1, by rank.
};

void DamageRepeatedly(Checkpoints& checkpoints, uint64_t count) {
  const auto chosen = static_cast<uint64_t>(::testing::GTEST_FLAG(random_seed));
  const uint64_t first = chosen > 0 ? chosen : 1;
  const uint64_t last = chosen > 0 ? chosen : count;
  std::map<Kind, int> done;
  for (uint64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    checkpoints.Try(seed, done);
    if (seed % 100 == 0) {
      checkpoints.ExpectUndamaged();
    }
  }
  checkpoints.ExpectUndamaged();
  std::printf("seeds %llu to %llu:", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(last));
  for (const auto& [kind, times] : done) {
    std::printf(" %s %d;", kKindNames[static_cast<size_t>(kind)], times);
  }
  std::printf(" all were found\n");
  if (chosen == 0 && count >= 1000 && !::testing::Test::HasFailure()) {
    EXPECT_EQ(done.size(), kKindNames.size()) << "a kind of damage was not tried";
  }
}

bool Long() { return std::getenv("DTRAIN_TEST_LONG") != nullptr; }

TEST(DamageTest, EveryDamageIsFoundWithItsPlaceAndTheCheckpointBeforeIsUsed) {
  Checkpoints checkpoints(/*world_size=*/2, /*scale=*/1);
  DamageRepeatedly(checkpoints, Long() ? 20'000 : 2'500);
}

TEST(DamageTest, InFilesOfManyBlocksTheBlockIsNamed) {
  // Each of the larger tensors has three blocks.
  Checkpoints checkpoints(/*world_size=*/1, /*scale=*/3 * kBlockBytes / 2048);
  DamageRepeatedly(checkpoints, Long() ? 1'000 : 24);
}

}  // namespace
}  // namespace dtrain::checkpoint::long_damage_test
