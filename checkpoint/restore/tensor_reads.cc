#include "checkpoint/restore/tensor_reads.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/block_reader.h"
#include "checkpoint/storage/checked_file.h"

namespace dtrain::checkpoint {

// One Run. Its blocks are read by several threads.
class BlockPass {
 public:
  using Piece = TensorReads::Piece;

  // REQUIRES: `pieces` are sorted by block.
  BlockPass(Checkpoint& from, const std::vector<Piece>& pieces) : from_(from), pieces_(pieces) {
    size_t file = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0 && pieces[i].block == pieces[i - 1].block) {
        ++jobs_.back().pieces;
        continue;
      }
      while (from.first_block(file + 1) <= pieces[i].block) {
        ++file;
      }
      jobs_.push_back({file, pieces[i].block, i, 1});
      ++files_[file].jobs;
    }
  }

  absl::Status Run() {
    DT_RETURN_IF_ERROR(
        ForEachAtOnce(jobs_.size(), [this](uint64_t i) { return ReadJob(jobs_[i], i); }));
    for (const Job& job : jobs_) {
      from_.AddSeen(job.block);
    }
    for (const size_t file : long_headers_) {
      DT_RETURN_IF_ERROR(from_.CheckIndexOf(file));
    }
    return absl::OkStatus();
  }

 private:
  struct Job {
    size_t file = 0;
    uint64_t block = 0;  // Counted over all files.
    size_t first_piece = 0;
    size_t pieces = 0;
  };
  struct File {
    size_t jobs = 0;  // Those that have not ended; with the last one the file is closed.
    std::shared_ptr<const ReadableFile> opened;
  };
  using Buffer = std::unique_ptr<std::byte[]>;

  const FileChecksum& ChecksumOf(size_t file) const {
    return from_.manifest().files[file].checksum;
  }

  absl::StatusOr<std::shared_ptr<const ReadableFile>> Open(size_t file) {
    const std::lock_guard lock(mutex_);
    File& kept = files_[file];
    if (kept.opened == nullptr) {
      const std::string path = from_.PathOf(file);
      DT_RETURN_IF_ERROR(VerifyFile(from_.storage(), path, ChecksumOf(file), Verify::kSizes));
      DT_ASSIGN_OR_RETURN(kept.opened, from_.storage().OpenFile(path));
    }
    return kept.opened;
  }

  Buffer TakeBuffer() {
    {
      const std::lock_guard lock(mutex_);
      if (!buffers_.empty()) {
        Buffer buffer = std::move(buffers_.back());
        buffers_.pop_back();
        return buffer;
      }
    }
    return std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
  }

  // Where the storage holds other copies of the file, makes sure that it gives one that is whole.
  absl::Status FindWholeCopy(size_t file, const absl::Status& damage) {
    if (!from_.storage().may_hold_copies() || absl::IsPermissionDenied(damage)) {
      return damage;
    }
    const std::lock_guard one_at_a_time(repair_mutex_);
    DT_RETURN_IF_ERROR(
        VerifyFile(from_.storage(), from_.PathOf(file), ChecksumOf(file), Verify::kHashes));
    const std::lock_guard lock(mutex_);
    files_[file].opened = nullptr;
    return absl::OkStatus();
  }

  absl::Status ReadJob(const Job& job, size_t index) {
    absl::Status status = ReadOnce(job, index);
    if (!status.ok()) {
      DT_RETURN_IF_ERROR(FindWholeCopy(job.file, status));
      status = ReadOnce(job, index);
    }
    const std::lock_guard lock(mutex_);
    if (File& file = files_[job.file]; --file.jobs == 0) {
      file.opened = nullptr;
    }
    return status;
  }

  absl::Status ReadOnce(const Job& job, size_t index) {
    DT_ASSIGN_OR_RETURN(const std::shared_ptr<const ReadableFile> file, Open(job.file));
    if (index + kReaders < jobs_.size() && jobs_[index + kReaders].file == job.file) {
      file->ReadAhead((jobs_[index + kReaders].block - from_.first_block(job.file)) * kBlockBytes,
                      kBlockBytes);
    }
    const uint64_t begin = (job.block - from_.first_block(job.file)) * kBlockBytes;
    const uint64_t bytes = std::min(kBlockBytes, ChecksumOf(job.file).bytes - begin);
    const Piece& first = pieces_[job.first_piece];
    if (job.pieces == 1 && first.within == 0 && first.into.size() == bytes) {
      return ReadBlock(job, *file, begin, first.into);
    }
    Buffer buffer = TakeBuffer();
    const absl::Status status = ReadBlock(job, *file, begin, {buffer.get(), bytes});
    for (size_t i = 0; status.ok() && i < job.pieces; ++i) {
      const Piece& piece = pieces_[job.first_piece + i];
      if (!piece.into.empty()) {
        std::memcpy(piece.into.data(), buffer.get() + piece.within, piece.into.size());
      }
    }
    const std::lock_guard lock(mutex_);
    buffers_.push_back(std::move(buffer));
    return status;
  }

  absl::Status ReadBlock(const Job& job, const ReadableFile& file, uint64_t begin,
                         absl::Span<std::byte> into) {
    DT_RETURN_IF_ERROR(file.ReadAt(begin, into));
    DT_RETURN_IF_ERROR(CheckBlock(ChecksumOf(job.file), begin / kBlockBytes, into,
                                  from_.storage().DisplayName(from_.PathOf(job.file))));
    if (begin > 0 || !from_.HoldsTensors(job.file)) {
      return absl::OkStatus();
    }
    DT_ASSIGN_OR_RETURN(const bool has_whole_header, from_.CheckHeader(job.file, into));
    if (!has_whole_header) {
      const std::lock_guard lock(mutex_);
      long_headers_.push_back(job.file);
    }
    return absl::OkStatus();
  }

  Checkpoint& from_;
  const std::vector<Piece>& pieces_;
  std::vector<Job> jobs_;
  std::mutex mutex_;
  std::map<size_t, File> files_;  // By index in the manifest.
  std::vector<Buffer> buffers_;   // Those that no thread uses now.
  std::vector<size_t> long_headers_;
  std::mutex repair_mutex_;
};

