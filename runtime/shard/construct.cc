#include "dtrain/construct.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/unique_fd.h"
#include "c10/core/CPUAllocator.h"
#include "c10/util/Exception.h"

namespace dtrain {
namespace {

constexpr size_t kSmallest = size_t{1} << 20;  // Bytes; less is ordinary memory.

// Memory of one tensor.
struct Mapping {
  void* data = nullptr;
  size_t bytes = 0;
  static void Delete(void* context) {
    const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
    munmap(mapping->data, mapping->bytes);  // The file has no name and no other owner: it is gone.
  }
};

[[noreturn]] void Fail(const char* what, size_t bytes, const std::string& folder, int error) {
  TORCH_CHECK(false, "cannot ", what, " a file of ", bytes, " bytes for a weight in ", folder, ": ",
              std::strerror(error), "; free space there or take another --run-dir");
}

c10::DataPtr MapFile(size_t bytes, const std::string& folder) {
  std::string path = absl::StrCat(folder, "/weight-XXXXXX");
  const UniqueFd file(mkostemp(path.data(), O_CLOEXEC));
  if (file.get() < 0) {
    Fail("create", bytes, folder, errno);
  }
  unlink(path.c_str());
  // Reserved now, so that a full disk is an error here and not a SIGBUS later.
  if (const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    Fail("reserve", bytes, folder, error);
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) {
    Fail("map", bytes, folder, errno);
  }
  return {data, new Mapping{data, bytes}, &Mapping::Delete, c10::DeviceType::CPU};
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
  }

  c10::DataPtr allocate(size_t bytes) override {
    return bytes >= kSmallest && std::this_thread::get_id() == thread_ ? MapFile(bytes, folder_)
                                                                       : before_->allocate(bytes);
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
