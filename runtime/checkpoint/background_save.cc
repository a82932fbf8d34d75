#include "runtime/checkpoint/background_save.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/checkpoint/group_exchange.h"
#include "runtime/checkpoint/staging_memory.h"
#include "runtime/job/job_state.h"
#include "runtime/model/phase.h"

namespace dtrain {
namespace {

// A rank's save tells the others this in each step.
enum SaveVote : uint32_t {
  kUnderWay = 1,       // It has not ended.
  kWantsExchange = 2,  // There is no group of saves that is known to be whole.
  kMayWait = 4,        // The next update may have to wait for this rank's storage.
};

// Whether each bit of a number is set on any rank.
template <size_t N>
absl::Status OnAnyRank(comm::Group& group, std::array<int32_t, N>& votes, const char* name) {
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      group.AllReduce({votes.data(), sizeof(votes), DType::kInt32, {}},
                                      comm::ReduceOp::kMax, {.name = name, .caller_waits = true}));
  return work.Wait();
}

// How long a rank that ends waits for a peer's part of a save that is under way.
constexpr std::chrono::seconds kEndWait{60};

}  // namespace

absl::StatusOr<bool> OnAnyRank(comm::Group& group, bool mine, const char* name) {
  std::array<int32_t, 1> votes = {mine ? 1 : 0};
  DT_RETURN_IF_ERROR(OnAnyRank(group, votes, name));
  return votes[0] != 0;
}

BackgroundSave::BackgroundSave(Job& job)
    : job_(job), worker_({.name = "dtrain-save", .queue_capacity = 1, .low_priority = true}) {}

BackgroundSave::~BackgroundSave() {
  if (pool_ != nullptr) {
    pool_->EndFilling();
  }
  WaitToEnd();
}

uint32_t BackgroundSave::Vote() {
  const std::lock_guard lock(mutex_);
  const bool lives = running() && !report_.has_value();
  const bool is_suspect = suspect_ || (report_.has_value() && !report_->durable());
  return (lives ? kUnderWay : 0U) | (is_suspect || exchange_ == nullptr ? kWantsExchange : 0U) |
         (lives && source_->MayWait() ? kMayWait : 0U);
}

void BackgroundSave::TakeVotes(uint32_t all) {
  votes_ = all;
  leaves_together_ = (all & kMayWait) != 0 && job_.world_size() > 1;
}

absl::StatusOr<bool> BackgroundSave::Prepare() {
  if (!votes_.has_value()) {  // All ranks have made the same calls, so that all come here.
    // One that has ended since the last Take still has its report to give.
    const uint32_t mine = Vote() | (running() ? kUnderWay : 0U);
    std::array<int32_t, 2> votes = {(mine & kUnderWay) != 0 ? 1 : 0,
                                    (mine & kWantsExchange) != 0 ? 1 : 0};
    DT_RETURN_IF_ERROR(OnAnyRank(job_.group(), votes, "a save is under way"));
    votes_ = (votes[0] != 0 ? kUnderWay : 0U) | (votes[1] != 0 ? kWantsExchange : 0U);
  }
  const uint32_t all = *std::exchange(votes_, std::nullopt);
  if ((all & kUnderWay) != 0) {
    return false;
  }
  if ((all & kWantsExchange) != 0) {
    DT_RETURN_IF_ERROR(MakeExchange());
  }
  return true;
}

EngineSnapshot BackgroundSave::NewSnapshot() {
  const Device& device = *job_.state().device;
  EngineSnapshot snapshot;
  if (gpus_copy_) {
    snapshot.gpu = device.tensors();
  }
  snapshot.is_staged = device.is_host() || snapshot.gpu.has_value();
  return snapshot;
}

absl::Status BackgroundSave::MakeExchange() {
  suspect_ = false;
  in_waves_.reset();  // The last save may have failed because less memory was there than expected.
  gpus_copy_ = CopiesFromDevice();
  if (job_.world_size() == 1) {
    exchange_ = std::make_unique<checkpoint::AloneExchange>();
    return absl::OkStatus();
  }
  exchange_.reset();
  DT_ASSIGN_OR_RETURN(
      group_, comm::SplitHostGroup(job_.group(), job_.state().store, /*color=*/0, job_.rank()));
  group_->SetBeside();
  exchange_ = std::make_unique<GroupExchange>(*group_);
  if (!job_.state().device->is_host()) {  // The ranks gather weights in the same way.
    DT_ASSIGN_OR_RETURN(const bool lacking,
                        OnAnyRank(job_.group(), !gpus_copy_, "a GPU copies for no save"));
    gpus_copy_ = !lacking;
  }
  return absl::OkStatus();
}

