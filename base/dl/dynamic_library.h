// A shared library opened at run time, so that a machine without it still runs dtrain. Move-only;
// closes the library when destroyed. Symbol is thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtrain {

class DynamicLibrary {
 public:
  // Opens the first of `names` that loads (local binding, lazy). NotFound lists the names and their
  // errors.
  static absl::StatusOr<DynamicLibrary> Open(const std::vector<std::string>& names);
  DynamicLibrary(DynamicLibrary&& other) noexcept;
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept;
  ~DynamicLibrary();

  // The address of `symbol`; NotFound names symbol and library.
  absl::StatusOr<void*> Symbol(const char* symbol) const;
  template <typename Function>
  absl::Status Bind(const char* symbol, Function** function) const {
    auto address = Symbol(symbol);
    if (address.ok()) {
      *function = reinterpret_cast<Function*>(*address);
    }
    return address.status();
  }
  const std::string& name() const { return name_; }
  // Keeps the library mapped for the life of the process: for libraries whose threads or registered
  // callbacks outlive their users.
  void LeakOnPurpose() { handle_ = nullptr; }

 private:
  DynamicLibrary(void* handle, std::string name);
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace dtrain
