// A snapshot that is copied into memory of its own while it is written, so that training goes on.
//
// Bytes that stay until the next update form one stream, cut into segments. A segment is live until
// it is copied into a block of the staging pool, or written straight from where it lies. The
// thread that writes copies ahead as far as the pool reaches. If an update comes earlier, the
// thread that trains copies along and waits until nothing is live (LetUpdate). With a pool as large
// as the stream it waits for copies alone; with a smaller one also for the storage, and the copies
// of the stream never exceed the pool. Bytes that do not stay until the next update are copied when
// the StagedSource is made, beside the pool.
//
// What lies on a device is copied by the device, behind what it has to do already, and nobody waits
// for that but the thread that writes, before it reads. When LetUpdate returns, the copies are
// queued: the caller makes its device update behind them.
//
// The thread that writes may be held to a rate. It holds only while nobody waits for the writer, so
// it never lengthens a wait of training.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/commit/staging_pool.h"
#include "checkpoint/state_source.h"

namespace dtrain::checkpoint {

// The bytes of a snapshot that stay until the next update: what a StagedSource of it may stage.
uint64_t LiveBytes(const SpanSource& snapshot);

// Thread-safe where noted; the calls of a StateSource are for the thread that writes.
class StagedSource final : public StateSource {
 public:
  // `bytes_per_s`: the most that are given to the writer, 0: as many as it takes. REQUIRES: `pool`
  // outlives this object, and no other one uses it; it is of a device if bytes lie on one; the
  // spans of `snapshot` are valid until Close.
  StagedSource(SpanSource snapshot, StagingPool& pool, uint64_t bytes_per_s = 0);
  StagedSource(const StagedSource&) = delete;
  StagedSource& operator=(const StagedSource&) = delete;
  ~StagedSource() override;

  // Copies as far as the pool has room. For the thread that writes, before it reads.
  void CopyAhead();
  // The snapshot turned out not to be whole, unless OK. For the thread that writes, before it
  // reads.
  void Fail(const absl::Status& why) { snapshot_.status.Update(why); }
  // Whether LetUpdate has anything to do. Thread-safe.
  bool HoldsUpdate();
  // Whether LetUpdate may have to wait for the storage, because the pool is too small to copy all
  // that is live. Thread-safe.
  bool MayWait();
  // Returns when nothing is live any more, or a device has all of it in its queue. For the thread
  // that trains, before it updates.
  void LetUpdate();
  // From here on the rate no longer holds. Thread-safe; for whoever waits until all is written.
  void LiftRate();
  // Nothing more is read: what is live need not be copied. For the thread that writes.
  void Close();

  absl::StatusOr<std::vector<TensorSpec>> ModelTensors() override;
  absl::Status GiveModel(size_t index, ByteSink sink) override;
  absl::StatusOr<std::vector<TensorSpec>> StateTensors() override;
  absl::Status GiveState(size_t index, ByteSink sink) override;
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelFiles() override;
  absl::StatusOr<JobState> Job() override;
  absl::StatusOr<Json> Rank() override;

 private:
  struct Piece {  // The bytes of one tensor in the stream.
    uint64_t begin = 0;
    absl::Span<const std::byte> bytes;
    bool on_device = false;
  };
  enum class Stage : uint8_t { kLive, kCopying, kStaged, kDone };
  struct Segment {
    Stage stage = Stage::kLive;
    uint64_t unread = 0;                     // Bytes that the writer has not taken yet.
    std::byte* block = nullptr;              // While it is copied or staged.
    absl::Status copied = absl::OkStatus();  // Else why a device has not copied it.
  };

  void AddTensor(NamedTensor& tensor, std::vector<int64_t>& piece_of);
  absl::Status Give(const NamedTensor& tensor, int64_t piece, ByteSink sink);
  // Waits until the rate allows `bytes` more, or somebody waits for the writer.
  void AwaitTurn(uint64_t bytes);
  // The bytes [begin, begin + bytes.size()) of the stream, which lie in one segment and live at
  // `bytes`: there, or in the segment's block, or, from a device, in the pool's spare block.
  absl::StatusOr<absl::Span<const std::byte>> Acquire(uint64_t begin,
                                                      absl::Span<const std::byte> bytes,
                                                      bool on_device);
  absl::StatusOr<absl::Span<const std::byte>> ReadOnDevice(absl::Span<const std::byte> bytes);
  void Release(uint64_t begin, uint64_t bytes);
  // Whether a segment is live: then `first_live_` is one.
  bool FindLive();
  // Copies one live segment. False: none is live, or no block is free. `lock` is open meanwhile.
  bool CopyOne(std::unique_lock<std::mutex>& lock);
  // A device's part of it is only queued.
  absl::Status CopyBytes(size_t segment, std::byte* block) const;
  void Drop(Segment& segment);

  SpanSource snapshot_;
  StagingPool& pool_;
  const uint64_t bytes_per_s_;
  std::vector<std::vector<std::byte>> copies_;  // The tensors that may change before an update.
  std::vector<int64_t> model_pieces_;           // By tensor; -1: it is not in the stream.
  std::vector<int64_t> state_pieces_;
  std::vector<Piece> pieces_;  // In the stream's order.
  uint64_t stream_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Segment> segments_;
  size_t first_live_ = 0;     // No segment before it is kLive.
  size_t live_ = 0;           // Segments in kLive or kCopying.
  bool writes_live_ = false;  // The writer reads bytes that an update would change.
  bool update_waits_ = false;
  bool rate_lifted_ = false;
  std::chrono::steady_clock::time_point turn_;  // When the rate allows the next bytes.
};

}  // namespace dtrain::checkpoint
