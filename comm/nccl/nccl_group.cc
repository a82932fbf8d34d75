#include "comm/nccl/nccl_group.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/nccl/bounded_call.h"
#include "comm/nccl/nccl_abort.h"
#include "comm/nccl/nccl_call.h"
#include "comm/nccl/nccl_status.h"
#include "comm/net/store.h"

namespace dtrain::comm {
namespace {

constexpr absl::Duration kDestructorBound = absl::Seconds(2);

std::string StorePrefix(const GroupOptions& options) {
  return absl::StrCat("nccl/", options.name, "/", options.epoch);
}

std::string Label(const GroupOptions& options) {
  return absl::StrFormat("NCCL group %s (epoch %d, rank %d of %d)", options.name, options.epoch,
                         options.rank, options.size);
}

std::string WhoAmI() {
  utsname host{};
  uname(&host);
  return absl::StrFormat("host %s, pid %d", host.nodename, getpid());
}

std::shared_ptr<FlightRecorder> RecorderOf(const GroupOptions& options) {
  return FlightRecorder::Create({.name = options.name,
                                 .rank = options.rank,
                                 .size = options.size,
                                 .world_ranks = options.world_ranks,
                                 .epoch = options.epoch,
                                 .transport = "nccl"});
}

// How many ids the group needs, of which each serves ranks_per_id ranks.
int IdCount(NcclApi& nccl, const NcclGroupOptions& options) {
  const int per_id = std::max(1, options.ranks_per_id);
  return nccl.HasScalableInit() ? (options.group.size + per_id - 1) / per_id : 1;
}

// Ranks that are spread evenly over the job make the ids. Every rank tells that it came and reads
// all ids.
absl::StatusOr<std::vector<NcclUniqueId>> MeetForIds(NcclApi& nccl, Store* store,
                                                     const NcclGroupOptions& options,
                                                     Deadline deadline) {
  const GroupOptions& group = options.group;
  const std::string prefix = StorePrefix(group);
  std::vector<NcclUniqueId> ids(static_cast<size_t>(IdCount(nccl, options)));
  const auto key = [&](size_t i) { return absl::StrCat(prefix, "/id/", i); };
  for (size_t i = 0; i < ids.size(); ++i) {
    if (group.rank == static_cast<int>(i * static_cast<size_t>(group.size) / ids.size())) {
      DT_RETURN_IF_ERROR(NcclStatus(nccl, nccl.GetUniqueId(&ids[i]), nullptr, "ncclGetUniqueId"));
      if (store != nullptr) {
        DT_RETURN_IF_ERROR(
            store->Set(key(i), absl::string_view(ids[i].data(), ids[i].size()), deadline));
      }
    }
  }
  if (store == nullptr) {
    return ids;
  }
  DT_RETURN_IF_ERROR(store->Set(RankKey(absl::StrCat(prefix, "/came"), group.rank), "", deadline));
  for (size_t i = 0; i < ids.size(); ++i) {
    DT_ASSIGN_OR_RETURN(const std::string bytes, store->Get(key(i), deadline));
    if (bytes.size() != ids[i].size()) {
      return absl::InternalError(absl::StrCat("the store's ", key(i), " holds ", bytes.size(),
                                              " bytes; expected ", ids[i].size()));
    }
    std::memcpy(ids[i].data(), bytes.data(), bytes.size());
  }
  return ids;
}

// The `status` of an initialisation. If its time was over, the ranks that did not come are named.
absl::Status ExplainInit(const absl::Status& status, Store* store, const GroupOptions& options) {
  if (status.code() != absl::StatusCode::kDeadlineExceeded || store == nullptr) {
    return status;
  }
  const auto missing = MissingRanks(*store, absl::StrCat(StorePrefix(options), "/came"),
                                    options.size, Deadline::After(kStoreBound));
  std::string known = "who came is unknown";
  if (missing.ok()) {
    known = missing->empty() ? "every rank came: NCCL's own bootstrap is stuck (check "
                               "NCCL_SOCKET_IFNAME and firewalls)"
                             : absl::StrCat("did not come: rank ", absl::StrJoin(*missing, ", "));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      status.message(), " (after ", absl::FormatDuration(options.connect_timeout), "); ", known));
}

// Deregisters when it is dropped. The communicator may be gone by then.
class NcclRegistration final : public Registration {
 public:
  NcclRegistration(std::shared_ptr<NcclCommunicator> communicator, void* handle)
      : communicator_(std::move(communicator)), handle_(handle) {}
  ~NcclRegistration() override { communicator_->Deregister(handle_); }

