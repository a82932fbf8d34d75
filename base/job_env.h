// The contract between launchers and ranks: the environment variables that give a rank's number,
// sizes and addresses.
//
// The only place of dtrain that reads the environment. ResolveJobEnv is a pure function of a map,
// so every launcher's variables are tested without that launcher. Rules in order (the first that
// fires wins): torchrun or dtrain launch, Open MPI, MPICH Hydra, a Slurm step, PMI, alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtrain {

using Environment = std::map<std::string, std::string>;

// Names that `dtrain launch` sets for its ranks besides torchrun's RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and OMP_NUM_THREADS.
namespace env {
inline constexpr char kRunId[] = "DTRAIN_RUN_ID";     // Names shm segments and records.
inline constexpr char kRunDir[] = "DTRAIN_RUN_DIR";   // Default for --run-dir.
inline constexpr char kAttempt[] = "DTRAIN_ATTEMPT";  // Restarts so far, from 0.
// 1 in the attempt that begins the job, which alone follows --fresh; 0 in the others.
inline constexpr char kBeginsJob[] = "DTRAIN_BEGINS_JOB";
inline constexpr char kStore[] = "DTRAIN_STORE";           // host:port of the coordinator's store.
inline constexpr char kTokenFd[] = "DTRAIN_TOKEN_FD";      // Inherited descriptor: 32 bytes.
inline constexpr char kTokenFile[] = "DTRAIN_TOKEN_FILE";  // 0600 file: 32 bytes or 64 hex digits.
inline constexpr char kAgentSocket[] = "DTRAIN_AGENT_SOCKET";  // Unix socket of the node's agent.
// 1: the agent gives a process whose attempt has ended another one (base/next_attempt.h).
// kReserveProcess: this process is no rank yet, and waits for its first attempt in the same way.
inline constexpr char kReuse[] = "DTRAIN_REUSE_PROCESS";
inline constexpr char kReserveProcess[] = "reserve";
inline constexpr char kHost[] =
    "DTRAIN_HOST_ADDRESS";                           // Address by which other nodes reach this one.
inline constexpr char kNodeId[] = "DTRAIN_NODE_ID";  // Same for ranks that may share memory.
// RDMA device nearest to the rank's GPU and cores.
inline constexpr char kRdmaDevice[] = "DTRAIN_RDMA_DEVICE";
inline constexpr char kPluginDirectory[] = "DTRAIN_PLUGIN_DIR";  // Folder of libdtrain_cuda.so.
inline constexpr char kLogLevel[] = "DTRAIN_LOG_LEVEL";          // debug, info, warning, error.
// 1: the log shows the backtrace of an exception, and errors of the loss closure name the last
// operation that read a weight.
inline constexpr char kBacktrace[] = "DTRAIN_BACKTRACE";
inline constexpr char kLogBytesMax[] = "DTRAIN_LOG_BYTES_MAX";  // For `dtrain launch` alone.
}  // namespace env

enum class LaunchSource { kAlone, kDtrain, kTorchrun, kOpenMpi, kMpich, kSlurm, kPmi };
const char* LaunchSourceName(LaunchSource source);

struct JobEnv {
  LaunchSource source = LaunchSource::kAlone;
  int rank = 0;
  int world_size = 1;
  std::string world_size_name;  // Variable that gives world_size; "" when alone.
  int local_rank = 0;
  int local_world_size = 1;  // 0: unknown (PMI only); ranks then count by node_id in the store.
  int node_rank = 0;         // -1: unknown.
  std::string run_id;        // The same on all ranks of a run; "" when the launcher sets none.
  std::string run_dir;       // Default of --run-dir; "" when the launcher names none.
  int attempt = 0;
  bool begins_job = true;  // The first attempt, whose number need not be 0 in an elastic job.
  std::string
      // Host on which the store listens or, under other launchers, on which rank 0 may listen.
      store_host;
  int store_port = 0;
  bool store_is_served = false;    // True: a dtrain coordinator listens there already.
  bool torch_agent_store = false;  // torchrun's TCPStore listens on store_host:store_port.
  bool reuse = false;              // The agent reuses processes that stay.
  int token_fd = -1;
  std::string token_file;
  std::string agent_socket;
  std::string host_address;  // "": use the address from which this host reaches the store.
  std::string node_id;       // "": use the host name and boot id.
  std::string rdma_device;   // "": the launcher knows none.

  // Ranks that share this node's cores and memory; all of them where the launcher does not say.
  int ranks_on_node() const { return local_world_size > 0 ? local_world_size : world_size; }
};

// The environment of this process.
Environment ReadEnvironment();

// The folder to open the CUDA plugin from; "" when none is named.
std::string PluginDirectory(const Environment& environment);

// The text of DTRAIN_LOG_LEVEL; "" when it is not set.
std::string LogLevelName(const Environment& environment);

// Whether the log shows where exceptions come from: kBacktrace is neither empty nor 0.
bool WantsBacktrace(const Environment& environment);

// Whether TERM says that the terminal understands no control sequences.
bool TerminalIsDumb(const Environment& environment);

// Whether the user configured glibc's allocator.
bool TunesHeap(const Environment& environment);

// Whether `dtrain launch`, torchrun or the user has chosen a rank's number of threads.
bool ThreadsAreChosen(const Environment& environment);

// Whether the user configured LibTorch's allocator of GPU memory (PYTORCH_ALLOC_CONF, or its older
// name PYTORCH_CUDA_ALLOC_CONF).
bool AllocatorIsConfigured(const Environment& environment);

// The rank, sizes and addresses of this process. Errors name the variable, its value and what is
// allowed, and refuse a batch script that would wait for ever (a Slurm job with several tasks,
// outside a step).
absl::StatusOr<JobEnv> ResolveJobEnv(const Environment& environment);

// Whether the agent has started this process ahead of its first attempt (kReserveProcess). It is no
// rank then, whatever a scheduler's variables say.
bool IsReserve(const Environment& environment);

// Expands a Slurm host list, e.g. "gpu-[007-009,011],a,b[1-2]c[3-4]": zero padding is kept, several
// brackets give the product, left to right. At most 65,536 names.
absl::StatusOr<std::vector<std::string>> ExpandHostList(const std::string& text);

}  // namespace dtrain
