#include "comm/tools/bench_backends.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/plugin.h"
#include "comm/nccl/staged_group.h"
#include "comm/transport/rdma/connect_rdma.h"

namespace dtrain::comm {
namespace {

GroupOptions HostOptions(const std::string& name, const BenchPlan& plan, GroupOptions options) {
  options.name = name;
  options.allow_shared_memory = name == "shm" || name == "shm+tcp" || IsOfDevice(name);
  options.network = name == "rdma" ? Network::kRdma : Network::kTcp;
  if (name == "shm+tcp") {
    options.node_id = absl::StrFormat("node %d", options.rank * plan.nodes / plan.ranks);
  }
  return options;
}

absl::Status CheckDevice(const std::string& name, const BenchPlan& plan) {
  DT_ASSIGN_OR_RETURN(Plugin* const plugin, OpenCudaPlugin());
  DT_ASSIGN_OR_RETURN(const int devices, plugin->DeviceCount());
  if (name == "staged") {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(plugin->seams().status());
  return plan.ranks <= devices ? absl::OkStatus()
                               : absl::InvalidArgumentError(absl::StrFormat(
                                     "--backend nccl needs a GPU for each rank, and there are %d "
                                     "ranks and %d GPUs; use --ranks "
                                     "%d or --backend staged",
                                     plan.ranks, devices, devices));
}

absl::StatusOr<std::unique_ptr<DeviceGroup>> MakeDeviceGroup(const BenchBackend& backend,
                                                             const GroupOptions& options,
                                                             Store& store, int device,
                                                             CudaApi& cuda, CudaStream* stream) {
  if (backend.name == "nccl") {
    DT_ASSIGN_OR_RETURN(Plugin* const plugin, OpenCudaPlugin());
    DT_ASSIGN_OR_RETURN(const NcclSeams seams, plugin->seams());
    NcclGroupOptions nccl;
    nccl.group = options;
    nccl.device = device;
    nccl.compute_stream = stream;
    return NcclGroup::Create(seams, options.size == 1 ? nullptr : &store, nccl);
  }
  DT_ASSIGN_OR_RETURN(auto host, CreateHostGroup(&store, options));
  return StagedGroup::Create(std::move(host),
                             {.cuda = &cuda, .device = device, .compute_stream = stream});
}

absl::Status OpenDevice(BenchBackend& backend, const BenchPlan& plan, const GroupOptions& options,
                        Store& store) {
  DT_ASSIGN_OR_RETURN(Plugin* const plugin, OpenCudaPlugin());
  DT_ASSIGN_OR_RETURN(const int devices, plugin->DeviceCount());
  const int device = options.rank % devices;
  CudaApi& cuda = plugin->cuda();
  CudaStream* stream = nullptr;  // Lives as long as the process.
  if (cuda.SetDevice(device) != CudaResult::kSuccess ||
      cuda.StreamCreate(&stream, false) != CudaResult::kSuccess) {
    return absl::InternalError(absl::StrFormat("GPU %d gives no stream", device));
  }
  DT_ASSIGN_OR_RETURN(auto group, MakeDeviceGroup(backend, options, store, device, cuda, stream));
  DT_ASSIGN_OR_RETURN(backend.memory, MakeDeviceMemory(*group, cuda, stream, device,
                                                       plan.BufferBytes(), plan.registered));
  backend.group = std::move(group);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBackends(const BenchPlan& plan) {
  for (const std::string& name : plan.backends) {
    absl::Status status;
    if (name == "rdma") {
      status = FindRdmaPort({}, "").status();
    } else if (IsOfDevice(name)) {
      status = CheckDevice(name, plan);
    }
    DT_RETURN_IF_ERROR(
        Annotate(status, absl::StrFormat("--backend %s does not work on this machine", name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchBackend> OpenBackend(const std::string& name, const BenchPlan& plan,
                                         const GroupOptions& base, Store& store,
                                         std::shared_ptr<Group> control) {
  BenchBackend backend;
  backend.name = name;
  backend.control = std::move(control);
  const GroupOptions options = HostOptions(name, plan, base);
  if (IsOfDevice(name)) {
    backend.limit_is_link = name == "nccl" && plan.ranks > 1;
    backend.limit_name = backend.limit_is_link ? "one link" : "device memory copy";
    DT_RETURN_IF_ERROR(OpenDevice(backend, plan, options, store));
    return backend;
  }
  backend.limit_is_link = name != "shm";
  backend.limit_name = backend.limit_is_link ? "one link" : "memory copy";
  DT_ASSIGN_OR_RETURN(backend.group, CreateHostGroup(&store, options));
  DT_ASSIGN_OR_RETURN(backend.memory,
                      MakeHostMemory(*backend.group, plan.BufferBytes(), plan.registered));
  return backend;
}

}  // namespace dtrain::comm
