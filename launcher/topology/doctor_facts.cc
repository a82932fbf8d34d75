#include <sys/resource.h>
#include <sys/statvfs.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/dl/dynamic_library.h"
#include "base/dl/plugin_folders.h"
#include "base/dl/verbs.h"
#include "base/file.h"
#include "base/system/available_memory.h"
#include "base/system/mapped_libraries.h"
#include "launcher/topology/doctor.h"

#ifndef DTRAIN_BUILT_CUDA
#define DTRAIN_BUILT_CUDA 0
#endif

namespace dtrain::launcher {
namespace {

uint64_t SoftLimit(int which) {
  rlimit limit = {};
  if (getrlimit(static_cast<__rlimit_resource>(which), &limit) != 0) {
    return 0;
  }
  return limit.rlim_cur == RLIM_INFINITY ? ~uint64_t{0} : limit.rlim_cur;
}

void LookForTorch(const DoctorOptions& options, DoctorFacts* facts) {
  const absl::StatusOr<Torch> found = FindTorch(options.torch);
  if (!found.ok()) {
    facts->torch_error = std::string(found.status().message());
    return;
  }
  facts->torch_path = found->folder;
  facts->torch_version = found->release;
}

void FindNccl(DoctorFacts* facts) {
  std::vector<std::string> names;
  if (!facts->torch_path.empty()) {
    names.push_back(facts->torch_path + "/../nvidia/nccl/lib/libnccl.so.2");
  }
  names.emplace_back("libnccl.so.2");
  auto library = DynamicLibrary::Open(names);
  int (*get_version)(int*) = nullptr;
  if (!library.ok() || !library->Bind("ncclGetVersion", &get_version).ok()) {
    facts->nccl_error = std::string(library.status().message());
    return;
  }
  int version = 0;
  (void)get_version(&version);
  std::string path = library->name();
  const auto mapped = MappedLibraries();  // The path from which the loader really mapped it.
  for (const std::string& file : mapped.ok() ? *mapped : std::vector<std::string>()) {
    path = file.find("/libnccl.so") != std::string::npos ? file : path;
  }
  facts->nccl = absl::StrFormat("NCCL %d.%d.%d (%s)", version / 10000, version / 100 % 100,
                                version % 100, path);
  library->LeakOnPurpose();
}

void FindPlugin(const DoctorOptions& options, DoctorFacts* facts) {
  for (const std::string& candidate : PluginFolders(options.plugin_folder)) {
    if (FileExists(candidate + "/libdtrain_cuda.so")) {
      facts->cuda_plugin_path = candidate + "/libdtrain_cuda.so";
      return;
    }
  }
}

}  // namespace

DoctorFacts ReadDoctorFacts(const DoctorOptions& options) {
  DoctorFacts facts;
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) == 0) {
    facts.shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
    facts.shm_free_bytes = uint64_t{shm.f_bavail} * shm.f_frsize;
  }
  const AvailableMemory memory = ReadAvailableMemory(options.roots);
  facts.memory_total_bytes = static_cast<uint64_t>(memory.machine_total_bytes);
  facts.memory_available_bytes = static_cast<uint64_t>(memory.machine_bytes);
  if (memory.cgroup_limit_bytes != AvailableMemory::kNoLimit) {
    facts.cgroup_memory_bytes = static_cast<uint64_t>(memory.cgroup_limit_bytes);
    facts.cgroup_available_bytes = static_cast<uint64_t>(memory.cgroup_bytes);
  }
  facts.open_files_max = SoftLimit(RLIMIT_NOFILE);
  facts.locked_memory_bytes = SoftLimit(RLIMIT_MEMLOCK);
  const auto verbs = Verbs::Open();
  facts.verbs = verbs.ok() ? "" : std::string(verbs.status().message());
  LookForTorch(options, &facts);
  FindNccl(&facts);
  FindPlugin(options, &facts);
  facts.built_cuda = DTRAIN_BUILT_CUDA;
  return facts;
}

}  // namespace dtrain::launcher