 private:
  const std::shared_ptr<NcclCommunicator> communicator_;
  void* const handle_;
};

}  // namespace

NcclGroup::NcclGroup(const NcclSeams& seams, Store* store, NcclGroupOptions options)
    : seams_(seams),
      store_(store),
      options_(std::move(options)),
      label_(Label(options_.group)),
      recorder_(RecorderOf(options_.group)) {}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Create(const NcclSeams& seams, Store* store,
                                                             const NcclGroupOptions& options) {
  const GroupOptions& group = options.group;
  if (group.size < 1 || group.rank < 0 || group.rank >= group.size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("NCCL group: rank %d of %d", group.rank, group.size));
  }
  if (store == nullptr && group.size > 1) {
    return absl::InvalidArgumentError("NCCL group of more than one rank needs a store");
  }
  const Deadline deadline = Deadline::After(group.connect_timeout);
  std::unique_ptr<NcclGroup> made(new NcclGroup(seams, store, options));
  DT_RETURN_IF_ERROR(made->ChooseDevice());
  const auto ids = MeetForIds(*seams.nccl, store, options, deadline);
  if (!ids.ok()) {
    return ExplainInit(Annotate(ids.status(), made->label_), store, group);
  }
  auto communicator =
      NcclCommunicator::Create(seams.nccl, *ids, group.rank, group.size, group.name, deadline);
  if (!communicator.ok()) {
    return ExplainInit(Annotate(communicator.status(), made->label_), store, group);
  }
  DT_RETURN_IF_ERROR(made->Begin(*std::move(communicator), std::make_shared<NcclFamily>()));
  return made;
}

absl::Status NcclGroup::ChooseDevice() const {
  return CudaStatus(*seams_.cuda, seams_.cuda->SetDevice(options_.device),
                    absl::StrCat("cudaSetDevice(", options_.device, ")"));
}

absl::Status NcclGroup::Begin(std::shared_ptr<NcclCommunicator> communicator,
                              std::shared_ptr<NcclFamily> family) {
  communicator_ = std::move(communicator);
  family_ = std::move(family);
  CudaApi& cuda = *seams_.cuda;
  DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.StreamCreate(&stream_, true), "cudaStreamCreate"));
  DT_RETURN_IF_ERROR(
      CudaStatus(cuda, cuda.EventCreate(&ordering_event_, false), "cudaEventCreate"));
  DT_ASSIGN_OR_RETURN(scratch_,
                      NcclScratch::Create(&cuda, options_.pending_max, options_.group.size,
                                          seams_.kernels.scratch_bytes));
  NcclWatchdogOptions watchdog;
  watchdog.cuda = &cuda;
  watchdog.communicator = communicator_;
  watchdog.family = family_;
  watchdog.abort_bound = options_.abort_bound;
  watchdog.device = options_.device;
  watchdog.group = label_;
  watchdog.recorder = recorder_;
  watchdog.timeouts = {.most = options_.group.timeout,
                       .least = LeastTimeout(options_.group.timeout_min, {.gpu = true})};
  NcclArrivals arrivals(store_, StorePrefix(options_.group), rank(), size());
  DT_RETURN_IF_ERROR(arrivals.Introduce(WhoAmI()));
  watchdog_ = std::make_unique<NcclWatchdog>(watchdog, std::move(arrivals));
  return absl::OkStatus();
}

NcclGroup::~NcclGroup() {
  const absl::Status closed = Close(Deadline::After(kDestructorBound));
  if (!closed.ok()) {
    DT_LOG(Warning) << label_ << ": closed by abort: " << closed.message();
  }
  watchdog_.reset();
  if (communicator_ != nullptr) {
    AbortOrEndProcess(communicator_, options_.abort_bound, label_);
  }
  scratch_.reset();
  if (ordering_event_ != nullptr) {
    (void)seams_.cuda->EventDestroy(ordering_event_);
  }
  if (stream_ != nullptr) {
    (void)seams_.cuda->StreamDestroy(stream_);
  }
}

absl::Status NcclGroup::Close(Deadline deadline) {
  if (watchdog_ == nullptr) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(watchdog_->Drain(0, deadline));
  // Deregistering and destroying wait for the processes of other ranks, without a limit.
  const auto closed = std::make_shared<absl::Status>();
  const bool returned = ReturnsWithin(deadline.Remaining() + kDestructorBound,
                                      [communicator = communicator_, closed, deadline] {
                                        *closed = communicator->Close(deadline);
                                      });
  if (returned && closed->ok()) {
    return absl::OkStatus();
  }
  AbortOrEndProcess(communicator_, options_.abort_bound, label_);
  return returned ? *closed
                  : absl::DeadlineExceededError(
                        absl::StrCat(label_, ": NCCL did not close in time and was aborted"));
}

