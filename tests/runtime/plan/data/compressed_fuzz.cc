// Any bytes of a file, compressed or not, are read to their end or to a one-line error.
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "runtime/plan/data/text/text_sources.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/runtime/plan/data/text/compressed.h"

namespace dtrain {

std::vector<std::string> FuzzSeeds() {
  const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n\n{\"text\": \"three\"}";
  return {lines, plan::Gzip(lines), plan::Zstd(lines), plan::Gzip(lines) + plan::Gzip(lines)};
}

}  // namespace dtrain

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace dtrain;  // NOLINT(google-build-using-namespace)
  static const int file = [] {
    const int fd = memfd_create("fuzz", 0);
    DT_CHECK(fd >= 0);
    return fd;
  }();
  DT_CHECK(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
  DT_CHECK(WriteFully(file, data, bytes).ok());
  const std::string path = absl::StrCat("/proc/self/fd/", file);
  for (const bool has_lines : {true, false}) {
    const std::vector<plan::TextSource> sources = {{path, "f", has_lines}};
    plan::ChunkReader reader(sources, 0, 0);
    int64_t next = 0;
    while (true) {
      const auto chunk = reader.Next();
      if (!chunk.ok()) {
        const absl::StatusCode code = chunk.status().code();  // The second is of what is no text.
        DT_CHECK(code == absl::StatusCode::kInvalidArgument ||
                 code == absl::StatusCode::kUnimplemented)
            << chunk.status();
        break;
      }
      if (!chunk->has_value()) {
        break;
      }
      DT_CHECK(!(*chunk)->bytes.empty() && (*chunk)->records > 0);
      DT_CHECK_EQ((*chunk)->first_record, next);
      next += (*chunk)->records;
    }
  }
  return 0;
}
