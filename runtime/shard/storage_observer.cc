#include "runtime/shard/storage_observer.h"

#include <array>
#include <exception>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "ATen/core/ivalue.h"
#include "ATen/record_function.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"

namespace dtrain {
namespace {

struct Watch {
  const c10::StorageImpl* storage = nullptr;
  int64_t width = 1;                              // Bytes of an element.
  StorageObserver::Listener* listener = nullptr;  // Null: nobody is called.
  const StorageObserver* owner = nullptr;
};

// LibTorch's callbacks are plain functions, so what is watched belongs to the process.
struct Watches {
  std::shared_mutex mutex;
  std::vector<Watch> all;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;

  void Add(const Watch& watch);
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

// The operations under way in a thread that read watched storages, the innermost last, and what is
// to be kept of those that are over.
class ThreadReads {
 public:
  void Begin() { last_.thrown_by = ""; }
  void Push(const at::RecordFunction& operation, const LastRead& reads) {
    if (depth_ < kDepthMax) {
      running_[depth_++] = {reads, &operation, std::uncaught_exceptions()};
    }
  }
  // No operation but the one that was pushed has its address while that runs.
  void End(const at::RecordFunction& operation) {
    if (depth_ == 0 || running_[depth_ - 1].operation != &operation) {
      return;
    }
    const Running& ended = running_[--depth_];
    if (std::uncaught_exceptions() <= ended.uncaught) {
      last_ = ended.reads;
    } else if (*last_.thrown_by == '\0') {
      last_ = ended.reads;
      const absl::string_view name = operation.name();
      name_[name.copy(name_.data(), name_.size() - 1)] = '\0';
      last_.thrown_by = name_.data();
    }
  }
  const LastRead& last() const { return last_; }

 private:
  struct Running {
    LastRead reads;
    const at::RecordFunction* operation = nullptr;
    int uncaught = 0;  // Exceptions at its begin.
  };
  static constexpr size_t kDepthMax = 8;  // Deeper ones are not followed.

  LastRead last_;
  std::array<char, 64> name_ = {};  // LastRead::thrown_by.
  std::array<Running, kDepthMax> running_ = {};
  size_t depth_ = 0;
};

thread_local constinit ThreadReads thread_reads;

// The inputs that one operation reads.
class OperationInputs {
 public:
  explicit OperationInputs(const Watches& watches) : watches_(watches) {}

  void Add(const c10::IValue& input) {
    if (input.isTensor()) {
      AddTensor(*input.unsafeToTensorImpl());
    } else if (input.isList()) {
      for (const c10::IValue& item : input.toListRef()) {
        if (item.isTensor()) {
          AddTensor(*item.unsafeToTensorImpl());
        } else if (!item.isNone()) {
          return;  // A list of numbers.
        }
      }
    }
  }

  Reads& for_listeners() { return for_listeners_; }
  const LastRead& all() const { return all_; }

 private:
  void AddTensor(const c10::TensorImpl& tensor) {
    if (!tensor.has_storage() || tensor.numel() == 0) {
      return;
    }
    const c10::StorageImpl* const storage = tensor.unsafe_storage().unsafeGetStorageImpl();
    LastRead::Range bytes;
    for (const Watch& watch : watches_.all) {
      if (watch.storage != storage) {
        continue;
      }
      if (bytes.storage == nullptr) {
        bytes = RangeOf(tensor, storage);
        Note(bytes);
      }
      if (watch.listener != nullptr) {
        // A view may be of another type (bytes, complex): what counts are elements of the watched
        // one.
        for_listeners_.push_back({watch.listener, bytes.begin / watch.width,
                                  (bytes.end + watch.width - 1) / watch.width});
      }
    }
  }

  static LastRead::Range RangeOf(const c10::TensorImpl& tensor, const c10::StorageImpl* storage) {
    int64_t last = tensor.storage_offset();
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      last += (tensor.size(dim) - 1) * tensor.stride(dim);
    }
    const auto width = static_cast<int64_t>(tensor.itemsize());
    return {storage, tensor.storage_offset() * width, (last + 1) * width};
  }

  void Note(const LastRead::Range& bytes) {
    if (all_.count < LastRead::kRangesMax) {
      all_.ranges[all_.count++] = bytes;
    } else {
      ++all_.more;
    }
  }

  const Watches& watches_;
  Reads for_listeners_;
  LastRead all_;
};

std::unique_ptr<at::ObserverContext> Before(const at::RecordFunction& operation) {
  Watches& watches = TheWatches();
  OperationInputs inputs(watches);
  {
    const std::shared_lock lock(watches.mutex);
    for (const c10::IValue& input : operation.inputs()) {
      inputs.Add(input);
    }
  }
  ThreadReads& reads = thread_reads;
  reads.Begin();
  if (inputs.all().count == 0) {
    return nullptr;
  }
  std::unique_ptr<OperationReads> context;
  if (!inputs.for_listeners().empty()) {
    context = std::make_unique<OperationReads>();
    context->reads = std::move(inputs.for_listeners());
    for (const Read& read : context->reads) {
      read.listener->BeforeRead(read.begin, read.end);
    }
  }
  // Behind the listeners, which may run operations of their own.
  reads.Push(operation, inputs.all());
  return context;
}

void After(const at::RecordFunction& operation, at::ObserverContext* context) {
  thread_reads.End(operation);
  if (context != nullptr) {
    for (const Read& read : static_cast<OperationReads*>(context)->reads) {
      read.listener->AfterRead(read.begin, read.end);
    }
  }
}

// REQUIRES: the mutex is held.
void Watches::Add(const Watch& watch) {
  all.push_back(watch);
  if (callback == at::INVALID_CALLBACK_HANDLE) {
    callback = at::addGlobalCallback(at::RecordFunctionCallback(&Before, &After)
                                         .needsInputs(true)
                                         .scopes({at::RecordScope::FUNCTION}));
  }
}

}  // namespace

const LastRead& LastReadOfThread() { return thread_reads.last(); }
void ForgetLastRead() { thread_reads = {}; }

StorageObserver::StorageObserver(const at::Tensor& tensor, Listener& listener) {
  Watches& watches = TheWatches();
  const std::unique_lock lock(watches.mutex);
  watches.Add({tensor.storage().unsafeGetStorageImpl(), static_cast<int64_t>(tensor.itemsize()),
               &listener, this});
}

StorageObserver::StorageObserver(const std::vector<at::Tensor>& tensors) {
  absl::flat_hash_set<const c10::StorageImpl*> added;
  Watches& watches = TheWatches();
  const std::unique_lock lock(watches.mutex);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.has_storage() && added.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      watches.Add({.storage = tensor.storage().unsafeGetStorageImpl(), .owner = this});
    }
  }
}

StorageObserver::~StorageObserver() {
  Watches& watches = TheWatches();
  const std::unique_lock lock(watches.mutex);
  std::erase_if(watches.all, [this](const Watch& watch) { return watch.owner == this; });
  if (watches.all.empty() && watches.callback != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(watches.callback);
    watches.callback = at::INVALID_CALLBACK_HANDLE;
  }
}

}  // namespace dtrain
