#include "comm/nccl/plugin/real_nccl_api.h"

#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtrain::comm {
namespace {

static_assert(sizeof(NcclUniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(int{ncclInProgress} == static_cast<int>(NcclResult::kInProgress));
static_assert(int{ncclBfloat16} == static_cast<int>(NcclDType::kBFloat16));
static_assert(int{ncclFloat64} == static_cast<int>(NcclDType::kFloat64));
static_assert(int{ncclMin} == static_cast<int>(NcclReduceOp::kMin));

// The functions that dtrain calls, typed by nccl.h's own declarations.
struct Functions {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  // Declared as in nccl.h of NCCL 2.23, because the header here may be older. Null if NCCL has
  // none.
  ncclResult_t (*comm_init_rank_scalable)(ncclComm_t*, int, int, int, ncclUniqueId*, ncclConfig_t*);
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclCommFinalize) comm_finalize;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommSplit) comm_split;
  decltype(&ncclCommUserRank) comm_user_rank;
  decltype(&ncclCommCount) comm_count;
  decltype(&ncclCommRegister) comm_register;
  decltype(&ncclCommDeregister) comm_deregister;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  decltype(&ncclRedOpCreatePreMulSum) red_op_create_pre_mul_sum;
  decltype(&ncclRedOpDestroy) red_op_destroy;
};

NcclResult Result(ncclResult_t result) { return static_cast<NcclResult>(result); }
ncclComm_t Native(NcclComm* comm) { return reinterpret_cast<ncclComm_t>(comm); }
cudaStream_t Native(CudaStream* stream) { return reinterpret_cast<cudaStream_t>(stream); }
ncclDataType_t Native(NcclDType dtype) { return static_cast<ncclDataType_t>(dtype); }
ncclRedOp_t Native(NcclReduceOp op) { return static_cast<ncclRedOp_t>(op); }

// Names of communicators came with NCCL 2.27. An older nccl.h has no field for them, which
// tests/comm/nccl/older_nccl_test.py compiles.
template <typename Config>
void SetName(Config& config, const char* name) {
  if constexpr (requires { config.commName; }) {
    config.commName = name;
  }
}

class Real final : public NcclApi {
 public:
  Real(const Functions& functions, std::string path) : f_(functions), path_(std::move(path)) {}

  std::string Description() override {
    int version = 0;
    (void)f_.get_version(&version);
    return absl::StrFormat("NCCL %d.%d.%d (%s)", version / 10000, version / 100 % 100,
                           version % 100, path_);
  }
  std::string ErrorString(NcclResult result) override {
    return f_.get_error_string(static_cast<ncclResult_t>(result));
  }
  std::string LastError(NcclComm* comm) override {
    const char* const text = f_.get_last_error(Native(comm));
    return text == nullptr ? "" : text;
  }
  NcclResult GetVersion(int* version) override { return Result(f_.get_version(version)); }
  NcclResult GetUniqueId(NcclUniqueId* id) override {
    ncclUniqueId made;
    const NcclResult result = Result(f_.get_unique_id(&made));
    std::memcpy(id->data(), made.internal, id->size());
    return result;
  }
  NcclResult CommInitRankConfig(NcclComm** comm, int ranks, const NcclUniqueId& id, int rank,
                                const char* name) override {
    ncclConfig_t config = ConfigOf(name);
    ncclUniqueId native;
    std::memcpy(native.internal, id.data(), id.size());
    return Result(f_.comm_init_rank_config(reinterpret_cast<ncclComm_t*>(comm), ranks, native, rank,
                                           &config));
  }
  bool HasScalableInit() override { return f_.comm_init_rank_scalable != nullptr; }
  NcclResult CommInitRankScalable(NcclComm** comm, int ranks, absl::Span<const NcclUniqueId> ids,
                                  int rank, const char* name) override {
    ncclConfig_t config = ConfigOf(name);
    std::vector<ncclUniqueId> native(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      std::memcpy(native[i].internal, ids[i].data(), ids[i].size());
    }
    return Result(f_.comm_init_rank_scalable(reinterpret_cast<ncclComm_t*>(comm), ranks, rank,
                                             static_cast<int>(native.size()), native.data(),
                                             &config));
  }
  NcclResult CommGetAsyncError(NcclComm* comm, NcclResult* error) override {
    ncclResult_t state = ncclSuccess;
    const NcclResult result = Result(f_.comm_get_async_error(Native(comm), &state));
    *error = Result(state);
    return result;
  }
  NcclResult CommFinalize(NcclComm* comm) override {
    return Result(f_.comm_finalize(Native(comm)));
  }
  NcclResult CommDestroy(NcclComm* comm) override { return Result(f_.comm_destroy(Native(comm))); }
  NcclResult CommAbort(NcclComm* comm) override { return Result(f_.comm_abort(Native(comm))); }
  NcclResult CommSplit(NcclComm* comm, int color, int key, NcclComm** split) override {
    return Result(
        f_.comm_split(Native(comm), color, key, reinterpret_cast<ncclComm_t*>(split), nullptr));
  }
  NcclResult CommShape(NcclComm* comm, int* rank, int* ranks) override {
    const NcclResult result = Result(f_.comm_user_rank(Native(comm), rank));
    return result == NcclResult::kSuccess ? Result(f_.comm_count(Native(comm), ranks)) : result;
  }
  NcclResult CommRegister(NcclComm* comm, void* data, size_t bytes, void** handle) override {
    return Result(f_.comm_register(Native(comm), data, bytes, handle));
  }
  NcclResult CommDeregister(NcclComm* comm, void* handle) override {
    return Result(f_.comm_deregister(Native(comm), handle));
  }
  NcclResult GroupStart() override { return Result(f_.group_start()); }
  NcclResult GroupEnd() override { return Result(f_.group_end()); }

