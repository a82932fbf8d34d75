// A snapshot that is copied into memory of its own while it is written, so that training goes on.
//
// All bytes that something will change form one stream, cut into segments. A segment is live until
// it is copied into a block of the staging pool, or written straight from where it lies. The copies
// never exceed the pool. The stream has three parts, of segments of their own:
//
// 1. What is gathered (BytesStay::kInGather). The thread that trains copies it while it is whole
//    (TakeGathered).
// 2. What the next step or the program may change (kUntilStep). The same thread copies it before it
//    goes on (LetStep).
// 3. What stays until the next update (kUntilUpdate). The thread that writes copies ahead as far as
//    the pool reaches. If an update comes earlier, the thread that trains copies along and waits
//    until nothing is live (LetUpdate).
//
// With a pool as large as the stream these three wait for copies alone. With a smaller one they
// also wait for the storage, so that the stream passes through the pool in waves.
//
// What lies on a device is copied by the device, behind what it has to do already, and nobody waits
// for that but the thread that writes, before it reads. When LetUpdate returns, the copies are
// queued: the caller makes its device update behind them. Those of the first two parts are in the
// order of what the thread that trains queues.
//
// The thread that writes may be held to a rate. It holds only while nobody waits for the writer, so
// it never lengthens a wait of training.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/commit/staged_layout.h"
#include "checkpoint/commit/staging_pool.h"
#include "checkpoint/state_source.h"

namespace dtrain::checkpoint {

// The bytes of a pool with which a StagedSource of the snapshot never waits for the storage.
uint64_t StagedBytes(const SpanSource& snapshot);

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
  // Copies what is gathered now: the tensor that comes next in the model. Waits for free blocks
  // where it `may_wait`, which needs a thread that writes and takes tensors in the order of the
  // model; else, and if no block could be made, ResourceExhausted. For the thread that trains, as
  // the next four.
  absl::Status TakeGathered(size_t model, bool may_wait);
  // There will be no further TakeGathered, unless OK because of an error: then the save fails.
  void EndGathers(const absl::Status& status);
  // Whether TakeGathered and LetStep may have to wait for the storage.
  bool MayWaitAtStart() const;
  // Returns when a step may change what it changes. Where it may not wait, it copies as far as the
  // pool has room.
  void LetStep(bool may_wait);
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
  enum class Stage : uint8_t { kUngathered, kLive, kCopying, kStaged, kDone };
  struct Segment {
    Stage stage = Stage::kLive;
    uint64_t ungathered = 0;                 // Bytes that TakeGathered has still to copy.
    uint64_t unread = 0;                     // Bytes that the writer has not taken yet.
    std::byte* block = nullptr;              // While it is copied or staged.
    absl::Status copied = absl::OkStatus();  // Else why a device has not copied it.
  };
  // How fast bytes are given to the writer.
  struct Rate {
    const uint64_t bytes_per_s;                       // 0: as fast as it takes them.
    std::chrono::steady_clock::time_point turn = {};  // When it allows the next bytes.
    bool is_lifted = false;
  };

  absl::Status Give(const NamedTensor& tensor, std::optional<size_t> piece, ByteSink sink);
  // Waits until the rate allows `bytes` more, or somebody waits for the writer.
  void AwaitTurn(uint64_t bytes);
  // The bytes [begin, begin + bytes.size()) of the stream, which lie in one segment and live at
  // `bytes`: there, or in the segment's block, or, from a device, in the pool's spare block.
  absl::StatusOr<absl::Span<const std::byte>> Acquire(uint64_t begin,
                                                      absl::Span<const std::byte> bytes,
                                                      bool on_device);
  absl::StatusOr<absl::Span<const std::byte>> ReadOnDevice(absl::Span<const std::byte> bytes);
  void Release(uint64_t begin, uint64_t bytes);
  // What is not gathered yet never will be. `mutex_` is held.
  void DropUngathered();
  // Gives a segment a block, or ends with the segment done. `lock` is held.
  absl::Status AwaitBlock(Segment& segment, bool may_wait, std::unique_lock<std::mutex>& lock);
  // Whether a step would change what has still to be copied or read. `mutex_` is held.
  bool HoldsStep() const;
  // Whether a segment is live and may be copied now: then `first_live_` is one.
  bool FindLive();
  // Copies one live segment. False: none is live, or no block is free. `lock` is open meanwhile.
  bool CopyOne(std::unique_lock<std::mutex>& lock);
  // A device's part of it is only queued.
  absl::Status CopyBytes(size_t segment, std::byte* block) const;
  // Copies bytes of the host's memory.
  absl::Status CopyHostBytes(absl::Span<const std::byte> bytes, size_t at, std::byte* block) const;
  void Drop(Segment& segment);

  SpanSource snapshot_;
  StagingPool& pool_;
  const StagedLayout layout_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Segment> segments_;
  size_t ungathered_;          // Segments that TakeGathered has still to fill.
  absl::Status gather_error_;  // Why some never will be.
  size_t first_live_ = 0;      // No segment before it is kLive.
  size_t live_;                // Segments in kLive or kCopying.
  // The segment that the writer reads where it lives, which an update would change.
  std::optional<size_t> writes_live_;
  bool update_waits_ = false;
  Rate rate_;
};

}  // namespace dtrain::checkpoint
