// Fuzz target for a file of the step journal: whatever it holds, reading ends without a fault, and
// a step that verifies reads back whole.
#include "base/check.h"
#include "base/log.h"
#include "checkpoint/journal/segment_reader.h"
#include "checkpoint/journal/segment_writer.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/fuzz/fuzz_target.h"

using namespace dtrain::checkpoint;  // NOLINT(google-build-using-namespace): one small program.

namespace {

constexpr StepId kId{1, 0};

std::string FileOf(MemoryFileSystem& files) {
  const auto storage = MakePosixStorage(files);
  const auto text = ReadSmallFile(*storage, SegmentPath(kId, 0, 1), 1 << 20);
  DT_CHECK_OK(text.status());
  return *text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFileSystem files;
  const auto storage = MakePosixStorage(files);
  DT_CHECK_OK(storage->MakeDirectory(SegmentFolder(kId)));
  DT_CHECK_OK(
      storage->Replace(SegmentPath(kId, 0, 1), {reinterpret_cast<const char*>(data), size}));
  const auto reader = SegmentReader::Open(*storage, {kId, 0, 1});
  if (!reader.ok()) {
    return 0;
  }
  for (int64_t step = 1; step <= (*reader)->last(); ++step) {
    const auto text = (*reader)->ReadText(step);
    if (!(*reader)->Verify(step).ok()) {
      continue;
    }
    DT_CHECK(text.ok()) << text.status().ToString();
    if ((*reader)->has_after(step)) {
      const auto after = (*reader)->ReadAfter(step);
      DT_CHECK(after.ok()) << after.status().ToString();
      DT_CHECK_EQ(after->blobs.size(), text->blobs.size());
    }
  }
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const bool has_after : {true, false}) {
    MemoryFileSystem files;
    const auto storage = MakePosixStorage(files);
    auto segment = SegmentWriter::Create(
        *storage, {.job = "job", .id = kId, .layout_hash = "00", .ranges = {{0, 8}, {16, 24}}});
    DT_CHECK_OK(segment.status());
    const AfterStep after{.state = {{"tracked", 1}}, .blobs = {{"rng", std::vector<std::byte>(9)}}};
    const std::vector<std::byte> gradient(32);
    for (int64_t step = 1; step < 3; ++step) {
      DT_CHECK_OK((*segment)->Append(
          {.step = step, .gradient = gradient, .after = has_after ? &after : nullptr}));
    }
    seeds.push_back(FileOf(files));
  }
  return seeds;
}
