#include "comm/host_group.h"

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/status.h"
#include "comm/collectives/reduce.h"

namespace dtrain::comm {
namespace {

CallHeader Header(CallKind kind, const Buffer& largest, ReduceOp op = ReduceOp::kSum,
                  int root = -1) {
  CallHeader header;
  header.kind = kind;
  header.bytes = largest.bytes;
  header.dtype = largest.dtype;
  header.op = op;
  header.root = root;
  return header;
}

// `backend` is null for a group of one rank, in which nothing can hang.
CallQueueOptions QueueOptions(const GroupOptions& options, Backend* backend,
                              std::string transport) {
  CallQueueOptions queue;
  if (backend != nullptr) {
    queue.poll_peers = [backend] { return backend->PollPeers(); };
    queue.give_up = [backend](const absl::Status& reason) { backend->Break(reason); };
  }
  CallCarriers carriers;
  if (absl::EndsWith(transport, "rdma")) {
    carriers.rdma = RdmaRetries{options.rdma.timeout, options.rdma.retries};
  }
  queue.timeouts = {.most = options.timeout, .least = LeastTimeout(options.timeout_min, carriers)};
  queue.recorder = FlightRecorder::Create({.name = options.name,
                                           .rank = options.rank,
                                           .size = options.size,
                                           .world_ranks = options.world_ranks,
                                           .epoch = options.epoch,
                                           .transport = std::move(transport)});
  return queue;
}

bool Overlap(const Buffer& a, const Buffer& b) {
  const char* const x = static_cast<const char*>(a.data);
  const char* const y = static_cast<const char*>(b.data);
  return x < y + b.bytes && y < x + a.bytes;
}

}  // namespace

// The registration that Register's caller holds: dropping it ends the registration.
class HostGroup::Handle final : public Registration {
 public:
  explicit Handle(std::shared_ptr<Registration> inner) : inner_(std::move(inner)) {}

 private:
  const std::shared_ptr<Registration> inner_;
};

HostGroup::HostGroup(const GroupOptions& options, std::unique_ptr<Backend> backend)
    : options_(options),
      backend_(std::move(backend)),
      queue_(
          std::make_shared<CallQueue>(QueueOptions(options, backend_.get(), transport()),
                                      [this](absl::Span<const Call> calls, absl::Duration timeout) {
                                        return Run(calls, timeout);
                                      })) {
  if (backend_ != nullptr) {
    backend_->SetFollowing([this] { return queue_->NextCollective(); });
  }
}

HostGroup::~HostGroup() {
  queue_->Stop(absl::AbortedError(absl::StrFormat("group \"%s\" was destroyed", options_.name)));
}

std::string HostGroup::transport() const {
  return backend_ == nullptr ? "alone" : backend_->transport();
}

uint64_t HostGroup::sequence() const {
  const std::lock_guard lock(order_mutex_);
  return sequence_;
}

absl::Status HostGroup::CheckBuffer(const Buffer& buffer, absl::string_view what) const {
  if (buffer.device.kind != DeviceKind::kHost) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is on a CUDA device; group \"%s\" takes host memory: use an NCCL group",
                        what, options_.name));
  }
  if (buffer.bytes % DTypeBytes(buffer.dtype) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %d bytes, not a multiple of the %d bytes of %s", what, buffer.bytes,
                        DTypeBytes(buffer.dtype), DTypeName(buffer.dtype)));
  }
  if (buffer.data == nullptr && buffer.bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %d bytes but no address", what, buffer.bytes));
  }
  return absl::OkStatus();
}

