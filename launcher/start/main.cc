// In an installed tree, bin/dtrain-gpt and the other programs that use LibTorch are this program
// under their names. It finds LibTorch and executes lib/dtrain/NAME in its place.
//
// The dynamic loader cannot search as FindTorch does, and its message when LibTorch is missing or
// of another release helps nobody. The process id stays the same, so nothing changes for a
// launcher.
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
#include "base/text/text.h"
#include "launcher/start/find_torch.h"

namespace dtrain::launcher {
namespace {

// The variable's value with `folder` in front; unchanged when it already begins with it.
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
    const std::string line = Printable(std::string(torch.status().message()));
    std::fprintf(stderr, "%s: %s\n", name.c_str(), line.c_str());
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
