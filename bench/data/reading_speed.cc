// Reads windows of token files in the order of a training, by one thread, as a loader's thread
// does: `reading_speed ROW_LENGTH TOKENS FILE...`. Each file is a part of a mixture with equal
// weights. Prints {"tokens", "seconds"}.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "runtime/plan/data/token_corpus.h"
#include "runtime/plan/data/token_sampler.h"

namespace dtrain::bench {
namespace {

constexpr int64_t kBatch = 16;

struct Options {
  int64_t row_length = 0;
  int64_t tokens = 0;
  std::vector<std::string> files;
};

absl::Status Run(const Options& options) {
  std::vector<plan::CorpusPart> parts;
  for (const std::string& file : options.files) {
    parts.push_back({{file}, 1});
  }
  DT_ASSIGN_OR_RETURN(const plan::TokenCorpus corpus,
                      plan::TokenCorpus::Open(parts, plan::TokenFormat::kAuto));
  const plan::SamplerOptions sampling{
      .sequence_length = options.row_length, .global_batch = kBatch, .seed = 1};
  DT_ASSIGN_OR_RETURN(const plan::TokenSampler sampler,
                      plan::TokenSampler::Create(corpus.parts(), sampling));
  const plan::RankSlice slice{.rank = 0, .world_size = 1, .micro_batch = kBatch};
  const int64_t width = options.row_length + 1;
  std::vector<int64_t> rows(static_cast<size_t>(kBatch * width));
  int64_t tokens = 0;
  const absl::Time begin = absl::Now();
  for (int64_t step = 0; tokens < options.tokens; ++step) {
    int64_t* row = rows.data();
    for (const plan::SampleLocation& sample : sampler.MicroBatch(step, 0, slice)) {
      DT_RETURN_IF_ERROR(corpus.Read(sample, options.row_length, corpus.vocabulary(), row));
      row += width;
      tokens += options.row_length;
    }
  }
  std::fputs(absl::StrFormat("{\"tokens\": %d, \"seconds\": %.6f}\n", tokens,
                             absl::ToDoubleSeconds(absl::Now() - begin))
                 .c_str(),
             stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace dtrain::bench

int main(int argc, char** argv) {
  dtrain::bench::Options options;
  if (argc < 4 || !absl::SimpleAtoi(argv[1], &options.row_length) || options.row_length < 1 ||
      !absl::SimpleAtoi(argv[2], &options.tokens) || options.tokens < 1) {
    std::fputs("usage: reading_speed ROW_LENGTH TOKENS FILE...\n", stderr);
    return 64;
  }
  options.files.assign(argv + 3, argv + argc);
  return dtrain::EndOf("reading_speed", dtrain::bench::Run(options));
}