void BackgroundSave::Guard(EngineState& engine) {
  engine.hooks.before_update = [weak = weak_from_this()](bool together) {
    const auto save = weak.lock();  // The engine may outlive it.
    return save != nullptr ? save->LetUpdate(together) : absl::OkStatus();
  };
  engine.hooks.save_vote = [weak = weak_from_this()] {
    const auto save = weak.lock();
    return save != nullptr ? save->Vote() : 0U;
  };
  engine.hooks.take_save_votes = [weak = weak_from_this()](uint32_t all) {
    if (const auto save = weak.lock(); save != nullptr) {
      save->TakeVotes(all);
    }
  };
}

bool BackgroundSave::CopiesFromDevice() {
  const Device& device = *job_.state().device;
  if (device.is_host() || copies_ != nullptr) {
    return copies_ != nullptr;
  }
  auto copies = DeviceCopies::Create(device, absl::Seconds(job_.config().comm_timeout_seconds()));
  if (!copies.ok()) {
    DT_LOG(Warning) << "saves wait for copies from the GPU: " << copies.status().message();
    return false;
  }
  copies_ = *std::move(copies);
  return true;
}

void BackgroundSave::FitPool(uint64_t copied) {
  const bool fits = pool_ != nullptr && pool_->device() == copies_.get();
  if (fits && pool_->bytes_max() >= copied) {  // Free memory is not read each time.
    return;
  }
  const uint64_t spare = copies_ == nullptr ? 0 : checkpoint::kSegmentBytes;  // StagingPool::Spare
  const uint64_t bytes = std::max(StagingBytes(job_, copied + spare), 2 * spare) - spare;
  // A part of a block makes no larger pool.
  if (!fits || pool_->bytes_max() + checkpoint::kSegmentBytes <= bytes) {
    if (pool_ != nullptr) {
      pool_->EndFilling();
    }
    pool_ = std::make_shared<checkpoint::StagingPool>(bytes, copies_);
  }
}

void BackgroundSave::Expect(uint64_t bytes) {
  if (running() || bytes == 0) {
    return;
  }
  CopiesFromDevice();
  // Whole tensors are shared out, so that a rank may copy more, and each part of the stream begins
  // with a block of its own; blocks are made as they are needed.
  FitPool(2 * bytes + checkpoint::kStreamParts * checkpoint::kSegmentBytes);
  worker_.Submit([pool = pool_, bytes] { pool->Fill(bytes); });
}

void BackgroundSave::Start(int64_t step, checkpoint::Writer& writer, EngineSnapshot snapshot) {
  DT_CHECK(!running() && exchange_ != nullptr) << "Prepare has not returned true";
  if (pool_ != nullptr) {
    pool_->EndFilling();
  }
  FitPool(checkpoint::StagedBytes(snapshot.source));
  on_device_ = snapshot.gpu.has_value();
  if (on_device_) {
    snapshot.source.status.Update(copies_->Begin());
  }
  const std::vector<checkpoint::Gather> gathers = std::move(snapshot.source.gathers);
  source_ = std::make_shared<checkpoint::StagedSource>(
      std::move(snapshot.source), *pool_,
      static_cast<uint64_t>(job_.config().checkpoint_write_rate()));
  if (!job_.state().device->is_host()) {
    keep_.swap(snapshot.keep);
  }
  CopyAtStart(gathers, [this, step, &writer, source = source_, keep = std::move(snapshot.keep),
                        copies = on_device_ ? copies_.get() : nullptr] {
    Run(step, writer, *source, copies);
  });
}

void BackgroundSave::CopyAtStart(absl::Span<const checkpoint::Gather> gathers,
                                 std::function<void()> write) {
  absl::Status agreed;
  if (!in_waves_.has_value()) {  // What is copied here and the memory for it are always the same.
    const auto any = OnAnyRank(job_.group(), source_->MayWaitAtStart(), "a save starts in waves");
    agreed = any.status();
    in_waves_ = any.ok() && *any;
  }
  const bool in_waves = *in_waves_;
  if (in_waves) {  // The ranks' saves wait for each other: all are under way, or none.
    worker_.Submit(write);
  }
  absl::Status gathered = absl::InternalError("the gather of a weight met an exception");
  {
    const absl::Cleanup end = [&] {  // Also after an exception, so that nobody waits for ever.
      source_->EndGathers(gathered);
      if (!in_waves) {
        source_->LetStep(/*may_wait=*/false);
        worker_.Submit(std::move(write));
      }
    };
    gathered = agreed.ok() ? TakeGathers(gathers, in_waves) : agreed;
  }
  source_->LetStep(/*may_wait=*/true);
  if (in_waves) {              // Also where this rank alone has no memory for its copies.
    Together().IgnoreError();  // A group that is broken fails the next step.
  }
}

