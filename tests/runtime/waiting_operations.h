// Counts operations of LibTorch that would make a host wait for a device's numbers.
#pragma once

#include <memory>
#include <string>

#include "ATen/record_function.h"

namespace dtrain::testing {

// Those of all threads while one of this class lives; one at a time.
class WaitingOperations {
 public:
  WaitingOperations() {
    Count() = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          const std::string name = function.name();
          if (name == "aten::item" || name == "aten::_local_scalar_dense" ||
              name == "aten::is_nonzero" || name == "aten::nonzero") {
            ++Count();
          }
          return nullptr;
        }));
  }
  WaitingOperations(const WaitingOperations&) = delete;
  WaitingOperations& operator=(const WaitingOperations&) = delete;
  ~WaitingOperations() { at::removeCallback(handle_); }
  static int& Count() {
    static int count = 0;
    return count;
  }

 private:
  at::CallbackHandle handle_;
};

}  // namespace dtrain::testing
