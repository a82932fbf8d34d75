#include "dtrain/construct.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "c10/core/CPUAllocator.h"
#include "c10/util/Exception.h"
#include "runtime/memory/available_memory.h"
#include "runtime/model/construction_file.h"
#include "runtime/offload/mapped_file.h"
#include "runtime/plan/layout/zero_policy.h"

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

// Counts the blocks of one scope against the memory that its rank may use.
class Budget {
 public:
  explicit Budget(double available) : available_(static_cast<int64_t>(available)) {}
  void Take(size_t bytes) {
    const int64_t taken = taken_ += static_cast<int64_t>(bytes);
    if (taken > available_) {
      GiveBack(bytes);
      TORCH_CHECK(
          false,
          absl::StrFormat(
              "the model's weights take more than %.3g GB on a rank, which has %.3g GB: "
              "zero_optimization.stage 3 makes them in files of the run directory and shares them "
              "out over the ranks",
              static_cast<double>(taken) * 1e-9, static_cast<double>(available_) * 1e-9));
    }
  }
  void GiveBack(size_t bytes) { taken_ -= static_cast<int64_t>(bytes); }

 private:
  const int64_t available_;
  std::atomic<int64_t> taken_{0};
};

// A block of memory that counts as long as it lives, which may be longer than the scope.
struct CountedBlock {
  c10::DataPtr memory;
  std::shared_ptr<Budget> budget;
  size_t bytes;
  ~CountedBlock() { budget->GiveBack(bytes); }
};

void DeleteBlock(void* block) { delete static_cast<CountedBlock*>(block); }

// LibTorch's allocator with large blocks of one thread in files, or counted. Installed for a scope;
// what it gave out outlives that.
class ConstructionAllocator final : public c10::Allocator {
 public:
  // `budget` null: in files of `folder`.
  void Start(std::shared_ptr<Budget> budget, const std::string& folder) {
    DT_CHECK(thread_ == std::thread::id()) << "two ConstructionScopes at a time";
    budget_ = std::move(budget);
    folder_ = folder;
    thread_ = std::this_thread::get_id();
    before_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(this, kPriority);
  }
  void Stop() {
    c10::SetCPUAllocator(before_, kPriority);
    thread_ = std::thread::id();
    budget_.reset();
  }

  c10::DataPtr allocate(size_t bytes) override {
    // Tensors that were made in the scope may grow after it, through this allocator.
    if (bytes < kSmallest || std::this_thread::get_id() != thread_) {
      return c10::GetDefaultCPUAllocator()->allocate(bytes);
    }
    return budget_ == nullptr ? MapFile(bytes, folder_) : Count(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::DataPtr Count(size_t bytes) const {
    budget_->Take(bytes);
    std::unique_ptr<CountedBlock> block(new CountedBlock{{}, budget_, bytes});
    block->memory = c10::GetDefaultCPUAllocator()->allocate(bytes);
    void* const data = block->memory.get();
    return {data, block.release(), &DeleteBlock, c10::DeviceType::CPU};
  }

  static constexpr uint8_t kPriority = 100;
  c10::Allocator* before_ = nullptr;
  std::shared_ptr<Budget> budget_;
  std::string folder_;
  std::thread::id thread_;
};

ConstructionAllocator& TheAllocator() {
  static auto* const allocator = new ConstructionAllocator;
  return *allocator;
}

}  // namespace

bool IsInConstructionFile(const at::Tensor& tensor) {
  return tensor.storage().data_ptr().get_deleter() == &Delete;
}

ConstructionScope::ConstructionScope(Job& job) {
  std::shared_ptr<Budget> budget;
  if (!plan::ZeroPolicy::Of(job.config()).shards_weights) {
    const auto available = LeastAvailable(job.group(), ReadRankMemory());
    TORCH_CHECK(available.ok(), std::string(available.status().message()));
    budget = std::make_shared<Budget>(*available);
  }
  TheAllocator().Start(std::move(budget), job.run_dir());
}

ConstructionScope::~ConstructionScope() { TheAllocator().Stop(); }

}  // namespace dtrain
