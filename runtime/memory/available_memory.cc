#include "runtime/memory/available_memory.h"

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/system/available_memory.h"

namespace dtrain {
plan::RankMemory ReadRankMemory() {
  const AvailableMemory memory = ReadAvailableMemory();
  return {memory.machine, memory.cgroup, memory.machine_bytes, memory.cgroup_bytes};
}

absl::StatusOr<plan::RankMemory> ReadDeviceMemory(const Device& device) {
  comm::CudaApi& api = device.api();
  comm::CudaDeviceFacts facts;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  DT_RETURN_IF_ERROR(
      device.Check(api.DeviceFacts(device.place().index, &facts), "cudaGetDeviceProperties"));
  DT_RETURN_IF_ERROR(device.Check(api.MemoryInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  plan::RankMemory memory;
  memory.machine = std::hash<std::string>()(std::string(facts.uuid.begin(), facts.uuid.end()));
  memory.machine_available = static_cast<int64_t>(free_bytes);
  memory.cgroup_available = AvailableMemory::kNoLimit;
  return memory;
}

absl::StatusOr<double> LeastAvailable(comm::Group& group, const plan::RankMemory& mine) {
  plan::RankMemory sent = mine;
  std::vector<plan::RankMemory> all(static_cast<size_t>(group.size()));
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      group.AllGather({&sent, sizeof(sent), DType::kUInt8, {}},
                                      {all.data(), all.size() * sizeof(sent), DType::kUInt8, {}},
                                      {.name = "available memory", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  return plan::LeastAvailable(all);
}

}  // namespace dtrain