  NcclResult AllReduce(const void* send, void* receive, size_t count, NcclDType dtype,
                       NcclReduceOp op, NcclComm* comm, CudaStream* stream) override {
    return Result(f_.all_reduce(send, receive, count, Native(dtype), Native(op), Native(comm),
                                Native(stream)));
  }
  NcclResult ReduceScatter(const void* send, void* receive, size_t count, NcclDType dtype,
                           NcclReduceOp op, NcclComm* comm, CudaStream* stream) override {
    return Result(f_.reduce_scatter(send, receive, count, Native(dtype), Native(op), Native(comm),
                                    Native(stream)));
  }
  NcclResult AllGather(const void* send, void* receive, size_t count, NcclDType dtype,
                       NcclComm* comm, CudaStream* stream) override {
    return Result(f_.all_gather(send, receive, count, Native(dtype), Native(comm), Native(stream)));
  }
  NcclResult Broadcast(const void* send, void* receive, size_t count, NcclDType dtype, int root,
                       NcclComm* comm, CudaStream* stream) override {
    return Result(
        f_.broadcast(send, receive, count, Native(dtype), root, Native(comm), Native(stream)));
  }
  NcclResult Send(const void* data, size_t count, NcclDType dtype, int peer, NcclComm* comm,
                  CudaStream* stream) override {
    return Result(f_.send(data, count, Native(dtype), peer, Native(comm), Native(stream)));
  }
  NcclResult Recv(void* data, size_t count, NcclDType dtype, int peer, NcclComm* comm,
                  CudaStream* stream) override {
    return Result(f_.recv(data, count, Native(dtype), peer, Native(comm), Native(stream)));
  }
  NcclResult RedOpCreatePreMulSum(NcclReduceOp* op, const void* scalar, NcclDType dtype,
                                  NcclComm* comm) override {
    ncclRedOp_t made = ncclSum;
    // NCCL reads the scalar before it returns and does not write it.
    const NcclResult result = Result(f_.red_op_create_pre_mul_sum(
        &made, const_cast<void*>(scalar), Native(dtype), ncclScalarHostImmediate, Native(comm)));
    *op = static_cast<NcclReduceOp>(made);
    return result;
  }
  NcclResult RedOpDestroy(NcclReduceOp op, NcclComm* comm) override {
    return Result(f_.red_op_destroy(Native(op), Native(comm)));
  }

 private:
  static ncclConfig_t ConfigOf(const char* name) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    SetName(config, name);
    return config;
  }
  const Functions f_;
  const std::string path_;
};

void* OpenLibrary(std::string* error) {
  // Two NCCLs in one process corrupt each other, so one that is mapped already is used.
  if (void* const mapped = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD)) {
    return mapped;
  }
  void* const opened = dlopen(DTRAIN_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    absl::StrAppend(error, "NCCL could not be loaded: ", dlerror());
  }
  return opened;
}

NcclApi* Make(std::string* error) {
  void* const library = OpenLibrary(error);  // It stays open because NCCL's threads run on.
  if (library == nullptr) {
    return nullptr;
  }
  Functions functions = {};
  const auto bind = [&](const char* name, auto& function) {
    void* const address = dlsym(library, name);
    if (address == nullptr) {
      absl::StrAppend(error, error->empty() ? "NCCL is too old (2.19 is needed), it lacks: " : ", ",
                      name);
    }
    std::memcpy(&function, &address, sizeof(function));
  };
  bind("ncclGetVersion", functions.get_version);
  bind("ncclGetErrorString", functions.get_error_string);
  bind("ncclGetLastError", functions.get_last_error);
  bind("ncclGetUniqueId", functions.get_unique_id);
  bind("ncclCommInitRankConfig", functions.comm_init_rank_config);
  bind("ncclCommGetAsyncError", functions.comm_get_async_error);
  bind("ncclCommFinalize", functions.comm_finalize);
  bind("ncclCommDestroy", functions.comm_destroy);
  bind("ncclCommAbort", functions.comm_abort);
  bind("ncclCommSplit", functions.comm_split);
  bind("ncclCommUserRank", functions.comm_user_rank);
  bind("ncclCommCount", functions.comm_count);
  bind("ncclCommRegister", functions.comm_register);
  bind("ncclCommDeregister", functions.comm_deregister);
  bind("ncclGroupStart", functions.group_start);
  bind("ncclGroupEnd", functions.group_end);
  bind("ncclAllReduce", functions.all_reduce);
  bind("ncclReduceScatter", functions.reduce_scatter);
  bind("ncclAllGather", functions.all_gather);
  bind("ncclBroadcast", functions.broadcast);
  bind("ncclSend", functions.send);
  bind("ncclRecv", functions.recv);
  bind("ncclRedOpCreatePreMulSum", functions.red_op_create_pre_mul_sum);
  bind("ncclRedOpDestroy", functions.red_op_destroy);
  if (!error->empty()) {
    return nullptr;
  }
  void* const scalable = dlsym(library, "ncclCommInitRankScalable");
  std::memcpy(&functions.comm_init_rank_scalable, &scalable, sizeof(scalable));
  Dl_info info = {};
  const bool known = dladdr(reinterpret_cast<void*>(functions.get_version), &info) != 0;
  return new Real(functions, known && info.dli_fname != nullptr ? info.dli_fname : "libnccl.so.2");
}

}  // namespace

NcclApi* RealNccl(std::string* error) {
  static std::mutex mutex;
  static NcclApi* api = nullptr;
  std::lock_guard lock(mutex);
  error->clear();
  if (api == nullptr) {
    api = Make(error);
  }
  return api;
}

}  // namespace dtrain::comm
