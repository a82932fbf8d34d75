#include "tests/runtime/testing/launch_count.h"

#include <memory>
#include <set>
#include <string>

#include "ATen/core/dispatch/Dispatcher.h"
#include "tests/runtime/testing/emulated_kernels.h"
#include "tests/runtime/testing/fake_op_kernels.h"

namespace dtrain::testing {
namespace {

// The operation of LibTorch that the thread is in.
struct Open : at::ObserverContext {
  bool whole = false;      // Counts as one, whatever it is made of.
  bool has_parts = false;  // Another operation was called by it.
  bool computes = false;
};

struct Counter {
  std::vector<Open*> open;
  int wholes = 0;  // How many of those are open.
  int64_t operations = 0;
};

Counter& TheCounter() {
  thread_local Counter counter;
  return counter;
}

bool IsWhole(const std::string& name) {
  static const std::set<std::string> names = {"aten::scaled_dot_product_attention",
                                              "dtrain::fp8_product"};
  return names.count(name) > 0;
}

// An operation whose results all are what it was given, unwritten, or new memory without content.
bool Computes(const at::RecordFunction& function, const std::string& name) {
  const auto known = function.operator_name();
  if (!known.has_value()) {
    return false;  // A range of a program.
  }
  if (name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0 ||
      name == "aten::detach_" || name == "aten::resize_" || name == "aten::set_") {
    return false;
  }
  const auto found = c10::Dispatcher::singleton().findSchema(*known);
  if (!found.has_value() || found->schema().returns().empty()) {
    return found.has_value();
  }
  for (const c10::Argument& result : found->schema().returns()) {
    if (result.alias_info() == nullptr || result.alias_info()->isWrite()) {
      return true;
    }
  }
  return false;
}

std::unique_ptr<at::ObserverContext> Begin(const at::RecordFunction& function) {
  Counter& counter = TheCounter();
  const std::string name = function.name();
  auto open = std::make_unique<Open>();
  open->whole = IsWhole(name);
  open->computes = open->whole || Computes(function, name);
  if (!counter.open.empty()) {
    counter.open.back()->has_parts = counter.open.back()->has_parts || function.operator_name();
  }
  counter.open.push_back(open.get());
  counter.wholes += open->whole ? 1 : 0;
  return open;
}

void End(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  Counter& counter = TheCounter();
  const auto* const open = static_cast<Open*>(context);
  counter.open.pop_back();
  counter.wholes -= open->whole ? 1 : 0;
  if (counter.wholes == 0 && open->computes && (open->whole || !open->has_parts)) {
    ++counter.operations;
  }
}

int64_t OwnLaunches() { return EmulatedLaunches() + FakeMatmuls().all; }

}  // namespace

LaunchCount::LaunchCount() : before_(OwnLaunches()) {
  TheCounter() = {};
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(Begin, End)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}

LaunchCount::~LaunchCount() { at::removeCallback(handle_); }

int64_t LaunchCount::count() const { return OwnLaunches() - before_ + TheCounter().operations; }

}  // namespace dtrain::testing
