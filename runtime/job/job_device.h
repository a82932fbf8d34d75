// The device of a job's rank and the group that its gradients travel over.
#pragma once

#include "absl/status/status.h"
#include "comm/group.h"
#include "runtime/job/job_state.h"

namespace dtrain {

// Collective over state.group: chooses the device that `device` in the configuration asks for,
// opens it, and makes state.device_group with `options` as of the hosts' group. Before LibTorch is
// asked for anything of CUDA. FailedPrecondition: no such device, or ranks that differ.
absl::Status OpenDevice(Job::State& state, const comm::GroupOptions& options);

}  // namespace dtrain
