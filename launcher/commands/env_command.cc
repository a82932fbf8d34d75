#include <CLI/CLI.hpp>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "base/system/own_program.h"
#include "launcher/commands/commands.h"
#include "launcher/start/find_torch.h"

namespace dtrain::launcher {
namespace {

// The variables that each rule reads for rank, size, local rank and local size.
std::vector<const char*> VariablesOf(LaunchSource source) {
  switch (source) {
    case LaunchSource::kDtrain:
    case LaunchSource::kTorchrun:
      return {"RANK",
              "WORLD_SIZE",
              "LOCAL_RANK",
              "LOCAL_WORLD_SIZE",
              "GROUP_RANK",
              "MASTER_ADDR",
              "MASTER_PORT",
              "TORCHELASTIC_RUN_ID",
              "TORCHELASTIC_RESTART_COUNT"};
    case LaunchSource::kOpenMpi:
      return {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_LOCAL_SIZE"};
    case LaunchSource::kMpich:
      return {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
    case LaunchSource::kSlurm:
      return {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
              "SLURM_NODEID", "SLURM_STEP_NODELIST"};
    case LaunchSource::kPmi:
      return {"PMI_RANK", "PMI_SIZE"};
    case LaunchSource::kAlone:
      return {};
  }
  return {};
}

void PrintVariables(const std::vector<const char*>& names, const Environment& environment) {
  for (const char* name : names) {
    const auto found = environment.find(name);
    std::printf("  %-28s %s\n", name,
                found == environment.end() ? "(unset)" : found->second.c_str());
  }
}

int PrintTorch(const Environment& environment) {
  const absl::StatusOr<Torch> torch = FindTorch(OwnTorchSearch(environment));
  if (!torch.ok()) {
    return EndOf("dtrain env", torch.status());
  }
  std::printf("%s\n", torch->folder.c_str());
  return kExitOk;
}

}  // namespace

int EnvCommand(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(
      "Prints which launcher started this process, which rank it is, and the variables that say "
      "so.",
      "dtrain env");
  bool prefix = false;
  bool torch = false;
  CLI::Option* const prefix_flag = app.add_flag("--prefix", prefix,
                                                "Print only the folder that dtrain is installed "
                                                "in, which CMake and pkg-config need. Default: "
                                                "off");
  app.add_flag("--torch", torch,
               "Print only the folder of the LibTorch that dtrain finds. Default: off")
      ->excludes(prefix_flag);
  app.footer(
      "Examples:\n"
      "  dtrain env\n"
      "  cmake -B build -DCMAKE_PREFIX_PATH=$(dtrain env --prefix)\n"
      "  torchrun --no-python --nproc-per-node 2 dtrain env\n"
      "  srun -N2 dtrain env");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  if (prefix) {
    std::printf("%s\n", OwnPrefix().c_str());
    return kExitOk;
  }
  if (torch) {
    return PrintTorch(environment);
  }
  const absl::StatusOr<JobEnv> job = ResolveJobEnv(environment);
  if (!job.ok()) {
    return EndOf("dtrain env", job.status());
  }
  const auto known = [](int value) { return value < 0 ? "unknown" : absl::StrCat(value); };
  std::printf("launcher     %s\n", LaunchSourceName(job->source));
  std::printf("rank         %d of %d\n", job->rank, job->world_size);
  std::printf("local rank   %d of %s\n", job->local_rank,
              job->local_world_size == 0 ? "unknown" : absl::StrCat(job->local_world_size).c_str());
  std::printf("node         %s\n", known(job->node_rank).c_str());
  std::printf("attempt      %d\n", job->attempt);
  std::printf("run id       %s\n", job->run_id.empty() ? "(none)" : job->run_id.c_str());
  std::printf("run dir      %s\n", job->run_dir.empty() ? "(none)" : job->run_dir.c_str());
  if (job->source != LaunchSource::kAlone) {
    std::printf("store        %s:%d (%s)\n", job->store_host.c_str(), job->store_port,
                job->store_is_served ? "served by the coordinator" : "rank 0 serves it");
  }
  std::printf("job token    %s\n", job->token_fd >= 0         ? "inherited descriptor"
                                   : !job->token_file.empty() ? job->token_file.c_str()
                                                              : "(none)");
  std::printf("from\n");
  PrintVariables(VariablesOf(job->source), environment);
  for (const auto& [name, value] : environment) {
    if (name.rfind("DTRAIN_", 0) == 0) {
      std::printf("  %-28s %s\n", name.c_str(), value.c_str());
    }
  }
  return kExitOk;
}

}  // namespace dtrain::launcher
