#include "comm/nccl/plugin.h"

#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dl/dynamic_library.h"
#include "base/dl/plugin_folders.h"
#include "base/file.h"
#include "base/job_env.h"
#include "base/status.h"
#include "comm/nccl/nccl_environment.h"
#include "comm/nccl/nccl_status.h"
#include "comm/nccl/plugin/plugin_table.h"

namespace dtrain::comm {

CudaApi& Plugin::cuda() const { return *table_->cuda(); }

absl::StatusOr<NcclApi*> Plugin::nccl() const {
  static std::once_flag told;
  std::call_once(told, SetNcclVariables);
  std::string error;
  NcclApi* const api = table_->nccl(&error);
  if (api == nullptr) {
    return absl::NotFoundError(error);
  }
  return api;
}

absl::StatusOr<NcclSeams> Plugin::seams() const {
  NcclSeams seams;
  DT_ASSIGN_OR_RETURN(seams.nccl, nccl());
  seams.cuda = &cuda();
  seams.kernels = table_->nccl_kernels;
  return seams;
}

const void* Plugin::kernel_table() const { return table_->kernels; }
const char* Plugin::version() const { return table_->version; }

absl::StatusOr<int> Plugin::DeviceCount() const {
  int count = 0;
  const CudaResult result = cuda().DeviceCount(&count);
  if (result != CudaResult::kSuccess) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no GPU can be used: ", cuda().ErrorString(result), " (", cuda().Description(), ")"));
  }
  if (count == 0) {
    return absl::FailedPreconditionError("no GPU can be used: CUDA finds none");
  }
  return count;
}

absl::StatusOr<Plugin> OpenCudaPluginIn(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const std::string path = absl::StrCat(folder, "/", kPluginFile);
    if (!FileExists(path)) {
      continue;
    }
    auto library = DynamicLibrary::Open({path});
    if (!library.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the CUDA plugin cannot be loaded: ", library.status().message()));
    }
    PluginEntry* entry = nullptr;
    DT_RETURN_IF_ERROR(library->Bind(kPluginSymbol, &entry));
    const PluginTable* const table = entry();
    if (absl::string_view(table->version) != DTRAIN_PLUGIN_VERSION) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the CUDA plugin ", path, " is of build ", table->version, "; this program is of build ",
          DTRAIN_PLUGIN_VERSION, ": build both from one tree"));
    }
    library->LeakOnPurpose();  // CUDA's and NCCL's threads outlive every user.
    return Plugin(table, path);
  }
  return absl::NotFoundError(absl::StrCat(
      "no ", kPluginFile, " (the CUDA plugin) in ", absl::StrJoin(folders, " or "),
      ": build with CUDA (nvcc on the path), or set ", env::kPluginDirectory, " to its folder"));
}

absl::StatusOr<Plugin*> OpenCudaPlugin() {
  static std::mutex mutex;
  static std::optional<Plugin> plugin;
  std::lock_guard lock(mutex);
  if (!plugin.has_value()) {
    DT_ASSIGN_OR_RETURN(Plugin opened,
                        OpenCudaPluginIn(PluginFolders(PluginDirectory(ReadEnvironment()))));
    plugin.emplace(std::move(opened));
  }
  return &*plugin;
}

}  // namespace dtrain::comm