absl::Status HostGroup::CheckPeer(int peer, absl::string_view what) const {
  if (peer < 0 || peer >= size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is rank %d; group \"%s\" has ranks 0 to %d", what, peer, options_.name, size() - 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<Work> HostGroup::AllReduce(Buffer buffer, ReduceOp op,
                                          const CollectiveOptions& options) {
  DT_RETURN_IF_ERROR(CheckBuffer(buffer, "the buffer of an all-reduce"));
  DT_RETURN_IF_ERROR(
      CheckReducible(buffer.dtype, op, options.wire, options.sum_of_squares != nullptr));
  return Start(
      {.header = Header(CallKind::kAllReduce, buffer, op), .input = buffer, .output = buffer},
      options);
}

absl::StatusOr<Work> HostGroup::ReduceScatter(Buffer input, Buffer output, ReduceOp op,
                                              const CollectiveOptions& options) {
  DT_RETURN_IF_ERROR(CheckBuffer(input, "the input of a reduce-scatter"));
  DT_RETURN_IF_ERROR(CheckBuffer(output, "the output of a reduce-scatter"));
  DT_RETURN_IF_ERROR(
      CheckReducible(input.dtype, op, options.wire, options.sum_of_squares != nullptr));
  if (input.bytes != output.bytes * static_cast<size_t>(size()) || input.dtype != output.dtype) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "reduce-scatter over %d ranks of %s: input has %d bytes, output %d bytes of %s; the input "
        "must be %d times the output",
        size(), DTypeName(input.dtype), input.bytes, output.bytes, DTypeName(output.dtype),
        size()));
  }
  return Start(
      {.header = Header(CallKind::kReduceScatter, input, op), .input = input, .output = output},
      options);
}

absl::StatusOr<Work> HostGroup::AllGather(Buffer input, Buffer output,
                                          const CollectiveOptions& options) {
  DT_RETURN_IF_ERROR(CheckBuffer(input, "the input of an all-gather"));
  DT_RETURN_IF_ERROR(CheckBuffer(output, "the output of an all-gather"));
  if (output.bytes != input.bytes * static_cast<size_t>(size()) || input.dtype != output.dtype) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "all-gather over %d ranks of %s: input has %d bytes, output %d bytes of %s; the output "
        "must be %d times the input",
        size(), DTypeName(input.dtype), input.bytes, output.bytes, DTypeName(output.dtype),
        size()));
  }
  return Start({.header = Header(CallKind::kAllGather, output), .input = input, .output = output},
               options);
}

absl::StatusOr<Work> HostGroup::Broadcast(Buffer buffer, int root,
                                          const CollectiveOptions& options) {
  DT_RETURN_IF_ERROR(CheckBuffer(buffer, "the buffer of a broadcast"));
  DT_RETURN_IF_ERROR(CheckPeer(root, "the root of a broadcast"));
  return Start({.header = Header(CallKind::kBroadcast, buffer, ReduceOp::kSum, root),
                .input = buffer,
                .output = buffer},
               options);
}

absl::StatusOr<Work> HostGroup::AllToAll(Buffer input, Buffer output,
                                         const CollectiveOptions& options) {
  DT_RETURN_IF_ERROR(CheckBuffer(input, "the input of an all-to-all"));
  DT_RETURN_IF_ERROR(CheckBuffer(output, "the output of an all-to-all"));
  const size_t unit = DTypeBytes(input.dtype) * static_cast<size_t>(size());
  if (input.bytes != output.bytes || input.dtype != output.dtype || input.bytes % unit != 0 ||
      Overlap(input, output)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "all-to-all over %d ranks: input has %d bytes of %s, output %d bytes of %s; they must be "
        "equal, apart in memory and a multiple of %d bytes",
        size(), input.bytes, DTypeName(input.dtype), output.bytes, DTypeName(output.dtype), unit));
  }
  return Start({.header = Header(CallKind::kAllToAll, input), .input = input, .output = output},
               options);
}

absl::StatusOr<Work> HostGroup::Send(Buffer buffer, int peer, const CollectiveOptions& options) {
  DT_RETURN_IF_ERROR(CheckBuffer(buffer, "the buffer of a send"));
  DT_RETURN_IF_ERROR(CheckPeer(peer, "the receiver of a send"));
  return Start(
      {.header = Header(CallKind::kSend, buffer), .input = buffer, .output = buffer, .peer = peer},
      options);
}

