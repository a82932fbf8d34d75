// Counts operations of LibTorch by their names.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "ATen/record_function.h"

namespace dtrain::testing {

// Counts operations of the given names on all threads while it lives. One at a time.
class OperationCount {
 public:
  explicit OperationCount(std::set<std::string> names) {
    Names() = std::move(names);
    Count() = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          Count() += static_cast<int>(Names().count(function.name()));
          return nullptr;
        }));
  }
  OperationCount(const OperationCount&) = delete;
  OperationCount& operator=(const OperationCount&) = delete;
  ~OperationCount() { at::removeCallback(handle_); }
  static int& Count() {
    static int count = 0;
    return count;
  }

 private:
  static std::set<std::string>& Names() {
    static std::set<std::string> names;
    return names;
  }
  at::CallbackHandle handle_;
};

// Counts operations that make a host wait for a device's numbers.
class WaitingOperations : public OperationCount {
 public:
  WaitingOperations()
      : OperationCount({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero",
                        "aten::nonzero", "dtrain::document_lengths"}) {}
};

}  // namespace dtrain::testing
