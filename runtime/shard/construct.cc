#include "dtrain/construct.h"

#include <string>
#include <thread>

#include "base/check.h"
#include "c10/core/CPUAllocator.h"
#include "c10/util/Exception.h"
#include "runtime/offload/mapped_file.h"
#include "runtime/shard/construction_file.h"

namespace dtrain {
namespace {

constexpr size_t kSmallest = size_t{1} << 20;  // Bytes; less is ordinary memory.

void Delete(void* file) { delete static_cast<MappedFile*>(file); }

c10::DataPtr MapFile(size_t bytes, const std::string& folder) {
  auto file = MappedFile::Create(folder, bytes, "a weight in the run directory");
  TORCH_CHECK(file.ok(), std::string(file.status().message()),
              "; free space there or take another --run-dir");
  auto* const owner = new MappedFile(*std::move(file));
  return {owner->data(), owner, &Delete, c10::DeviceType::CPU};
}

// LibTorch's allocator with large blocks of one thread in files. Installed for a scope; what it
// gave out outlives that.
class FileAllocator final : public c10::Allocator {
 public:
  void Start(const std::string& folder) {
    DT_CHECK(folder_.empty()) << "two ConstructionScopes at a time";
    folder_ = folder;
    thread_ = std::this_thread::get_id();
    before_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(this, kPriority);
  }
  void Stop() {
    c10::SetCPUAllocator(before_, kPriority);
    folder_.clear();
    thread_ = std::thread::id();
  }

  c10::DataPtr allocate(size_t bytes) override {
    // What was made in the scope may grow after it, through this allocator.
    const bool ours = bytes >= kSmallest && std::this_thread::get_id() == thread_;
    return ours ? MapFile(bytes, folder_) : c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr uint8_t kPriority = 100;
  c10::Allocator* before_ = nullptr;
  std::string folder_;
  std::thread::id thread_;
};

FileAllocator& TheAllocator() {
  static auto* const allocator = new FileAllocator;
  return *allocator;
}

}  // namespace

bool IsInConstructionFile(const at::Tensor& tensor) {
  return tensor.storage().data_ptr().get_deleter() == &Delete;
}

ConstructionScope::ConstructionScope(const Job& job) : active_(job.config().zero_stage() == 3) {
  if (active_) {
    TheAllocator().Start(job.run_dir());
  }
}

ConstructionScope::~ConstructionScope() {
  if (active_) {
    TheAllocator().Stop();
  }
}

}  // namespace dtrain