absl::StatusOr<Work> HostGroup::Receive(Buffer buffer, int peer, const CollectiveOptions& options) {
  DT_RETURN_IF_ERROR(CheckBuffer(buffer, "the buffer of a receive"));
  DT_RETURN_IF_ERROR(CheckPeer(peer, "the sender of a receive"));
  return Start({.header = Header(CallKind::kReceive, buffer),
                .input = buffer,
                .output = buffer,
                .peer = peer},
               options);
}

absl::Status HostGroup::Barrier(Deadline deadline) {
  Call call{.header = Header(CallKind::kBarrier, Buffer())};
  call.deadline = deadline;
  DT_ASSIGN_OR_RETURN(const Work work, Start(std::move(call), {.caller_waits = true}));
  return work.Wait();
}

absl::StatusOr<std::unique_ptr<Registration>> HostGroup::Register(
    std::shared_ptr<SymmetricBuffer> buffer) {
  if (buffer == nullptr) {
    return absl::InvalidArgumentError("Register was given no buffer");
  }
  std::unique_ptr<Registration> inner;
  Call call;
  call.header = Header(CallKind::kRegister,
                       {.data = nullptr, .bytes = buffer->bytes(), .dtype = DType::kUInt8});
  call.buffer = buffer;
  call.registered = &inner;
  const CollectiveOptions options{.name = buffer->name(), .caller_waits = true};
  DT_ASSIGN_OR_RETURN(const Work work, Start(std::move(call), options));
  DT_RETURN_IF_ERROR(work.Wait());
  std::shared_ptr<Registration> shared = std::move(inner);
  const std::lock_guard lock(registry_->mutex);
  registry_->live.push_back(shared);
  return std::make_unique<Handle>(std::move(shared));
}

void HostGroup::FindRegistration(Call& call) const {
  const std::lock_guard lock(registry_->mutex);
  auto& live = registry_->live;
  for (auto it = live.begin(); it != live.end();) {
    const std::shared_ptr<Registration> registration = it->lock();
    if (registration == nullptr) {
      it = live.erase(it);
      continue;
    }
    if (backend_->Locate(*registration, call.input, call.header)) {
      call.registration = registration;
      return;
    }
    ++it;
  }
}

absl::StatusOr<Work> HostGroup::Start(Call call, const CollectiveOptions& options) {
  SetName(call.header, options.name);
  call.header.wire = call.header.dtype == DType::kFloat32 ? options.wire : Wire::kSameAsBuffer;
  call.header.step = step_.load(std::memory_order_relaxed);
  call.header.sum_of_squares = options.sum_of_squares != nullptr;
  call.sum_of_squares = options.sum_of_squares;
  call.deadline = Earlier(call.deadline, options.deadline);
  const bool message = call.peer >= 0;
  if (message && call.peer == rank()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank %d cannot send to or receive from itself: copy the memory instead", rank()));
  }
  const std::lock_guard lock(order_mutex_);
  if (!message) {
    call.header.sequence = ++sequence_;
  }
  if (backend_ == nullptr) {
    if (queue_->is_broken()) {
      // A broken queue gives the reason.
      return queue_->Push(std::move(call), options.caller_waits);
    }
    DT_RETURN_IF_ERROR(RunAlone(call));
    return Work();
  }
  FindRegistration(call);
  return queue_->Push(std::move(call), options.caller_waits);
}

