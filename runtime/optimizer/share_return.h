// The way back of new values from a GPU's optimizer to a share of the weights that is in a file
// (offload_param "nvme" without offload_optimizer): kernels write a bucket's values to page-locked
// memory, which has one address for both, and the host copies them to the mapped file, while
// kernels of later buckets run. Values in fp32 are their own master and are brought along first.
//
// A step that uses it waits for the device. For the thread that trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "runtime/device/device.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/update_pieces.h"

namespace dtrain {

struct ShareReturnOptions {
  std::byte* share = nullptr;  // [shard elements] of `dtype`.
  DType dtype = DType::kFloat32;
  int64_t elements_max = 0;                    // The most between the ends of one bucket's pieces.
  absl::Duration timeout = absl::Minutes(10);  // For one bucket.
};

class ShareReturn {
 public:
  // Internal: there is no pinned memory. REQUIRES: `device` and the share outlive it.
  static absl::StatusOr<std::unique_ptr<ShareReturn>> Create(const Device& device,
                                                             const ShareReturnOptions& options);
  // Waits for kernels under way.
  ~ShareReturn();

  // The memory in which kernels that are queued next find and leave the values of `pieces`, which
  // all must be written. Waits, and copies to the file, when all buffers are in use. REQUIRES:
  // pieces ascend by `local`, and are of one bucket.
  absl::StatusOr<EngineState::ValueWindow> Begin(absl::Span<const UpdatePiece> pieces);
  // They are queued.
  absl::Status End();
  // Waits until all is in the file. After an error some values are of this update, some of the one
  // before.
  absl::Status Flush();

 private:
  struct Slot {
    std::unique_ptr<PinnedMemory> memory;
    std::unique_ptr<DeviceEvent> written;
    std::vector<UpdatePiece> runs;  // Values in `memory` that are to be copied.
    std::byte* at(int64_t local, size_t width) const {
      return static_cast<std::byte*>(memory->data()) +
             static_cast<size_t>(local - runs.front().local) * width;
    }
  };
  ShareReturn(const Device& device, const ShareReturnOptions& options)
      : device_(device), options_(options), width_(DTypeBytes(options.dtype)) {}
  absl::Status Land(Slot& slot) const;
  std::byte* InShare(const UpdatePiece& run) const {
    return options_.share + static_cast<size_t>(run.local) * width_;
  }
  size_t BytesOf(const UpdatePiece& run) const {
    return static_cast<size_t>(run.elements) * width_;
  }

  const Device& device_;
  const ShareReturnOptions options_;
  const size_t width_;
  std::vector<Slot> slots_;  // A ring.
  size_t next_ = 0;
};

}  // namespace dtrain