absl::StatusOr<std::unique_ptr<Registration>> NcclGroup::Register(
    std::shared_ptr<SymmetricBuffer> /*buffer*/) {
  return absl::InvalidArgumentError(
      absl::StrCat(label_,
                   ": a SymmetricBuffer is host memory; register device memory with "
                   "RegisterDevice, or use a host group"));
}

absl::StatusOr<std::unique_ptr<Registration>> NcclGroup::RegisterDevice(void* data, size_t bytes) {
  DT_RETURN_IF_ERROR(ChooseDevice());
  DT_ASSIGN_OR_RETURN(
      void* const handle,
      communicator_->Register(data, bytes, Deadline::After(options_.group.timeout)));
  return std::make_unique<NcclRegistration>(communicator_, handle);
}

std::string NcclGroup::FlightRecord() const { return DumpJson(FlightRecords(*recorder_)); }

absl::Status NcclGroup::FollowComputeStream(CudaEvent* after) {
  CudaApi& cuda = *seams_.cuda;
  if (after == nullptr) {
    DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.EventRecord(ordering_event_, options_.compute_stream),
                                  "cudaEventRecord on the compute stream"));
    after = ordering_event_;
  }
  return CudaStatus(cuda, cuda.StreamWaitEvent(stream_, after), "cudaStreamWaitEvent");
}

absl::Status NcclGroup::Then(std::function<absl::Status(CudaStream* stream)> launch) {
  std::lock_guard lock(start_mutex_);
  DT_RETURN_IF_ERROR(watchdog_->health());
  DT_RETURN_IF_ERROR(ChooseDevice());
  return launch(stream_);
}

absl::Status NcclGroup::JoinStream(CudaStream* stream) {
  std::lock_guard lock(start_mutex_);
  CudaApi& cuda = *seams_.cuda;
  DT_RETURN_IF_ERROR(ChooseDevice());  // A null stream belongs to the thread's device.
  DT_RETURN_IF_ERROR(
      CudaStatus(cuda, cuda.EventRecord(ordering_event_, stream_), "cudaEventRecord"));
  return CudaStatus(cuda, cuda.StreamWaitEvent(stream, ordering_event_), "cudaStreamWaitEvent");
}

absl::Status NcclGroup::Await(CudaEvent* event, CudaStream* stream) {
  // An event of a broken group may be recorded although its data never arrive.
  DT_RETURN_IF_ERROR(watchdog_->health());
  DT_RETURN_IF_ERROR(ChooseDevice());
  return CudaStatus(*seams_.cuda, seams_.cuda->StreamWaitEvent(stream, event),
                    "cudaStreamWaitEvent");
}

absl::StatusOr<Work> NcclGroup::Start(const Call& call, const CollectiveOptions& given) {
  std::lock_guard lock(start_mutex_);
  NcclPending pending = WithLimits(given);
  DT_RETURN_IF_ERROR(Admit(1, pending.deadline));
  DT_RETURN_IF_ERROR(Prepare(call, 0, &pending));
  const absl::Status queued = Queue(call, given.after, pending.deadline, &pending);
  if (!queued.ok()) {
    return Fail(call.what, queued, absl::MakeConstSpan(&pending, 1));
  }
  Work work(pending.work);
  Watch(std::move(pending));
  return work;
}

NcclPending NcclGroup::WithLimits(const CollectiveOptions& given) const {
  NcclPending pending;
  pending.timeout = std::min(options_.group.timeout, given.deadline.Remaining());
  pending.deadline = Deadline::After(pending.timeout);
  pending.learns = given.deadline.infinite();
  return pending;
}

absl::Status NcclGroup::Admit(size_t calls, Deadline deadline) {
  DT_RETURN_IF_ERROR(watchdog_->health());
  DT_RETURN_IF_ERROR(ChooseDevice());  // Events that are made next belong to this device.
  return watchdog_->Drain(options_.pending_max - std::min(calls, options_.pending_max), deadline);
}

