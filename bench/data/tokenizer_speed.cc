// Encodes files with a tokenizer: `tokenizer_speed TOKENIZER THREADS DOCUMENT_BYTES FILE...`.
// Prints
// {"bytes", "tokens", "seconds"}; the seconds are those of a first pass with empty caches.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/console/command_line.h"
#include "base/file.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/tokenizer.h"

namespace dtrain::bench {
namespace {

struct Options {
  std::string tokenizer;
  int threads = 1;
  size_t document_bytes = 0;
  std::vector<std::string> files;
};

absl::Status Run(const Options& options) {
  DT_ASSIGN_OR_RETURN(const auto tokenizer, plan::Tokenizer::Load(options.tokenizer));
  std::vector<std::string> documents;
  size_t bytes = 0;
  for (const std::string& path : options.files) {
    DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    bytes += text.size();
    for (size_t at = 0; at < text.size(); at += options.document_bytes) {
      documents.push_back(text.substr(at, options.document_bytes));
    }
  }
  std::atomic<size_t> next{0};
  std::atomic<size_t> tokens{0};
  std::atomic<bool> failed{false};
  const absl::Time begin = absl::Now();
  std::vector<std::thread> threads;
  for (int t = 0; t < options.threads; ++t) {
    threads.emplace_back([&] {
      std::vector<uint32_t> ids;
      for (size_t i = next++; i < documents.size(); i = next++) {
        ids.clear();
        if (!tokenizer->Encode(documents[i], {}, &ids).ok()) {
          failed = true;
        }
        tokens += ids.size();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (failed) {
    return absl::InternalError("a document could not be encoded");
  }
  std::fputs(absl::StrFormat("{\"bytes\": %d, \"tokens\": %d, \"seconds\": %.6f}\n", bytes,
                             tokens.load(), absl::ToDoubleSeconds(absl::Now() - begin))
                 .c_str(),
             stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace dtrain::bench

int main(int argc, char** argv) {
  dtrain::bench::Options options;
  if (argc < 5 || !absl::SimpleAtoi(argv[2], &options.threads) || options.threads < 1 ||
      !absl::SimpleAtoi(argv[3], &options.document_bytes) || options.document_bytes < 1) {
    std::fputs("usage: tokenizer_speed TOKENIZER THREADS DOCUMENT_BYTES FILE...\n", stderr);
    return 64;
  }
  options.tokenizer = argv[1];
  options.files.assign(argv + 4, argv + argc);
  return dtrain::EndOf("tokenizer_speed", dtrain::bench::Run(options));
}
