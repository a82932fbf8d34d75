// What bin/dtrain-gpt and the other programs that use LibTorch are in an installed tree: this
// program under their names. It finds LibTorch and becomes lib/dtrain/NAME.
//
// The dynamic loader cannot search as FindTorch does, and what it says when LibTorch is missing, or
// is another release, helps nobody. The process stays the same, so a launcher's view of it does
// too.
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"
#include "base/status.h"
#include "base/system/own_program.h"
#include "launcher/start/find_torch.h"

namespace dtrain::launcher {
namespace {

// `folder` before what the variable holds already; unchanged when it leads the list.
std::string WithFolderFirst(const std::string& folder, absl::string_view before) {
  if (before.empty()) {
    return folder;
  }
  const bool leads = before == folder || before.substr(0, folder.size() + 1) == folder + ":";
  return leads ? std::string(before) : absl::StrCat(folder, ":", before);
}

int Start(const std::string& name, char** argv) {
  const Environment environment = ReadEnvironment();
  const TorchSearch search = OwnTorchSearch(environment);
  const absl::StatusOr<Torch> torch = FindTorch(search);
  if (!torch.ok()) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), std::string(torch.status().message()).c_str());
    return kExitUsage;
  }
  const auto before = environment.find("LD_LIBRARY_PATH");
  const std::string folders =
      WithFolderFirst(torch->folder + "/lib", before == environment.end() ? "" : before->second);
  setenv("LD_LIBRARY_PATH", folders.c_str(), /*overwrite=*/1);
  const std::string program = absl::StrCat(search.prefix, "/lib/dtrain/", name);
  execv(program.c_str(), argv);
  std::fprintf(stderr, "%s: cannot execute %s: %s; install dtrain again\n", name.c_str(),
               program.c_str(), std::strerror(errno));
  return kExitUsage;
}

}  // namespace
}  // namespace dtrain::launcher

int main(int, char** argv) {
  const std::string own = dtrain::OwnProgram();
  return dtrain::launcher::Start(own.substr(own.rfind('/') + 1), argv);
}