absl::Status NcclGroup::Prepare(const Call& call, uint64_t before, NcclPending* pending) {
  DT_RETURN_IF_ERROR(watchdog_->TakeEvents(&pending->start, &pending->end));
  pending->work = std::make_shared<NcclWork>(watchdog_->waiters());
  FlightCall flight = call.flight;
  flight.peer = call.peer;
  flight.header.step = step_.load(std::memory_order_relaxed);
  flight.header.sequence = call.peer < 0 ? collectives_ + before + 1 : 0;
  pending->ticket = recorder_->Queued(flight);
  pending->header = flight.header;
  pending->what = call.what;
  pending->peer = call.peer;
  return absl::OkStatus();
}

// A part of the collectives may be on the stream, so that the ranks no longer agree on the order:
// the group has to end.
absl::Status NcclGroup::Fail(absl::string_view what, const absl::Status& queued,
                             absl::Span<const NcclPending> all) {
  const absl::Status health = watchdog_->health();
  for (const NcclPending& pending : all) {
    watchdog_->ReturnEvents(pending.start, pending.end);
    recorder_->Ended(pending.ticket, queued);
  }
  watchdog_->Abort(absl::StrCat(what, ": ", queued.message()));
  return health.ok() ? Annotate(queued, absl::StrCat(label_, ": ", what)) : health;
}

void NcclGroup::Watch(NcclPending pending) {
  recorder_->Started(pending.ticket, pending.timeout);  // A host knows only that it is queued.
  pending.sequence = pending.peer < 0 ? collectives_++ : 0;
  ++sequence_;
  watchdog_->Watch(std::move(pending));
}

absl::Status NcclGroup::Queue(const Call& call, CudaEvent* after, Deadline deadline,
                              NcclPending* pending) {
  CudaApi& cuda = *seams_.cuda;
  DT_RETURN_IF_ERROR(FollowComputeStream(after));
  DT_RETURN_IF_ERROR(
      CudaStatus(cuda, cuda.EventRecord(pending->start, stream_), "cudaEventRecord"));
  DT_RETURN_IF_ERROR(call.queue(deadline));
  if (call.sum_of_squares != nullptr) {
    DT_RETURN_IF_ERROR(QueueSum(call, deadline, pending));
  }
  return CudaStatus(cuda, cuda.EventRecord(pending->end, stream_), "cudaEventRecord");
}

absl::Status NcclGroup::QueueSum(const Call& call, Deadline deadline, NcclPending* pending) {
  CudaApi& cuda = *seams_.cuda;
  const NcclKernels& kernels = seams_.kernels;
  double* const sum = scratch_->device_sum(sequence_);
  DT_RETURN_IF_ERROR(
      CudaStatus(cuda,
                 kernels.sum_of_squares(call.result.data, call.result.count(), call.result.dtype,
                                        sum, scratch_->kernel_scratch(), stream_),
                 "sum of squares"));
  if (call.result_is_part) {
    double* const all = scratch_->device_rank_sums(sequence_);
    DT_RETURN_IF_ERROR(communicator_->Call(
        "ncclAllGather of the ranks' sums",
        [&](NcclApi& nccl, NcclComm* comm) {
          return nccl.AllGather(sum, all, 1, NcclDType::kFloat64, comm, stream_);
        },
        deadline));
    DT_RETURN_IF_ERROR(
        CudaStatus(cuda, kernels.sum_in_order(all, size(), sum, stream_), "sum over ranks"));
  }
  double* const landed = scratch_->pinned_sum(sequence_);
  pending->sum_from = landed;
  pending->sum_to = call.sum_of_squares;
  return CudaStatus(cuda, cuda.CopyAsync(landed, sum, sizeof(double), stream_), "copy of the sum");
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Split(int color, int key,
                                                            const std::string& name) {
  const Deadline deadline = Deadline::After(options_.group.connect_timeout);
  DT_RETURN_IF_ERROR(watchdog_->health());
  DT_RETURN_IF_ERROR(ChooseDevice());
  auto communicator = communicator_->Split(color, key, deadline);
  if (!communicator.ok()) {
    watchdog_->Abort(
        absl::StrCat("splitting off \"", name, "\": ", communicator.status().message()));
    return Annotate(communicator.status(), label_);
  }
  // Each split has its own name in the store, which is the same on all ranks.
  const uint64_t number = splits_++;
  if (*communicator == nullptr) {
    return nullptr;
  }
  NcclGroupOptions options = options_;
  options.group.rank = (*communicator)->rank();
  options.group.size = (*communicator)->ranks();
  options.group.name = absl::StrCat(options_.group.name, "/", name, number, ".", color);
  std::unique_ptr<NcclGroup> made(new NcclGroup(seams_, store_, options));
  DT_RETURN_IF_ERROR(made->Begin(*std::move(communicator), family_));
  return made;
}

}  // namespace dtrain::comm
