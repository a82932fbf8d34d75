// A program for tests that kill it: saves a checkpoint to an object store, as one rank, and resumes
// from what is there.
//
//   checkpoint_s3_writer URL STEP SCALE     (exit code 0: the checkpoint is durable)
#include <cstdio>
#include <cstdlib>

#include "checkpoint/storage/s3/s3_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint {
namespace {

int Run(char** argv) {
  S3Options options;
  options.part_bytes = 5 << 20;
  auto storage = OpenS3Storage(argv[1], options);
  if (!storage.ok()) {
    std::fprintf(stderr, "%s\n", storage.status().ToString().c_str());
    return 1;
  }
  AloneExchange alone;
  auto attempt = BeginAttempt(**storage, alone, {.job = "job", .fresh = false, .known_save = {}},
                              absl::Minutes(1));
  if (!attempt.ok()) {
    std::fprintf(stderr, "%s\n", attempt.status().ToString().c_str());
    return 1;
  }
  const int64_t step = std::atoll(argv[2]);
  FakeState state(step, 0, 1, static_cast<size_t>(std::atoll(argv[3])));
  Writer writer(**storage, OptionsFor(attempt->epoch));
  const SaveReport report = writer.Save(step, state.source(), alone);
  std::fprintf(stderr, "%s\n", report.status.ToString().c_str());
  return report.durable() ? 0 : 1;
}

}  // namespace
}  // namespace dtrain::checkpoint

int main(int argc, char** argv) { return argc == 4 ? dtrain::checkpoint::Run(argv) : 64; }
