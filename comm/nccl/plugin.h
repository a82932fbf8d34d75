// Opens the CUDA plugin on demand. Through it a program that links no CUDA library reaches NCCL,
// the CUDA runtime and dtrain's CUDA kernels.
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
  // NotFound if libnccl.so.2 cannot be opened; the error names the files that were tried.
  absl::StatusOr<NcclApi*> nccl() const;
  // Everything that NcclGroup::Create needs, or the error of nccl().
  absl::StatusOr<NcclSeams> seams() const;
  // The argument of kernels::AsCudaKernelTable.
  const void* kernel_table() const;
  // The number of GPUs, at least 1. FailedPrecondition with CUDA's reason when there is none.
  absl::StatusOr<int> DeviceCount() const;
  const std::string& path() const { return path_; }
  // The version of the source from which it was built, which is this program's.
  const char* version() const;

 private:
  const PluginTable* const table_;
  const std::string path_;
};

// The process's plugin: libdtrain_cuda.so from DTRAIN_PLUGIN_DIR if that is set, else from the
// folder of the program or ../lib beside it. NotFound lists the folders. FailedPrecondition if the
// file is there but cannot be loaded (with dlopen's text) or is of another build.
absl::StatusOr<Plugin*> OpenCudaPlugin();

// The same from the first of `folders` that has the file; each call opens it anew.
absl::StatusOr<Plugin> OpenCudaPluginIn(const std::vector<std::string>& folders);

}  // namespace dtrain::comm
