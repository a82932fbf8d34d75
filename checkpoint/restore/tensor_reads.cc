#include "checkpoint/restore/tensor_reads.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "base/threads/work_count.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/block_reader.h"
#include "checkpoint/storage/checked_file.h"

namespace dtrain::checkpoint {
namespace {

// Less is read together with what lies beside it, and copied.
constexpr uint64_t kInPlaceBytesMin = 32 << 10;
// So many blocks that follow each other are read by one thread where the system reads ahead of it.
// Ranks that want the same blocks cut them at the same places.
constexpr uint64_t kStretchBlocks = 16;

}  // namespace

// One Run. Its blocks are read by several threads.
class BlockPass {
 public:
  using Piece = TensorReads::Piece;

  // REQUIRES: `pieces` are sorted by block, and there by `within`.
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
      AddJob({.file = file, .block = pieces[i].block, .first_piece = i, .pieces = 1});
    }
  }

  absl::Status Run() {
    DT_RETURN_IF_ERROR(ForEachAtOnce(stretches_.size(), [this](uint64_t i) {
      absl::Status status;
      for (size_t job = stretches_[i].begin; job < stretches_[i].end && status.ok(); ++job) {
        status = ReadJob(jobs_[job], job);
      }
      return status;
    }));
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
    size_t opening = 0;  // Index into openings_.
  };
  // A file as some jobs have it open.
  struct Opening {
    size_t jobs = 0;  // Those that have not ended; with the last one the file is closed.
    std::shared_ptr<const ReadableFile> opened;
  };
  // Jobs [begin, end), which one thread does in their order.
  struct Stretch {
    size_t begin = 0;
    size_t end = 0;
  };
  using Buffer = std::unique_ptr<std::byte[]>;

  // A system that reads ahead does so best for one reader of an open file, which goes forwards.
  // Elsewhere a file is opened once, and any thread reads its next block.
  void AddJob(Job job) {
    const Job* const last = jobs_.empty() ? nullptr : &jobs_.back();
    const bool same_file = last != nullptr && last->file == job.file;
    const bool goes_on = reads_ahead_ && same_file && last->block + 1 == job.block &&
                         (job.block - from_.first_block(job.file)) % kStretchBlocks != 0;
    if (!goes_on) {
      stretches_.push_back({jobs_.size(), jobs_.size()});
    }
    if (!(reads_ahead_ ? goes_on : same_file)) {
      openings_.emplace_back();
    }
    job.opening = openings_.size() - 1;
    ++openings_.back().jobs;
    jobs_.push_back(job);
    stretches_.back().end = jobs_.size();
  }

  const FileChecksum& ChecksumOf(size_t file) const {
    return from_.manifest().files[file].checksum;
  }

  absl::StatusOr<std::shared_ptr<const ReadableFile>> Open(const Job& job) {
    const std::lock_guard lock(mutex_);
    Opening& kept = openings_[job.opening];
    if (kept.opened == nullptr) {
      const std::string path = from_.PathOf(job.file);
      DT_RETURN_IF_ERROR(VerifyFile(from_.storage(), path, ChecksumOf(job.file), Verify::kSizes));
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
  absl::Status FindWholeCopy(const Job& job, const absl::Status& damage) {
    if (!from_.storage().may_hold_copies() || absl::IsPermissionDenied(damage)) {
      return damage;
    }
    const std::lock_guard one_at_a_time(repair_mutex_);
    DT_RETURN_IF_ERROR(
        VerifyFile(from_.storage(), from_.PathOf(job.file), ChecksumOf(job.file), Verify::kHashes));
    const std::lock_guard lock(mutex_);
    openings_[job.opening].opened = nullptr;
    return absl::OkStatus();
  }

  absl::Status ReadJob(const Job& job, size_t index) {
    absl::Status status = ReadOnce(job, index);
    if (!status.ok()) {
      DT_RETURN_IF_ERROR(FindWholeCopy(job, status));
      status = ReadOnce(job, index);
    }
    WorkCount::Note();
    const std::lock_guard lock(mutex_);
    if (Opening& opening = openings_[job.opening]; --opening.jobs == 0) {
      opening.opened = nullptr;
    }
    return status;
  }

  absl::Status ReadOnce(const Job& job, size_t index) {
    DT_ASSIGN_OR_RETURN(const std::shared_ptr<const ReadableFile> file, Open(job));
    if (!reads_ahead_ && index + kReaders < jobs_.size() &&
        jobs_[index + kReaders].file == job.file) {
      file->ReadAhead((jobs_[index + kReaders].block - from_.first_block(job.file)) * kBlockBytes,
                      kBlockBytes);
    }
    const uint64_t begin = (job.block - from_.first_block(job.file)) * kBlockBytes;
    const uint64_t bytes = std::min(kBlockBytes, ChecksumOf(job.file).bytes - begin);
    if (file->takes_small_reads() && !PiecesOverlap(job)) {
      if (!reads_ahead_ && (index < kReaders || jobs_[index - kReaders].file != job.file)) {
        file->ReadAhead(begin, bytes);  // Else an earlier job has asked for it.
      }
      return ReadSlices(job, *file, begin, bytes);
    }
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

  // Whether bytes of the block are wanted at more than one place.
  bool PiecesOverlap(const Job& job) const {
    for (size_t i = job.first_piece + 1; i < job.first_piece + job.pieces; ++i) {
      if (pieces_[i].within < EndOf(pieces_[i - 1])) {
        return true;
      }
    }
    return false;
  }

  // Reads a block slice by slice, so that each is hashed and copied while a core's cache holds it.
  // Large pieces are read to where they belong; only what lies between them takes another way. A
  // file's header is kept until the checksum has shown that it is whole.
  absl::Status ReadSlices(const Job& job, const ReadableFile& file, uint64_t begin,
                          uint64_t bytes) {
    const bool has_header = begin == 0 && from_.HoldsTensors(job.file);
    std::vector<std::byte> header(has_header ? std::min(bytes, from_.HeaderBytes(job.file)) : 0);
    Buffer buffer = TakeBuffer();
    size_t next = job.first_piece;  // The first piece that is not done.
    const size_t end = job.first_piece + job.pieces;
    absl::Status status =
        header.empty() ? absl::OkStatus() : file.ReadAt(begin, absl::MakeSpan(header));
    uint32_t crc = Crc32c(header.data(), header.size());
    for (uint64_t at = header.size(); at < bytes && status.ok();) {
      while (next < end && EndOf(pieces_[next]) <= at) {
        ++next;
      }
      const uint64_t stop = std::min(bytes, at + kSliceBytes);
      absl::Span<std::byte> slice = PartInPlace(next, end, at);
      const bool in_place = !slice.empty();
      if (!in_place) {
        slice = {buffer.get(), StartOfLarge(next, end, at, stop) - at};
      }
      status = file.ReadAt(begin + at, slice);
      crc = Crc32c(slice.data(), slice.size(), crc);
      for (size_t i = next; !in_place && i < end && pieces_[i].within < at + slice.size(); ++i) {
        CopyPart(slice, at, pieces_[i]);
      }
      at += slice.size();
    }
    {
      const std::lock_guard lock(mutex_);
      buffers_.push_back(std::move(buffer));
    }
    DT_RETURN_IF_ERROR(status);
    DT_RETURN_IF_ERROR(CheckBlockCrc(ChecksumOf(job.file), begin / kBlockBytes, bytes, crc,
                                     from_.storage().DisplayName(from_.PathOf(job.file))));
    return has_header ? CheckHeader(job.file, header) : absl::OkStatus();
  }

  static uint64_t EndOf(const Piece& piece) { return piece.within + piece.into.size(); }

  // Where the next slice from byte `at` of a block on belongs, if it lies in piece `next` and is
  // not too small for a read of its own; else nothing.
  absl::Span<std::byte> PartInPlace(size_t next, size_t end, uint64_t at) const {
    if (next == end || pieces_[next].within > at || EndOf(pieces_[next]) - at < kInPlaceBytesMin) {
      return {};
    }
    return pieces_[next].into.subspan(at - pieces_[next].within, kSliceBytes);
  }

  // Where the first piece begins behind byte `at` that is read in place; `stop` if it is behind it.
  uint64_t StartOfLarge(size_t next, size_t end, uint64_t at, uint64_t stop) const {
    for (size_t i = next; i < end && pieces_[i].within < stop; ++i) {
      if (pieces_[i].within > at && pieces_[i].into.size() >= kInPlaceBytesMin) {
        return pieces_[i].within;
      }
    }
    return stop;
  }

  // Copies what `slice`, the bytes from `at` on, has of the piece.
  static void CopyPart(absl::Span<const std::byte> slice, uint64_t at, const Piece& piece) {
    const uint64_t from = std::max(at, piece.within);
    const uint64_t to = std::min(at + slice.size(), EndOf(piece));
    if (from < to) {
      std::memcpy(piece.into.data() + (from - piece.within), slice.data() + (from - at), to - from);
    }
  }

  absl::Status ReadBlock(const Job& job, const ReadableFile& file, uint64_t begin,
                         absl::Span<std::byte> into) {
    DT_RETURN_IF_ERROR(file.ReadAt(begin, into));
    DT_RETURN_IF_ERROR(CheckBlock(ChecksumOf(job.file), begin / kBlockBytes, into,
                                  from_.storage().DisplayName(from_.PathOf(job.file))));
    return begin > 0 || !from_.HoldsTensors(job.file) ? absl::OkStatus()
                                                      : CheckHeader(job.file, into);
  }

  // `begin`: the first bytes of a file of tensors.
  absl::Status CheckHeader(size_t file, absl::Span<const std::byte> begin) {
    DT_ASSIGN_OR_RETURN(const bool has_whole_header, from_.CheckHeader(file, begin));
    if (!has_whole_header) {
      const std::lock_guard lock(mutex_);
      long_headers_.push_back(file);
    }
    return absl::OkStatus();
  }

  Checkpoint& from_;
  const std::vector<Piece>& pieces_;
  const bool reads_ahead_ = from_.storage().reads_ahead();
  std::vector<Job> jobs_;
  std::vector<Stretch> stretches_;
  std::mutex mutex_;
  std::vector<Opening> openings_;
  std::vector<Buffer> buffers_;  // Those that no thread uses now.
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
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.block, a.within) < std::pair(b.block, b.within);
  });
  const absl::Status status = from_.NoteDamage(BlockPass(from_, pieces_).Run());
  pieces_.clear();
  return status;
}

}  // namespace dtrain::checkpoint
