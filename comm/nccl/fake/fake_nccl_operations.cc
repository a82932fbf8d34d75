// The collectives of FakeNccl: checks, groups and the queueing on streams.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/job_env.h"
#include "comm/nccl/fake/fake_math.h"
#include "comm/nccl/fake/fake_nccl.h"
#include "comm/nccl/fake/fake_nccl_comm.h"

namespace dtrain::comm {

// A thread's open group of calls, which NCCL keeps by thread too.
struct FakeNccl::ThreadGroup {
  int depth = 0;
  std::vector<Queued> operations;
};

FakeNccl::ThreadGroup& FakeNccl::thread_group() {
  static thread_local ThreadGroup group;
  return group;
}

NcclResult FakeNccl::GroupStart() {
  ++thread_group().depth;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::GroupEnd() {
  ThreadGroup& group = thread_group();
  if (group.depth == 0) {
    return Violation("GroupEnd without GroupStart");
  }
  if (--group.depth > 0) {
    return NcclResult::kSuccess;
  }
  return Launch(std::exchange(group.operations, {}));
}

NcclResult FakeNccl::Start(const char* call, NcclComm* handle, CudaStream* stream,
                           FakeOperation operation, size_t send_parts, size_t receive_parts) {
  const Use use(this, handle, call);
  FakeNcclComm* const comm = use.comm().get();
  if (comm == nullptr) {
    return NcclResult::kInvalidUsage;
  }
  if (!comm->ready || comm->finalizing || comm->polls_left > 0) {
    return Violation(absl::StrCat(call, " while the communicator is busy or not ready"));
  }
  if (!cuda_->IsOnDevice(stream, comm->device)) {
    return Violation(absl::StrCat(call, " on a stream of another device"));
  }
  const auto ranks = static_cast<size_t>(comm->ranks);
  const size_t bytes = operation.descriptor.count * NcclDTypeBytes(operation.descriptor.dtype);
  const auto on_device = [&](const char* data, size_t parts) {
    return bytes == 0 || parts == 0 || cuda_->IsDeviceMemory(data, bytes * parts);
  };
  if (!on_device(operation.send, send_parts == kEveryRank ? ranks : send_parts) ||
      !on_device(operation.receive, receive_parts == kEveryRank ? ranks : receive_parts)) {
    return Violation(absl::StrCat(call, " on memory that is not the device's"));
  }
  if (const auto factor = comm->factors.find(operation.descriptor.op);
      factor != comm->factors.end()) {
    operation.factor = factor->second;
    operation.descriptor.op = static_cast<int>(NcclReduceOp::kMin) + 1;
  }
  Queued queued{use.comm(), stream, operation};
  if (thread_group().depth > 0) {
    thread_group().operations.push_back(std::move(queued));
    return NcclResult::kSuccess;
  }
  return Launch({std::move(queued)});
}

void FakeNccl::Enqueue(const std::shared_ptr<FakeNcclComm>& comm, CudaStream* stream,
                       std::function<void()> operation) {
  const std::shared_ptr<FakeLaunches> launches = LaunchesOf(comm->device);
  bool captured = false;
  (void)cuda_->StreamIsCapturing(stream, &captured);
  const uint64_t launch = captured ? 0 : launches->Launch();
  ++comm->in_flight;
  cuda_->Enqueue(stream, [comm, cuda = cuda_, launches, launch, run = std::move(operation)] {
    if (launches->Begin(launch, [&] { return comm->aborted || cuda->stopping(); })) {
      run();
      launches->End();
    }
    --comm->in_flight;
  });
}

// NCCL reads its variable at its first launch.
std::shared_ptr<FakeLaunches> FakeNccl::LaunchesOf(int device) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<FakeLaunches>& launches = launches_[device];
  if (launches == nullptr) {
    const Environment environment = ReadEnvironment();
    const auto order = environment.find("NCCL_LAUNCH_ORDER_IMPLICIT");
    int value = 0;
    const bool ordered =
        order != environment.end() && absl::SimpleAtoi(order->second, &value) && value != 0;
    launches = std::make_shared<FakeLaunches>(faults_.kernels_at_once, ordered);
  }
  return launches;
}

NcclResult FakeNccl::Launch(const std::vector<Queued>& operations) {
  if (operations.empty()) {
    return NcclResult::kSuccess;
  }
  ++jobs_;
  const auto is_transfer = [](const Queued& queued) {
    const FakeKind kind = queued.operation.descriptor.kind;
    return kind == FakeKind::kSend || kind == FakeKind::kReceive;
  };
  const auto together_in = [&](const std::shared_ptr<FakeNcclComm>& comm) {
    return std::count_if(operations.begin(), operations.end(), [&](const Queued& queued) {
      return queued.comm == comm && !is_transfer(queued);
    });
  };
  // The sends and receives of a group run together, after its collectives, as NCCL's do.
  std::map<std::pair<FakeNcclComm*, CudaStream*>, std::vector<FakeOperation>> transfers;
  for (const Queued& queued : operations) {
    FakeNcclComm* const comm = queued.comm.get();
    comm->polls_left = faults_.polls_in_progress;
    const int index = operations_++;
    const bool breaks = faults_.async_error_after >= 0 && index >= faults_.async_error_after;
    if (breaks) {
      comm->error = faults_.async_error;
    }
    if (breaks || index == faults_.hanging_operation) {
      Enqueue(queued.comm, queued.stream, [held = queued.comm] { held->exchange->Hang(); });
    } else if (is_transfer(queued)) {
      transfers[{comm, queued.stream}].push_back(queued.operation);
    } else {
      FakeOperation operation = queued.operation;
      operation.descriptor.together = static_cast<int>(together_in(queued.comm));
      Enqueue(queued.comm, queued.stream,
              [held = queued.comm, operation] { held->exchange->Collective(operation); });
    }
  }
  for (auto& [where, moves] : transfers) {
    std::shared_ptr<FakeNcclComm> held;
    for (const Queued& queued : operations) {
      held = queued.comm.get() == where.first ? queued.comm : held;
    }
    Enqueue(held, where.second, [held, moved = moves] { held->exchange->PointToPoint(moved); });
  }
  return faults_.polls_in_progress > 0 ? NcclResult::kInProgress : NcclResult::kSuccess;
}

namespace {

FakeOperation Make(FakeKind kind, const void* send, void* receive, size_t count, NcclDType dtype) {
  FakeOperation operation;
  operation.descriptor.kind = kind;
  operation.descriptor.dtype = dtype;
  operation.descriptor.count = count;
  operation.send = static_cast<const char*>(send);
  operation.receive = static_cast<char*>(receive);
  return operation;
}

}  // namespace

NcclResult FakeNccl::AllReduce(const void* send, void* receive, size_t count, NcclDType dtype,
                               NcclReduceOp op, NcclComm* comm, CudaStream* stream) {
  FakeOperation operation = Make(FakeKind::kAllReduce, send, receive, count, dtype);
  operation.descriptor.op = static_cast<int>(op);
  return Start("AllReduce", comm, stream, operation, 1, 1);
}

NcclResult FakeNccl::ReduceScatter(const void* send, void* receive, size_t count, NcclDType dtype,
                                   NcclReduceOp op, NcclComm* comm, CudaStream* stream) {
  FakeOperation operation = Make(FakeKind::kReduceScatter, send, receive, count, dtype);
  operation.descriptor.op = static_cast<int>(op);
  return Start("ReduceScatter", comm, stream, operation, kEveryRank, 1);
}

NcclResult FakeNccl::AllGather(const void* send, void* receive, size_t count, NcclDType dtype,
                               NcclComm* comm, CudaStream* stream) {
  return Start("AllGather", comm, stream, Make(FakeKind::kAllGather, send, receive, count, dtype),
               1, kEveryRank);
}

NcclResult FakeNccl::Broadcast(const void* send, void* receive, size_t count, NcclDType dtype,
                               int root, NcclComm* comm, CudaStream* stream) {
  FakeOperation operation = Make(FakeKind::kBroadcast, send, receive, count, dtype);
  operation.descriptor.root = root;
  return Start("Broadcast", comm, stream, operation, 1, 1);
}

NcclResult FakeNccl::Send(const void* data, size_t count, NcclDType dtype, int peer, NcclComm* comm,
                          CudaStream* stream) {
  FakeOperation operation = Make(FakeKind::kSend, data, nullptr, count, dtype);
  operation.peer = peer;
  return Start("Send", comm, stream, operation, 1, 0);
}

NcclResult FakeNccl::Recv(void* data, size_t count, NcclDType dtype, int peer, NcclComm* comm,
                          CudaStream* stream) {
  FakeOperation operation = Make(FakeKind::kReceive, nullptr, data, count, dtype);
  operation.peer = peer;
  return Start("Recv", comm, stream, operation, 0, 1);
}

}  // namespace dtrain::comm
