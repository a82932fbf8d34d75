// Checks a checkpoint's files against its manifest. Thread-safe if the storage is.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

enum class Verify {
  kSizes,   // Every file is there with its size; blocks are checked as they are read.
  kHashes,  // Every byte of every file.
};

// The manifest of `id`. NotFound: not committed. InvalidArgument: damaged, or written for another
// step.
absl::StatusOr<Manifest> ReadManifest(Storage& storage, StepId id);

// Cancelled: another thread has set `gives_up`, which may be null. `work`, such as "copy", is
// named.
absl::Status CheckGoesOn(const std::atomic<bool>* gives_up, absl::string_view work);

// InvalidArgument names the file and the first block that differs. With `from_medium` the cache is
// dropped first. A damaged copy is removed where the storage has another one, which then counts.
// Cancelled: another thread has set `gives_up`, which may be null.
absl::Status VerifyFile(Storage& storage, const std::string& path, const FileChecksum& expected,
                        Verify verify, bool from_medium = false,
                        const std::atomic<bool>* gives_up = nullptr);

// VerifyFile for each file of the manifest; the first error.
absl::Status VerifyFiles(Storage& storage, const Manifest& manifest, Verify verify,
                         const std::atomic<bool>* gives_up = nullptr);

// The commits that have a manifest (readable or not), newest epoch and step first.
absl::StatusOr<std::vector<StepId>> ListCheckpoints(Storage& storage);

}  // namespace dtrain::checkpoint
