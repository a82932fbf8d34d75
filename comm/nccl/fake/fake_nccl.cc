#include "comm/nccl/fake/fake_nccl.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/nccl/fake/fake_math.h"
#include "comm/nccl/fake/fake_nccl_comm.h"

namespace dtrain::comm {

namespace {

// Lets `comm` join the communicator at `index` of the fabric.
void Join(FakeNcclComm& comm, FakeShared& shared, int index) {
  comm.shared = &shared.comms[index];
  comm.shared->ranks = comm.ranks;
  ++comm.shared->joined;
}

// Sets the rank, the size and the place of `made`, which `parent` splits off. False while a rank
// has not called yet.
bool JoinSplit(const FakeNcclComm& parent, FakeNcclComm& made, int color, FakeShared& fabric) {
  FakeSharedComm& shared = *parent.shared;
  if (shared.split_posted < parent.ranks) {
    return false;
  }
  int first = -1;
  made.rank = made.ranks = 0;
  for (int rank = 0; rank < parent.ranks; ++rank) {
    if (shared.split_color[rank] != color) {
      continue;
    }
    first = first < 0 ? rank : first;
    ++made.ranks;
    const auto order = std::make_pair(shared.split_key[rank], rank);
    made.rank += order < std::make_pair(shared.split_key[parent.rank], parent.rank) ? 1 : 0;
  }
  if (first == parent.rank && shared.split_comm[first] == 0) {
    shared.split_comm[first] = ++fabric.comms_used;
  }
  const int index = shared.split_comm[first];
  if (index == 0) {
    return false;
  }
  Join(made, fabric, index - 1);
  return true;
}

}  // namespace

FakeNccl::FakeNccl(FakeFabric* fabric, FakeCuda* cuda, FakeNcclFaults faults)
    : fabric_(fabric), cuda_(cuda), faults_(faults) {}

FakeNccl::~FakeNccl() {
  stopping_ = true;
  std::lock_guard lock(mutex_);
  for (auto& [handle, comm] : comms_) {
    comm->aborted = true;
  }
}

std::string FakeNccl::Description() { return "fake NCCL 2.28.9"; }

std::string FakeNccl::ErrorString(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
      return "no error";
    case NcclResult::kUnhandledCudaError:
      return "unhandled cuda error";
    case NcclResult::kSystemError:
      return "unhandled system error";
    case NcclResult::kInternalError:
      return "internal error";
    case NcclResult::kInvalidArgument:
      return "invalid argument";
    case NcclResult::kInvalidUsage:
      return "invalid usage";
    case NcclResult::kRemoteError:
      return "remote process exited or there was a network error";
    case NcclResult::kInProgress:
      return "NCCL operation in progress";
  }
  return "?";
}

std::string FakeNccl::LastError(NcclComm* comm) {
  const auto found = Find(comm, "LastError");
  return found != nullptr && found->error.load() != NcclResult::kSuccess ? "injected fault" : "";
}

NcclResult FakeNccl::GetVersion(int* version) {
  *version = 22809;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::GetUniqueId(NcclUniqueId* id) {
  const int index = fabric_->shared().comms_used++;
  if (index >= kFakeCommsMax) {
    return Violation("more communicators than the fake has");
  }
  id->fill(0);
  (*id)[0] = 'F';
  (*id)[1] = static_cast<char>(index);
  return NcclResult::kSuccess;
}

NcclComm* FakeNccl::Add(std::shared_ptr<FakeNcclComm> comm) {
  comm->polls_left = faults_.polls_in_progress;
  auto* const handle = reinterpret_cast<NcclComm*>(comm.get());
  std::lock_guard lock(mutex_);
  comms_.emplace(handle, std::move(comm));
  return handle;
}

NcclResult FakeNccl::CommInitRankConfig(NcclComm** comm, int ranks, const NcclUniqueId& id,
                                        int rank, const char* name) {
  if (id[0] != 'F' || ranks < 1 || ranks > kFakeRanksMax || rank < 0 || rank >= ranks) {
    return NcclResult::kInvalidArgument;
  }
  auto made = std::make_shared<FakeNcclComm>();
  made->device = cuda_->current_device();
  made->rank = rank;
  made->ranks = ranks;
  made->name = name;
  made->named = name;
  Join(*made, fabric_->shared(), id[1]);
  *comm = Add(std::move(made));
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::CommInitRankScalable(NcclComm** comm, int ranks,
                                          absl::Span<const NcclUniqueId> ids, int rank,
                                          const char* name) {
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (ids[i] == ids[j]) {
        return Violation("CommInitRankScalable with one id twice");
      }
    }
    if (ids[i][0] != 'F') {
      return NcclResult::kInvalidArgument;
    }
  }
  if (ids.empty() || ids.size() > static_cast<size_t>(ranks)) {
    return NcclResult::kInvalidArgument;
  }
  {
    std::lock_guard lock(mutex_);
    calls_.push_back("CommInitRankScalable");
  }
  // Only NCCL's bootstrap depends on the id at which a rank meets, so the first serves all ranks.
  return CommInitRankConfig(comm, ranks, ids[0], rank, name);
}