absl::Status BackgroundSave::TakeGathers(absl::Span<const checkpoint::Gather> gathers,
                                         bool in_waves) {
  absl::Status taken;  // One rank's alone: the others still need it for their gathers.
  for (const checkpoint::Gather& gather : gathers) {
    DT_RETURN_IF_ERROR(gather.run([&] {
      if (gather.model >= 0 && taken.ok()) {
        taken = source_->TakeGathered(static_cast<size_t>(gather.model), in_waves);
      }
    }));
    if (in_waves) {
      DT_RETURN_IF_ERROR(Together());
    }
  }
  return taken;
}

void BackgroundSave::Run(int64_t step, checkpoint::Writer& writer, checkpoint::StagedSource& source,
                         DeviceCopies* copies) {
  checkpoint::SaveReport report;
  report.id.step = step;
  report.status = absl::InternalError("the thread that saves met an exception");
  // Also after an exception, so that nobody waits for this save for ever.
  const absl::Cleanup end = [&] {
    source.Close();
    {
      const std::lock_guard lock(mutex_);
      report_ = std::move(report);
    }
    ended_.notify_all();
  };
  source.CopyAhead();
  if (copies != nullptr) {
    source.Fail(copies->AwaitBegin());
  }
  report = writer.Save(step, source, *exchange_);
}

absl::Status BackgroundSave::LetUpdate(bool together) {
  const bool leaves_together = together && std::exchange(leaves_together_, false);
  const bool is_held = running() && source_->HoldsUpdate();
  if (is_held || leaves_together) {
    DT_RETURN_IF_ERROR(AwaitWriter(is_held, leaves_together));
  }
  if (std::exchange(on_device_, false)) {
    copies_->HoldUpdate();
  }
  return absl::OkStatus();
}

absl::Status BackgroundSave::AwaitWriter(bool is_held, bool leaves_together) {
  const ScopedPhase phase("dtrain::checkpoint", blocked_s_);
  // The agent must not take the wait for a copy, or for a slow peer of the save, for a hang.
  const InnerPhase save(job_.state().heartbeat.get(), "save");
  if (is_held) {
    source_->LetUpdate();
  }
  return leaves_together ? Together() : absl::OkStatus();
}

absl::Status BackgroundSave::Together() {
  return job_.group().Barrier(Deadline::After(absl::Seconds(job_.config().comm_timeout_seconds())));
}

checkpoint::SaveReport BackgroundSave::SaveAndWait(
    int64_t step, checkpoint::Writer& writer,
    absl::FunctionRef<absl::StatusOr<EngineSnapshot>(EngineSnapshot)> take) {
  votes_.reset();  // Those of the last step are older than the end of the save before.
  absl::StatusOr<bool> ready = Prepare();
  if (ready.ok() && !*ready) {
    ready = absl::InternalError("the save before is still under way on another rank");
  }
  absl::StatusOr<EngineSnapshot> snapshot = ready.ok() ? take(NewSnapshot()) : ready.status();
  if (!snapshot.ok()) {
    return {.status = snapshot.status(), .id = {.step = step}};
  }
  Start(step, writer, *std::move(snapshot));
  return *Wait();
}

std::optional<checkpoint::SaveReport> BackgroundSave::Take() {
  const std::lock_guard lock(mutex_);
  return report_.has_value() ? std::optional(End()) : std::nullopt;
}

std::optional<checkpoint::SaveReport> BackgroundSave::Wait() {
  if (!running()) {
    return std::nullopt;
  }
  source_->LiftRate();
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return report_.has_value(); });
  return End();
}

std::optional<checkpoint::SaveReport> BackgroundSave::WaitToEnd() {
  if (running() && group_ != nullptr) {
    source_->LiftRate();
    std::unique_lock lock(mutex_);
    if (!ended_.wait_for(lock, kEndWait, [this] { return report_.has_value(); })) {
      group_->Abort("this rank ends");
    }
  }
  return Wait();
}

checkpoint::SaveReport BackgroundSave::End() {
  checkpoint::SaveReport report = *std::exchange(report_, std::nullopt);
  source_.reset();
  keep_.clear();
  // A disk that failed leaves the group whole; a new one costs little.
  suspect_ = !report.durable();
  return report;
}

}  // namespace dtrain
