// Opens the CUDA plugin on demand: the door from a program that links no CUDA library to NCCL, the
// CUDA runtime and dtrain's CUDA kernels.
//
// Thread-safe. The plugin is opened once a process and stays mapped.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/nccl/nccl_group.h"

namespace dtrain::comm {

struct PluginTable;

class Plugin {
 public:
  explicit Plugin(const PluginTable* table, std::string path)
      : table_(table), path_(std::move(path)) {}

  CudaApi& cuda() const;
  // NotFound when libnccl.so.2 cannot be opened; says what was tried.
  absl::StatusOr<NcclApi*> nccl() const;
  // All that NcclGroup::Create needs; the error of nccl() otherwise.
  absl::StatusOr<NcclSeams> seams() const;
  // For kernels::AsCudaKernelTable.
  const void* kernel_table() const;
  // The number of GPUs, at least 1. FailedPrecondition with CUDA's reason when there is none.
  absl::StatusOr<int> DeviceCount() const;
  const std::string& path() const { return path_; }
  // The version that it was built from, which is this program's.
  const char* version() const;

 private:
  const PluginTable* const table_;
  const std::string path_;
};

// The process's plugin: libdtrain_cuda.so from DTRAIN_PLUGIN_DIR when that is set, else from the
// folder of the program or ../lib beside it. NotFound lists the folders; FailedPrecondition: it is
// there but cannot be loaded (dlopen's text) or is of another build.
absl::StatusOr<Plugin*> OpenCudaPlugin();

// The same from the first of `folders` that has the file; each call opens anew.
absl::StatusOr<Plugin> OpenCudaPluginIn(const std::vector<std::string>& folders);

}  // namespace dtrain::comm
