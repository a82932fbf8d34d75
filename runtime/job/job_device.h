// The device of a job's rank and the group that its gradients travel over.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/nccl/nccl_group.h"
#include "runtime/device/choose_device.h"
#include "runtime/job/job_state.h"

namespace dtrain {

// Collective over state.group: chooses the device that `device` in the configuration asks for,
// opens it, and makes state.device_group with `options` as of the hosts' group. Before LibTorch is
// asked for anything of CUDA. FailedPrecondition: no such device, or ranks that differ.
absl::Status OpenDevice(Job::State& state, const comm::GroupOptions& options);

// The options of the group of GPUs, from those of the hosts' group. Its learnt time limits allow
// for the retries of the connections that carry its messages.
comm::GroupOptions DeviceGroupOptions(const Job::State& state, DeviceTransport transport,
                                      const comm::GroupOptions& hosts);

// The last part of OpenDevice: collective over the ranks of `hosts`, makes state.device_group.
// `seams`: NCCL, or why there is none. REQUIRES: state.device is a GPU, `transport` is not kNone.
absl::Status MakeDeviceGroup(Job::State& state, DeviceTransport transport,
                             const absl::StatusOr<comm::NcclSeams>& seams,
                             const comm::GroupOptions& hosts);

}  // namespace dtrain
