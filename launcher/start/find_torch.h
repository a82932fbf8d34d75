// Finds the LibTorch of an installed dtrain, and checks that it has the release that dtrain was
// built with.
//
// Packages contain no LibTorch: a wheel uses the torch package of its environment, a Debian package
// or an unpacked archive the folder that lib/dtrain/torch links to. The first of these that exists:
//   1. DTRAIN_TORCH, which must hold LibTorch when it is set
//   2. PREFIX/lib/dtrain/torch, a link
//   3. PREFIX/torch (pip's --target)
//   4. torch in the site-packages (dist-packages) that Python would look into: of PREFIX when that
//      is a virtual environment, the user's own (pip's --user), those of PREFIX otherwise. A
//      virtual environment has the user's and the interpreter's only if it takes system packages.
// Where several exist, the first of the right release is taken. Reads files only; no state,
// thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"

namespace dtrain::launcher {

struct TorchSearch {
  std::string prefix;       // The folder that holds bin/ of this installation.
  std::string environment;  // The value of DTRAIN_TORCH; "" when it is not set.
  std::string release;      // Release that dtrain was built with ("2.11.0"); "": any is accepted.
  std::string user_base;    // Folder of pip's --user; "": Python would not look there.
};

struct Torch {
  std::string folder;   // Holds include/ and lib/libtorch_cpu.so; without links.
  std::string release;  // "2.11.0+cu130"; "" when no file says.
};

// The candidates in order, without number 1. Reads the folders of the prefixes.
std::vector<std::string> TorchCandidates(const std::string& prefix, const std::string& user_base);

// Python's rule for the user's own packages: PYTHONUSERBASE, else HOME/.local; "" where
// PYTHONNOUSERSITE is set, or neither is known. Pure.
std::string UserBaseOf(const Environment& environment);

// NotFound says where it looked; FailedPrecondition names the release that was found instead. Both
// say what to do.
absl::StatusOr<Torch> FindTorch(const TorchSearch& search);

// The release that torch's version.py names, else LibTorch's file build-version; "" if neither.
// Pure.
std::string TorchReleaseIn(absl::string_view version_py, absl::string_view build_version);

// Whether programs built with release `built` may load `found`: the same major and minor number, as
// LibTorch's classes change their layout between those. Pure.
bool TorchReleasesAgree(absl::string_view built, absl::string_view found);

// The search of this process: its own folder, `environment` and the release of the build.
TorchSearch OwnTorchSearch(const Environment& environment);

}  // namespace dtrain::launcher
