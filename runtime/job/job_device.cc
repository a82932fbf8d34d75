#include "runtime/job/job_device.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/job_env.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system/library_variables.h"
#include "comm/call_timeout.h"
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/staged_group.h"
#include "runtime/device/choose_device.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/plan/nccl_variables.h"

namespace dtrain {
namespace {

absl::StatusOr<DeviceTransport> AgreeOnTransport(comm::Group& group, RankDevice mine) {
  std::vector<RankDevice> ranks(static_cast<size_t>(group.size()));
  DT_ASSIGN_OR_RETURN(
      const comm::Work work,
      group.AllGather({&mine, sizeof(mine), DType::kUInt8, {}},
                      {ranks.data(), ranks.size() * sizeof(RankDevice), DType::kUInt8, {}},
                      {.name = "devices", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  return ChooseTransport(ranks);
}

// The kinds of traffic in a group on GPUs, whose retries its learnt time limits must allow for.
comm::CallCarriers CarriersOf(const Job::State& state, DeviceTransport transport,
                              const comm::RdmaOptions& rdma) {
  comm::CallCarriers carriers{.gpu = true};
  if (state.env.local_world_size != state.env.world_size) {
    const plan::NcclRetries nccl = plan::NcclRetriesIn(ReadEnvironment());
    carriers.rdma = transport == DeviceTransport::kNccl
                        ? comm::RdmaRetries{nccl.timeout, nccl.retries}
                        : comm::RdmaRetries{rdma.timeout, rdma.retries};
  }
  return carriers;
}

// NCCL of the plugin; its error is a reason to go through host memory, not to end.
absl::StatusOr<comm::NcclSeams> OpenNccl() {
  DT_ASSIGN_OR_RETURN(comm::Plugin* const plugin, comm::OpenCudaPlugin());
  return plugin->seams();
}

}  // namespace

absl::Status OpenDevice(Job::State& state, const comm::GroupOptions& options) {
  const auto wish = state.config->device();
  const GpuFacts facts = wish == "cpu" ? GpuFacts{} : FindGpus(state.env.local_rank);
  // An error of one rank must not leave the others waiting: all exchange first.
  const auto choice = ChooseDevice(wish, facts);
  RankDevice mine;
  mine.node = std::hash<std::string>()(options.node_id);
  absl::Status opened = choice.status();
  absl::StatusOr<comm::NcclSeams> seams = absl::NotFoundError("not looked for");
  if (opened.ok() && choice->cuda) {
    auto device = OpenCudaDevice(choice->index);
    opened = device.status();
    if (opened.ok()) {
      state.device = *std::move(device);
      DT_ASSIGN_OR_RETURN(const comm::CudaDeviceFacts gpu, FactsOf(*state.device));
      std::copy(gpu.uuid.begin(), gpu.uuid.end(), mine.uuid);
      if (state.config->fp8().enabled) {
        opened.Update(CheckFp8Units(gpu.name, gpu.compute_capability));
      }
      mine.cuda = 1;
      // Before NCCL is called, which reads each variable once.
      SetLibraryVariables(plan::NcclVariables(*state.config, ReadEnvironment()));
      seams = OpenNccl();
      mine.nccl = seams.ok() ? 1 : 0;
    }
  }
  const auto transport = AgreeOnTransport(*state.group, mine);
  DT_RETURN_IF_ERROR(opened);
  DT_RETURN_IF_ERROR(transport.status());
  if (wish == "auto" && facts.driver && facts.gpus == 0) {
    DT_LOG(Warning) << "training on the CPU although a driver is loaded: " << facts.why_none;
  }
  if (*transport == DeviceTransport::kNone) {
    return absl::OkStatus();
  }
  UseDeviceRng(state.device->tensors());
  return MakeDeviceGroup(state, *transport, seams, options);
}

comm::GroupOptions DeviceGroupOptions(const Job::State& state, DeviceTransport transport,
                                      const comm::GroupOptions& hosts) {
  comm::GroupOptions group = hosts;
  group.name = "device";
  group.timeout_min =
      comm::LeastTimeout(hosts.timeout_min, CarriersOf(state, transport, hosts.rdma));
  return group;
}

absl::Status MakeDeviceGroup(Job::State& state, DeviceTransport transport,
                             const absl::StatusOr<comm::NcclSeams>& seams,
                             const comm::GroupOptions& hosts) {
  const comm::GroupOptions group = DeviceGroupOptions(state, transport, hosts);
  if (transport == DeviceTransport::kNccl) {
    comm::NcclGroupOptions nccl;
    nccl.group = group;
    nccl.device = state.device->place().index;
    nccl.compute_stream = state.device->stream();
    DT_ASSIGN_OR_RETURN(state.device_group, comm::NcclGroup::Create(*seams, state.store, nccl));
    return absl::OkStatus();
  }
  if (state.env.world_size > 1 && state.env.rank == 0) {
    DT_LOG(Warning) << "gradients go through host memory: "
                    << (seams.ok() ? "ranks share a GPU, which NCCL does not allow"
                                   : std::string(seams.status().message()));
  }
  DT_ASSIGN_OR_RETURN(auto host, comm::CreateHostGroup(state.store, group));
  DT_ASSIGN_OR_RETURN(
      state.device_group,
      comm::StagedGroup::Create(std::move(host), {.cuda = &state.device->api(),
                                                  .device = state.device->place().index,
                                                  .compute_stream = state.device->stream()}));
  return absl::OkStatus();
}

}  // namespace dtrain
