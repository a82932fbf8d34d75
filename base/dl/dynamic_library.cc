#include "base/dl/dynamic_library.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtrain {

absl::StatusOr<DynamicLibrary> DynamicLibrary::Open(const std::vector<std::string>& names) {
  std::string last_error;
  for (const std::string& name : names) {
    if (void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return DynamicLibrary(handle, name);
    }
    last_error = dlerror();
  }
  return absl::NotFoundError(
      absl::StrCat("none of ", absl::StrJoin(names, ", "), " could be loaded: ", last_error));
}

DynamicLibrary::DynamicLibrary(void* handle, std::string name)
    : handle_(handle), name_(std::move(name)) {}
DynamicLibrary::DynamicLibrary(DynamicLibrary&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), name_(std::move(other.name_)) {}
DynamicLibrary& DynamicLibrary::operator=(DynamicLibrary&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(name_, other.name_);
  return *this;
}
DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr) {
    dlclose(handle_);
  }
}

absl::StatusOr<void*> DynamicLibrary::Symbol(const char* symbol) const {
  void* const address = dlsym(handle_, symbol);
  if (address == nullptr) {
    return absl::NotFoundError(absl::StrCat(name_, " has no symbol ", symbol));
  }
  return address;
}

}  // namespace dtrain
