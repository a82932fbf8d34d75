// The checks of `dtrain doctor`: whether this node is fit to run ranks and, if not, what to do.
// ReadDoctorFacts reads the machine; the rest is pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/system/cgroup.h"
#include "launcher/start/find_torch.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {

enum class Verdict {
  kOk,
  kNote,     // A part that this node does not have.
  kWarning,  // Ranks work, but slowly or not at scale.
  kProblem,  // Ranks would fail.
};

struct Finding {
  std::string name;  // "cores", "memory", "/dev/shm", "GPU driver", "NIC mlx5_0", ...
  Verdict verdict = Verdict::kOk;
  std::string text;    // The finding itself.
  std::string advice;  // Advice on what to do; "" if nothing.
};

// The machine's facts that are no part of the topology.
struct DoctorFacts {
  uint64_t shm_bytes = 0;  // Size of /dev/shm; 0: none.
  uint64_t shm_free_bytes = 0;
  uint64_t memory_total_bytes = 0;
  uint64_t memory_available_bytes = 0;
  uint64_t cgroup_memory_bytes = 0;     // Limit of this cgroup, or of one above it; 0: none.
  uint64_t cgroup_available_bytes = 0;  // Bytes left of that limit.
  uint64_t open_files_max = 0;          // RLIMIT_NOFILE, soft.
  uint64_t locked_memory_bytes = 0;     // RLIMIT_MEMLOCK, soft; all ones: unlimited.
  std::string verbs;                    // "" when libibverbs opens, else why not.
  std::string torch_path;               // "" when LibTorch was not found.
  std::string torch_version;
  std::string torch_error;  // Why LibTorch was not found, and what to do.
  std::string nccl;         // "NCCL 2.28.9 (/path)"; "" when it does not open.
  std::string nccl_error;
  std::string cuda_plugin_path;  // "" when there is no libdtrain_cuda.so.
  int built_cuda = 0;            // The CUDA that dtrain is built for (13000: 13.0); 0: without.
};

struct DoctorOptions {
  TorchSearch torch;
  std::string plugin_folder;  // The value of DTRAIN_PLUGIN_DIR.
  SystemRoots roots;
};

// Reads this machine. Opens libnccl.so.2 and libibverbs.so.1 when they are there.
DoctorFacts ReadDoctorFacts(const DoctorOptions& options);

// The findings, in the order to show them. Pure.
std::vector<Finding> Diagnose(const Topology& topology, const DoctorFacts& facts);

}  // namespace dtrain::launcher