NcclResult FakeNccl::CommGetAsyncError(NcclComm* handle, NcclResult* error) {
  const Use use(this, handle, "CommGetAsyncError");
  FakeNcclComm* const comm = use.comm().get();
  if (comm == nullptr) {
    return NcclResult::kInvalidUsage;
  }
  if (comm->error.load() != NcclResult::kSuccess) {
    *error = comm->error;
    return NcclResult::kSuccess;
  }
  const auto in_progress = [&] {
    if (faults_.init_hangs || held_ || !AdvanceSplit(*comm)) {
      return true;
    }
    const int arrived = comm->finalizing ? comm->shared->finalized : comm->shared->joined;
    return arrived < comm->ranks || comm->polls_left-- > 0;
  };
  if (in_progress()) {
    ++polls_;
    *error = NcclResult::kInProgress;
    return NcclResult::kSuccess;
  }
  comm->polls_left = 0;
  if (!comm->ready) {
    comm->exchange = std::make_unique<FakeExchange>(
        comm->shared, comm->rank, comm->ranks,
        [this, comm] { return comm->aborted || stopping_ || cuda_->stopping(); });
    comm->ready = true;
  }
  *error = NcclResult::kSuccess;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::CommFinalize(NcclComm* handle) {
  const Use use(this, handle, "CommFinalize");
  if (use.comm() == nullptr) {
    return NcclResult::kInvalidUsage;
  }
  use.comm()->finalizing = true;
  ++use.comm()->shared->finalized;
  use.comm()->polls_left = faults_.polls_in_progress;
  return NcclResult::kInProgress;
}

NcclResult FakeNccl::CommDestroy(NcclComm* handle) {
  const Use use(this, handle, "CommDestroy");
  if (use.comm() == nullptr) {
    return NcclResult::kInvalidUsage;
  }
  if (!use.comm()->finalizing) {
    Violation("CommDestroy before CommFinalize");
  }
  if (!use.comm()->registrations.empty()) {
    Violation("CommDestroy with registered buffers");
  }
  if (!use.comm()->factors.empty()) {
    Violation("CommDestroy with reduction operators");
  }
  std::lock_guard lock(mutex_);
  comms_.erase(handle);
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::CommAbort(NcclComm* handle) {
  const Use use(this, handle, "CommAbort");
  const std::shared_ptr<FakeNcclComm>& comm = use.comm();
  if (comm == nullptr) {
    return NcclResult::kInvalidUsage;
  }
  if (faults_.abort_hangs) {
    WaitFor([] { return false; });
  }
  comm->aborted = true;
  if (comm->split != nullptr) {
    EndSplit(*comm);
  }
  WaitFor([&comm] { return comm->in_flight == 0; });  // Other work on the streams comes first.
  ++aborts_;
  std::lock_guard lock(mutex_);
  comms_.erase(handle);
  return NcclResult::kSuccess;
}

void FakeNccl::WaitFor(const std::function<bool()>& done) {
  while (!done() && !stopping_ && !cuda_->stopping()) {
    usleep(200);
  }
}

NcclResult FakeNccl::CommSplit(NcclComm* handle, int color, int key, NcclComm** split) {
  const Use use(this, handle, "CommSplit");
  FakeNcclComm* const comm = use.comm().get();
  if (comm == nullptr || comm->shared->split_posted == comm->ranks) {
    return Violation("CommSplit: the fake splits a communicator once");
  }
  *split = nullptr;
  comm->split = std::make_unique<FakeSplit>();
  comm->split->slot = split;
  comm->split->color = color;
  if (color >= 0) {
    comm->split->made = std::make_shared<FakeNcclComm>();
    comm->split->made->device = comm->device;
    comm->split->made->name = comm->name;
    comm->split->made->named = comm->named;
  }
  FakeSharedComm& shared = *comm->shared;
  shared.split_color[comm->rank] = color;
  shared.split_key[comm->rank] = key;
  ++shared.split_posted;
  return NcclResult::kInProgress;
}

bool FakeNccl::AdvanceSplit(FakeNcclComm& comm) {
  FakeSplit* const split = comm.split.get();
  if (split == nullptr) {
    return true;
  }
  if (faults_.split_hangs) {
    return false;
  }
  FakeNcclComm* const made = split->made.get();
  if (made == nullptr) {
    if (comm.shared->split_posted < comm.ranks) {
      return false;
    }
  } else {
    split->joined = split->joined || JoinSplit(comm, *made, split->color, fabric_->shared());
    if (!split->joined || made->shared->joined < made->ranks) {
      return false;
    }
    CheckName(*made, "the job of CommSplit");
  }
  EndSplit(comm);
  return true;
}

void FakeNccl::EndSplit(FakeNcclComm& comm) {
  const std::unique_ptr<FakeSplit> split = std::move(comm.split);
  if (split->made == nullptr) {
    return;
  }
  if (!split->joined) {
    split->made->error = NcclResult::kInternalError;  // It is unfinished.
  }
  *split->slot = Add(split->made);
}

void FakeNccl::CheckName(const FakeNcclComm& comm, const char* call) {
  if (comm.name != nullptr && comm.named != comm.name) {
    Violation(absl::StrCat(call, " reads the communicator's name, which has gone"));
  }
}

NcclResult FakeNccl::CommShape(NcclComm* handle, int* rank, int* ranks) {
  const Use use(this, handle, "CommShape");
  if (use.comm() == nullptr || !use.comm()->ready) {
    return NcclResult::kInvalidUsage;
  }
  *rank = use.comm()->rank;
  *ranks = use.comm()->ranks;
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::CommRegister(NcclComm* handle, void* data, size_t bytes, void** result) {
  const Use use(this, handle, "CommRegister");
  if (use.comm() == nullptr) {
    return NcclResult::kInvalidUsage;
  }
  if (!cuda_->IsDeviceMemory(data, bytes)) {
    return Violation("CommRegister of memory that is not the device's");
  }
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto from = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = from & ~(page - 1);
  const uintptr_t end = (from + bytes + page - 1) & ~(page - 1);
  auto& all = use.comm()->registrations;
  auto found = std::find_if(all.begin(), all.end(), [&](const auto& registration) {
    return registration->begin <= begin && end <= registration->end;
  });
  if (found == all.end()) {
    found = all.insert(all.end(), std::make_unique<FakeRegistration>());
    **found = {.begin = begin, .end = end, .uses = 0};
  }
  ++(*found)->uses;
  *result = found->get();
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::CommDeregister(NcclComm* handle, void* registration) {
  const Use use(this, handle, "CommDeregister");
  FakeNcclComm* const comm = use.comm().get();
  if (comm == nullptr) {
    return NcclResult::kInvalidUsage;
  }
  if (comm->polls_left > 0 || held_) {
    return Violation("CommDeregister while a call is in progress");
  }
  auto& all = comm->registrations;
  const auto found = std::find_if(all.begin(), all.end(), [registration](const auto& kept) {
    return kept.get() == registration;
  });
  if (found == all.end()) {
    return Violation("CommDeregister of what is not registered");
  }
  if (faults_.deregister_hangs) {
    WaitFor([comm] { return comm->aborted.load(); });
  }
  if (--(*found)->uses == 0) {
    all.erase(found);
  }
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::RedOpCreatePreMulSum(NcclReduceOp* op, const void* scalar, NcclDType dtype,
                                          NcclComm* handle) {
  const Use use(this, handle, "RedOpCreatePreMulSum");
  if (use.comm() == nullptr) {
    return NcclResult::kInvalidUsage;
  }
  const int made = use.comm()->next_op++;
  use.comm()->factors[made] = ReadScalar(dtype, scalar);
  *op = static_cast<NcclReduceOp>(made);
  return NcclResult::kSuccess;
}

NcclResult FakeNccl::RedOpDestroy(NcclReduceOp op, NcclComm* handle) {
  const Use use(this, handle, "RedOpDestroy");
  if (use.comm() == nullptr) {
    return NcclResult::kInvalidUsage;
  }
  if (use.comm()->factors.erase(static_cast<int>(op)) == 0) {
    return Violation("RedOpDestroy of an unknown operator");
  }
  return NcclResult::kSuccess;
}

std::vector<std::string> FakeNccl::violations() const {
  std::lock_guard lock(mutex_);
  return violations_;
}
std::vector<std::string> FakeNccl::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}
int FakeNccl::live_comms() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(comms_.size());
}

std::shared_ptr<FakeNcclComm> FakeNccl::Find(NcclComm* comm, const char* call) {
  std::lock_guard lock(mutex_);
  if (std::string(call) != "CommGetAsyncError") {  // There are many polls and few other calls.
    calls_.emplace_back(call);
  }
  const auto found = comms_.find(comm);
  if (found == comms_.end()) {
    violations_.push_back(absl::StrCat(call, " on a communicator that does not exist"));
    return nullptr;
  }
  return found->second;
}

NcclResult FakeNccl::Violation(const std::string& text) {
  std::lock_guard lock(mutex_);
  violations_.push_back(text);
  return NcclResult::kInvalidUsage;
}

}  // namespace dtrain::comm
