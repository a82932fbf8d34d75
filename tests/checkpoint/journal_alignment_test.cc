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

std::vector<std::byte> GradientOf(int64_t elements) {
  SplitMix64 random(static_cast<uint64_t>(elements));
  std::vector<std::byte> data(static_cast<size_t>(elements) * 2);
  for (std::byte& byte : data) {
    byte = static_cast<std::byte>(random.Next());
  }
  return data;
}

SegmentHeader HeaderOf(int64_t elements) {
  return {.job = "job",
          .id = {1, 0},
          .layout_hash = "0123456789abcdef",
          .settings = {{"seed", 7}},
          .ranges = {{0, elements}}};
}

// Texts of several lengths, some with states behind them.
AfterStep AfterOf(int64_t step) {
  return {.state = {{"tracked", std::string(static_cast<size_t>(step) * 1111, 'x')}},
          .blobs = {{"rng.cpu", std::vector<std::byte>(static_cast<size_t>(step) * 7)}}};
}

void WriteSteps(Storage& storage, const SegmentHeader& header,
                const std::vector<std::byte>& gradient) {
  auto segment = SegmentWriter::Create(storage, header);
  ASSERT_TRUE(segment.ok()) << segment.status();
  for (int64_t step = 1; step <= kSteps; ++step) {
    const AfterStep after = AfterOf(step);
    ASSERT_TRUE((*segment)
                    ->Append({.step = step,
                              .end = {{"count", step}},
                              .gradient = gradient,
                              .after = step == 2 ? nullptr : &after})
                    .ok());
  }
}

// The places in the file at which the gradient begins.
std::vector<size_t> PlacesOf(Storage& storage, const SegmentHeader& header,
                             const std::vector<std::byte>& gradient) {
  const auto text = ReadSmallFile(storage, SegmentPath(header.id, 0, 1), 1 << 26);
  EXPECT_TRUE(text.ok()) << text.status();
  const absl::string_view wanted(reinterpret_cast<const char*>(gradient.data()), gradient.size());
  std::vector<size_t> places;
  for (size_t at = text->find(wanted.data(), 0, wanted.size()); at != std::string::npos;
       at = text->find(wanted.data(), at + 1, wanted.size())) {
    places.push_back(at);
  }
  return places;
}

void ExpectRead(Storage& storage, const SegmentHeader& header,
                const std::vector<std::byte>& gradient) {
  const auto journal = Journal::Open(storage, header.id);
  ASSERT_TRUE(journal.ok()) << journal.status();
  ASSERT_EQ(journal->last(), kSteps);
  for (int64_t step = 1; step <= kSteps; ++step) {
    const SegmentReader& file = *journal->FilesOf(step)[0];
    EXPECT_TRUE(file.Verify(step).ok());
    EXPECT_EQ(file.ReadText(step)->end, (Json{{"count", step}}));
    if (step != 2) {
      EXPECT_EQ(file.ReadAfter(step)->state, AfterOf(step).state);
    }
    std::vector<std::byte> all(gradient.size());
    ASSERT_TRUE(file.ReadGradient(step, 0, absl::MakeSpan(all)).ok());
    EXPECT_TRUE(all == gradient);
  }
}

TEST(JournalAlignmentTest, ALargeGradientBeginsWhereItNeedNotBeCopied) {
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  const SegmentHeader header = HeaderOf(kElements);
  const std::vector<std::byte> gradient = GradientOf(kElements);
  WriteSteps(*storage, header, gradient);
  const std::vector<size_t> places = PlacesOf(*storage, header, gradient);
  EXPECT_EQ(places.size(), static_cast<size_t>(kSteps));
  for (const size_t place : places) {
    EXPECT_EQ(place % kHeldAlignment, 0U);
  }
  ExpectRead(*storage, header, gradient);
}

// The room of a step is reserved before its bytes are written, in any order. After a crash zeros
// may stand in place of some of them, and none of such a step counts.
TEST(JournalAlignmentTest, AStepOfWhichACrashHasLeftZerosDoesNotCount) {
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  const SegmentHeader header = HeaderOf(kElements);
  const std::vector<std::byte> gradient = GradientOf(kElements);
  WriteSteps(*storage, header, gradient);
  const std::vector<size_t> places = PlacesOf(*storage, header, gradient);
  ASSERT_EQ(places.size(), static_cast<size_t>(kSteps));
  const std::string path = SegmentPath(header.id, 0, 1);
  const std::string whole = *ReadSmallFile(*storage, path, 1 << 26);
  const size_t record = places[kSteps - 2] + gradient.size();  // Of the last step.
  const size_t last = places[kSteps - 1];
  const std::pair<size_t, size_t> zeros[] = {{record, whole.size()},
                                             {last, whole.size()},
                                             {record, last},
                                             {last, last + kBlockBytes},
                                             {last + kBlockBytes, whole.size()}};
  for (const auto& [begin, end] : zeros) {
    SCOPED_TRACE(begin);
    std::string left = whole;
    left.replace(begin, end - begin, end - begin, '\0');
    ASSERT_TRUE(storage->Replace(path, left).ok());
    const auto journal = Journal::Open(*storage, header.id);
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_EQ(journal->Verify(0, 1), kSteps - 1);
  }
}

TEST(JournalAlignmentTest, ASmallGradientTakesNoMoreRoomForIt) {
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  const SegmentHeader header = HeaderOf(1000);
  const std::vector<std::byte> gradient = GradientOf(1000);
  WriteSteps(*storage, header, gradient);
  const std::vector<size_t> places = PlacesOf(*storage, header, gradient);
  ASSERT_EQ(places.size(), static_cast<size_t>(kSteps));
  // Between two gradients stand the second record's text and states, which have these lengths.
  for (size_t i = 1; i < places.size(); ++i) {
    const size_t states = i == 1 ? 0 : (i + 1) * (1111 + 7);
    EXPECT_LT(places[i] - places[i - 1] - gradient.size(), states + 300);
  }
  ExpectRead(*storage, header, gradient);
}

}  // namespace
}  // namespace dtrain::checkpoint::journal_alignment_test