absl::Status TensorReads::AddModel(const TensorSpec& stored, uint64_t offset,
                                   absl::Span<std::byte> into) {
  return Add(from_.FindModelTensor(stored), stored, offset, into);
}

absl::Status TensorReads::AddState(int rank, const TensorSpec& stored, uint64_t offset,
                                   absl::Span<std::byte> into) {
  return Add(from_.FindStateTensor(rank, stored), stored, offset, into);
}

absl::Status TensorReads::Add(const absl::StatusOr<Checkpoint::Place>& place,
                              const TensorSpec& stored, uint64_t offset,
                              absl::Span<std::byte> into) {
  DT_RETURN_IF_ERROR(place.status());
  if (offset > place->bytes || into.size() > place->bytes - offset) {
    return absl::OutOfRangeError(absl::StrCat(from_.DisplayName(), ": tensor ", stored.name,
                                              " has ", place->bytes, " bytes, not ", into.size(),
                                              " from byte ", offset));
  }
  uint64_t at = place->offset + offset;  // In the file.
  while (!into.empty()) {
    const uint64_t within = at % kBlockBytes;
    const absl::Span<std::byte> part = into.subspan(0, kBlockBytes - within);
    pieces_.push_back({from_.first_block(place->file) + at / kBlockBytes, within, part});
    at += part.size();
    into.remove_prefix(part.size());
  }
  return absl::OkStatus();
}

void TensorReads::AddOtherFiles() {
  for (size_t file = 0; file < from_.manifest().files.size(); ++file) {
    for (uint64_t block = from_.first_block(file);
         !from_.HoldsTensors(file) && block < from_.first_block(file + 1); ++block) {
      AddBlock(block);
    }
  }
}

absl::Status TensorReads::Run() {
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const Piece& a, const Piece& b) { return a.block < b.block; });
  const absl::Status status = from_.NoteDamage(BlockPass(from_, pieces_).Run());
  pieces_.clear();
  return status;
}

}  // namespace dtrain::checkpoint
