#include "runtime/plan/data/corpus_identity.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain::plan {
namespace {

constexpr int64_t kBlockTokens = 64;
constexpr int64_t kBlocksMax = 256;  // For all files together.
constexpr int64_t kBlocksMin = 4;    // For each file.
constexpr int kThreads = 16;         // For files at addresses, where each read waits for a reply.

struct Block {
  SampleLocation at;
  std::vector<int64_t> tokens;
  std::vector<uint8_t> mask;  // Empty: the file has none.
  absl::Status status;
};

// The blocks that are hashed, not read yet, file by file.
std::vector<Block> IdentityBlocks(const TokenCorpus& corpus) {
  std::vector<Block> all;
  const auto files = static_cast<int64_t>(corpus.files().size());
  const int64_t blocks_max = std::max(kBlocksMin, kBlocksMax / std::max<int64_t>(1, files));
  for (int64_t index = 0; index < files; ++index) {
    const int64_t tokens = corpus.files()[static_cast<size_t>(index)].tokens();
    const int64_t count = std::min(kBlockTokens, tokens);
    const int64_t blocks = std::min(blocks_max, (tokens + kBlockTokens - 1) / kBlockTokens);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t offset = blocks == 1 ? 0 : (tokens - count) * block / (blocks - 1);
      Block one;
      one.at = {.file = static_cast<int>(index), .offset = offset};
      one.tokens.resize(static_cast<size_t>(count));
      all.push_back(std::move(one));
    }
  }
  return all;
}

void ReadBlock(const TokenCorpus& corpus, Block& block) {
  const auto count = static_cast<int64_t>(block.tokens.size());
  block.status = corpus.Read(block.at, count - 1, /*vocabulary=*/0, block.tokens.data());
  if (block.status.ok() && corpus.is_masked(block.at.file)) {
    block.mask.resize(block.tokens.size());
    block.status = corpus.ReadMask(block.at, count - 1, block.mask.data());
  }
}

void ReadBlocks(const TokenCorpus& corpus, std::vector<Block>& blocks) {
  std::atomic<size_t> next{0};
  const auto read = [&] {
    for (size_t i = next++; i < blocks.size(); i = next++) {
      ReadBlock(corpus, blocks[i]);
    }
  };
  std::vector<std::thread> threads;
  const bool is_remote = std::any_of(corpus.files().begin(), corpus.files().end(),
                                     [](const auto& f) { return IsRemoteAddress(f.path()); });
  for (int i = 1; is_remote && i < kThreads; ++i) {
    threads.emplace_back(read);
  }
  read();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace

absl::StatusOr<std::string> CorpusIdentity(const TokenCorpus& corpus) {
  std::vector<Block> blocks = IdentityBlocks(corpus);
  ReadBlocks(corpus, blocks);
  StableHash hash;
  auto block = blocks.begin();
  for (size_t index = 0; index < corpus.files().size(); ++index) {
    hash.Add(static_cast<uint64_t>(corpus.files()[index].tokens()));
    for (; block != blocks.end() && block->at.file == static_cast<int>(index); ++block) {
      DT_RETURN_IF_ERROR(block->status);
      for (const int64_t token : block->tokens) {
        hash.Add(static_cast<uint64_t>(token));
      }
      // A corpus without masks has the identity that it had before there were any.
      for (const uint8_t bits : block->mask) {
        hash.Add(uint64_t{bits});
      }
    }
  }
  return absl::StrFormat("%016x", hash.value());
}

}  // namespace dtrain::plan
