#include "runtime/shard/storage_observer.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "ATen/core/ivalue.h"
#include "ATen/record_function.h"
#include "absl/container/inlined_vector.h"

namespace dtrain {
namespace {

struct Watch {
  const c10::StorageImpl* storage = nullptr;
  int64_t width = 1;  // Bytes of an element.
  StorageObserver::Listener* listener = nullptr;
};

// LibTorch's callbacks are plain functions, so what is watched belongs to the process.
struct Watches {
  std::shared_mutex mutex;
  std::vector<Watch> all;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
};

Watches& TheWatches() {
  static auto* const watches = new Watches;  // Never destroyed: operations may outlive statics.
  return *watches;
}

struct Read {
  StorageObserver::Listener* listener = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};
using Reads = absl::InlinedVector<Read, 4>;

struct OperationReads : at::ObserverContext {
  Reads reads;
};

void AddRead(const Watches& watches, const c10::TensorImpl& tensor, Reads& reads) {
  if (!tensor.has_storage() || tensor.numel() == 0) {
    return;
  }
  const c10::StorageImpl* const storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  for (const Watch& watch : watches.all) {
    if (watch.storage != storage) {
      continue;
    }
    int64_t last = tensor.storage_offset();
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      last += (tensor.size(dim) - 1) * tensor.stride(dim);
    }
    // A view may be of another type (bytes, complex): what counts are elements of the watched one.
    const auto width = static_cast<int64_t>(tensor.itemsize());
    reads.push_back({watch.listener, tensor.storage_offset() * width / watch.width,
                     ((last + 1) * width + watch.width - 1) / watch.width});
  }
}

void AddReads(const Watches& watches, const c10::IValue& input, Reads& reads) {
  if (input.isTensor()) {
    AddRead(watches, *input.unsafeToTensorImpl(), reads);
  } else if (input.isList()) {
    for (const c10::IValue& item : input.toListRef()) {
      if (item.isTensor()) {
        AddRead(watches, *item.unsafeToTensorImpl(), reads);
      } else if (!item.isNone()) {
        return;  // A list of numbers.
      }
    }
  }
}

std::unique_ptr<at::ObserverContext> Before(const at::RecordFunction& operation) {
  Reads reads;
  {
    Watches& watches = TheWatches();
    const std::shared_lock lock(watches.mutex);
    for (const c10::IValue& input : operation.inputs()) {
      AddReads(watches, input, reads);
    }
  }
  if (reads.empty()) {
    return nullptr;
  }
  auto context = std::make_unique<OperationReads>();
  context->reads = std::move(reads);
  for (const Read& read : context->reads) {
    read.listener->BeforeRead(read.begin, read.end);
  }
  return context;
}

void After(const at::RecordFunction& /*operation*/, at::ObserverContext* context) {
  if (context != nullptr) {
    for (const Read& read : static_cast<OperationReads*>(context)->reads) {
      read.listener->AfterRead(read.begin, read.end);
    }
  }
}

}  // namespace

StorageObserver::StorageObserver(const at::Tensor& tensor, Listener& listener) {
  Watches& watches = TheWatches();
  const std::unique_lock lock(watches.mutex);
  watches.all.push_back({tensor.storage().unsafeGetStorageImpl(),
                         static_cast<int64_t>(tensor.itemsize()), &listener});
  if (watches.callback == at::INVALID_CALLBACK_HANDLE) {
    watches.callback = at::addGlobalCallback(at::RecordFunctionCallback(&Before, &After)
                                                 .needsInputs(true)
                                                 .scopes({at::RecordScope::FUNCTION}));
  }
  listener_ = &listener;
}

StorageObserver::~StorageObserver() {
  Watches& watches = TheWatches();
  const std::unique_lock lock(watches.mutex);
  watches.all.erase(
      std::remove_if(watches.all.begin(), watches.all.end(),
                     [this](const Watch& watch) { return watch.listener == listener_; }),
      watches.all.end());
  if (watches.all.empty()) {
    at::removeCallback(watches.callback);
    watches.callback = at::INVALID_CALLBACK_HANDLE;
  }
}

}  // namespace dtrain
