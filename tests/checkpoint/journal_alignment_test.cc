// A large gradient stands in a step journal's file where its memory need not be copied, whatever
// the lengths of the texts before it, and records are read as ever.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/numeric/prng.h"
#include "checkpoint/journal/journal.h"
#include "checkpoint/journal/segment_writer.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"

namespace dtrain::checkpoint::journal_alignment_test {
namespace {

constexpr int64_t kElements = 3 << 20;
constexpr int64_t kSteps = 4;
constexpr StepId kId = {1, 0};

// Texts of several lengths, some with states behind them.
AfterStep AfterOf(int64_t step) {
  return {.state = {{"tracked", std::string(static_cast<size_t>(step) * 1111, 'x')}},
          .blobs = {{"rng.cpu", std::vector<std::byte>(static_cast<size_t>(step) * 7)}}};
}

class JournalAlignmentTest : public ::testing::Test {
 protected:
  // Journals steps whose gradient has so many elements of bf16; afterwards `places_` are the bytes
  // of the file at which it begins.
  void WriteSteps(int64_t elements) {
    SplitMix64 random(static_cast<uint64_t>(elements));
    gradient_.resize(static_cast<size_t>(elements) * 2);
    for (std::byte& byte : gradient_) {
      byte = static_cast<std::byte>(random.Next());
    }
    auto segment = SegmentWriter::Create(*storage_, {.job = "job",
                                                     .id = kId,
                                                     .layout_hash = "0123456789abcdef",
                                                     .settings = {{"seed", 7}},
                                                     .ranges = {{0, elements}}});
    ASSERT_TRUE(segment.ok()) << segment.status();
    for (int64_t step = 1; step <= kSteps; ++step) {
      const AfterStep after = AfterOf(step);
      ASSERT_TRUE((*segment)
                      ->Append({.step = step,
                                .end = {{"count", step}},
                                .gradient = gradient_,
                                .after = step == 2 ? nullptr : &after})
                      .ok());
    }
    const std::string text = Text();
    const absl::string_view wanted(reinterpret_cast<const char*>(gradient_.data()),
                                   gradient_.size());
    for (size_t at = text.find(wanted.data(), 0, wanted.size()); at != std::string::npos;
         at = text.find(wanted.data(), at + 1, wanted.size())) {
      places_.push_back(at);
    }
    ASSERT_EQ(places_.size(), static_cast<size_t>(kSteps));
  }

  std::string Text() const {
    const auto text = ReadSmallFile(*storage_, path_, 1 << 26);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or("");
  }

  void ExpectRead() {
    const auto journal = Journal::Open(*storage_, kId);
    ASSERT_TRUE(journal.ok()) << journal.status();
    ASSERT_EQ(journal->last(), kSteps);
    for (int64_t step = 1; step <= kSteps; ++step) {
      const SegmentReader& file = *journal->FilesOf(step)[0];
      EXPECT_TRUE(file.Verify(step).ok());
      EXPECT_EQ(file.ReadText(step)->end, (Json{{"count", step}}));
      if (step != 2) {
        EXPECT_EQ(file.ReadAfter(step)->state, AfterOf(step).state);
      }
      std::vector<std::byte> all(gradient_.size());
      ASSERT_TRUE(file.ReadGradient(step, 0, absl::MakeSpan(all)).ok());
      EXPECT_TRUE(all == gradient_);
    }
  }

  MemoryFileSystem files_;
  const std::unique_ptr<Storage> storage_ = MakePosixStorage(files_);
  const std::string path_ = SegmentPath(kId, 0, 1);
  std::vector<std::byte> gradient_;
  std::vector<size_t> places_;
};

TEST_F(JournalAlignmentTest, ALargeGradientBeginsWhereItNeedNotBeCopied) {
  WriteSteps(kElements);
  for (const size_t place : places_) {
    EXPECT_EQ(place % kHeldAlignment, 0U);
  }
  ExpectRead();
}

// The room of a step is reserved before its bytes are written, in any order. After a crash zeros
// may stand in place of some of them, and none of such a step counts.
TEST_F(JournalAlignmentTest, AStepOfWhichACrashHasLeftZerosDoesNotCount) {
  ASSERT_NO_FATAL_FAILURE(WriteSteps(kElements));
  const std::string whole = Text();
  const size_t record = places_[kSteps - 2] + gradient_.size();  // The last step's.
  const size_t last = places_[kSteps - 1];
  const std::pair<size_t, size_t> zeros[] = {{record, whole.size()},
                                             {last, whole.size()},
                                             {record, last},
                                             {last, last + kBlockBytes},
                                             {last + kBlockBytes, whole.size()}};
  for (const auto& [begin, end] : zeros) {
    SCOPED_TRACE(begin);
    std::string left = whole;
    left.replace(begin, end - begin, end - begin, '\0');
    ASSERT_TRUE(storage_->Replace(path_, left).ok());
    const auto journal = Journal::Open(*storage_, kId);
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_EQ(journal->Verify(0, 1), kSteps - 1);
  }
}

TEST_F(JournalAlignmentTest, ASmallGradientTakesNoMoreRoomForIt) {
  ASSERT_NO_FATAL_FAILURE(WriteSteps(1000));
  // Between two gradients stand the second record's text and states, which have these lengths.
  for (size_t i = 1; i < places_.size(); ++i) {
    const size_t states = i == 1 ? 0 : (i + 1) * (1111 + 7);
    EXPECT_LT(places_[i] - places_[i - 1] - gradient_.size(), states + 300);
  }
  ExpectRead();
}

}  // namespace
}  // namespace dtrain::checkpoint::journal_alignment_test