absl::Status HostGroup::RunAlone(const Call& call) const {
  if (call.registered != nullptr) {
    *call.registered = std::make_unique<Registration>();
    return absl::OkStatus();
  }
  const CallHeader& header = call.header;
  if (header.kind == CallKind::kAllReduce || header.kind == CallKind::kReduceScatter) {
    if (call.sum_of_squares != nullptr) {
      *call.sum_of_squares = 0;
    }
    if (call.sum_of_squares != nullptr || header.wire != Wire::kSameAsBuffer) {
      const void* const input = call.input.data;
      void* const output = call.output.data;
      Reduce({.inputs = absl::MakeConstSpan(&input, 1),
              .outputs = absl::MakeConstSpan(&output, 1),
              .count = call.output.count(),
              .dtype = header.dtype,
              .op = header.op,
              .wire = header.wire,
              .sum_of_squares = call.sum_of_squares});
      return absl::OkStatus();
    }
  }
  if (call.output.bytes != 0 && call.output.data != call.input.data) {
    std::memmove(call.output.data, call.input.data, call.output.bytes);
  }
  return absl::OkStatus();
}

absl::Status HostGroup::Explain(const absl::Status& status, const Call& call,
                                absl::Duration timeout) const {
  const std::string which = call.peer >= 0
                                ? absl::StrFormat("with rank %d", call.peer)
                                : absl::StrFormat("(collective %d)", call.header.sequence);
  std::string text = absl::StrFormat("rank %d of group \"%s\": %s %s", rank(), options_.name,
                                     Describe(call.header), which);
  if (absl::IsDeadlineExceeded(status)) {
    absl::StrAppend(&text, " not finished after ", absl::FormatDuration(timeout));
  }
  return Annotate(status, text);
}

absl::Status HostGroup::Run(absl::Span<const Call> calls, absl::Duration timeout) {
  absl::Status status = RunWithin(calls, Deadline::After(timeout));
  if (status.ok()) {
    return status;
  }
  // An abort closes connections, so an error about closed connections is its effect and not the
  // cause.
  const absl::Status cause = queue_->is_broken() ? queue_->broken() : status;
  absl::Status explained = Explain(cause, calls[0], timeout);
  BreakWith(explained);
  // After the reason was sent, or peers would see the effect of Withdraw first.
  backend_->Withdraw();
  return explained;
}

absl::Status HostGroup::RunWithin(absl::Span<const Call> calls, Deadline deadline) {
  const auto interrupted = [this]() -> absl::Status {
    if (queue_->is_broken()) {
      return queue_->broken();
    }
    return backend_->BrokenStatus();
  };
  const auto may_spin = [this] { return queue_->AnyoneWaits(); };
  const WaitContext context{deadline, interrupted, may_spin};
  DT_RETURN_IF_ERROR(interrupted());
  backend_->NoteCall(calls[0].header);
  absl::Status status = RunOnBackend(calls, context);
  // A deadline error that came from a peer is passed on as it is.
  return absl::IsDeadlineExceeded(status) && deadline.Expired() && interrupted().ok()
             ? backend_->NameTheMissing(status, context)
             : status;
}

absl::Status HostGroup::RunOnBackend(absl::Span<const Call> calls, const WaitContext& context) {
  if (calls[0].peer >= 0) {
    return backend_->RunPointToPoint(calls, context);
  }
  if (calls[0].registered != nullptr) {
    DT_ASSIGN_OR_RETURN(*calls[0].registered,
                        backend_->Register(calls[0], calls[0].buffer, context));
    return absl::OkStatus();
  }
  return backend_->Run(calls[0], context);
}

void HostGroup::BreakWith(const absl::Status& reason, bool reported) {
  queue_->Break(reason, reported);
  if (backend_ != nullptr) {
    backend_->Break(reason);
  }
}

void HostGroup::Abort(const std::string& reason) {
  BreakWith(absl::AbortedError(
                absl::StrFormat("rank %d aborted group \"%s\": %s", rank(), options_.name, reason)),
            /*reported=*/true);
}

std::string HostGroup::FlightRecord() const { return DumpJson(FlightRecords(queue_->recorder())); }

}  // namespace dtrain::comm
