// Reads what a rank takes from a checkpoint in one pass: each block of a file once, several at a
// time, straight to where its bytes belong, and compared with its CRC-32C on the way.
//
// A caller asks for ranges first; Run reads them, and goes through the files in the order of
// the manifest. Ranks of one host that want the same blocks therefore find them in the page cache.
// Where the system reads ahead, one thread reads blocks that follow each other.
// Besides what is asked for it takes memory for kReaders blocks. Used by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "checkpoint/restore/reader.h"

namespace dtrain::checkpoint {

class TensorReads {
 public:
  // REQUIRES: `from` outlives this object.
  explicit TensorReads(Checkpoint& from) : from_(from) {}

  // Asks for bytes [offset, offset + into.size()) of a tensor of model/, or of state/rank-R.
  // `stored` is the whole tensor. NotFound, InvalidArgument: the checkpoint holds no such tensor;
  // OutOfRange: it is smaller. `into` stays until Run has returned.
  absl::Status AddModel(const TensorSpec& stored, uint64_t offset, absl::Span<std::byte> into);
  absl::Status AddState(int rank, const TensorSpec& stored, uint64_t offset,
                        absl::Span<std::byte> into);
  // Asks that a block is compared with its checksum. REQUIRES: the checkpoint has it.
  void AddBlock(uint64_t block) { pieces_.push_back({block, 0, {}}); }
  // Asks this of all files that hold no tensors.
  void AddOtherFiles();

  // Reads all that was asked for since the last call. An error is noted as damage of the
  // checkpoint, names file and bytes, and leaves what was asked for with any content. Of a file
  // that the storage holds several times a damaged copy is removed, and another one is read.
  absl::Status Run();

 private:
  friend class BlockPass;
  struct Piece {
    uint64_t block = 0;   // Counted over all files.
    uint64_t within = 0;  // Its first byte, from the start of the block.
    absl::Span<std::byte> into;
  };
  absl::Status Add(const absl::StatusOr<Checkpoint::Place>& place, const TensorSpec& stored,
                   uint64_t offset, absl::Span<std::byte> into);

  Checkpoint& from_;
  std::vector<Piece> pieces_;
};

}  // namespace dtrain::checkpoint
