#include "runtime/checkpoint/journal/journal_gradient.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/flat.h"
#include "runtime/device/device.h"
#include "runtime/model/torch_pool.h"

namespace dtrain {
namespace {

// Elements that pass through a buffer at once.
constexpr int64_t kChunk = 1 << 20;

// Puts what was read where the update takes it: on a GPU through page-locked memory.
class GradientPut {
 public:
  explicit GradientPut(const Device& device) : device_(device) {}

  absl::Status Put(int64_t count, kernels::ConstFlat from, float* to) {
    if (device_.is_host()) {
      kernels::CopyCpu(count, from, {to}, TorchParallelFor);
      return absl::OkStatus();
    }
    if (wide_ == nullptr) {
      DT_ASSIGN_OR_RETURN(wide_, PinnedMemory::Create(device_, kChunk * sizeof(float)));
    }
    kernels::CopyCpu(count, from, {wide_->data()}, TorchParallelFor);
    DT_RETURN_IF_ERROR(device_.Copy(to, wide_->data(), static_cast<size_t>(count) * sizeof(float)));
    return device_.Synchronize();  // The memory is used again.
  }

 private:
  const Device& device_;
  std::unique_ptr<PinnedMemory> wide_;
};

}  // namespace

absl::Status ReadGradient(const EngineState& state,
                          absl::Span<const std::unique_ptr<checkpoint::SegmentReader>> files,
                          int64_t step, const GradientMemory& gradient) {
  int64_t missing = 0;
  for (const plan::OwnedRange& own : state.owned) {
    missing += own.flat.elements();
  }
  std::vector<std::byte> buffer;
  GradientPut put(state.flat->device());
  for (const auto& file : files) {
    const DType dtype = file->header().dtype;
    const size_t width = DTypeBytes(dtype);
    int64_t stored = 0;  // Elements of the file before the range.
    for (const checkpoint::ElementRange& range : file->header().ranges) {
      for (const plan::OwnedRange& own : state.owned) {
        const plan::FlatRange shared = plan::Intersect({range.begin, range.end}, own.flat);
        for (int64_t begin = shared.begin; begin < shared.end; begin += kChunk) {
          const int64_t count = std::min(kChunk, shared.end - begin);
          buffer.resize(static_cast<size_t>(count) * width);
          DT_RETURN_IF_ERROR(
              file->ReadGradient(step, static_cast<uint64_t>(stored + begin - range.begin) * width,
                                 absl::MakeSpan(buffer)));
          DT_RETURN_IF_ERROR(
              put.Put(count, {buffer.data(), dtype}, gradient.at(begin, own.local_of(begin))));
          missing -= count;
        }
      }
      stored += range.end - range.begin;
    }
  }
  return missing == 0
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrFormat(
                   "the journal of step %d lacks %d elements of the gradient", step, missing));
}

}  // namespace dtrain
