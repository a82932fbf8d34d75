#include "tests/device_emulation/device.h"

#include <driver_types.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/prng.h"
#include "tests/device_emulation/last_error.h"

namespace dtrain::emulation {

Indices indices;

namespace {

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = size_t{256} << 10;
// Stacks begin at addresses of different cache sets, or a block's threads would share one.
constexpr size_t kStaggerBytes = 704;
constexpr size_t kStaggers = 64;

enum class State { kNew, kReady, kAtBlockBarrier, kInExchange, kDone };

// Where a stack's execution stands. Switching by the compiler's own pair costs a tenth of
// swapcontext, which asks the kernel for the signal mask each time; only a new stack is entered by
// setcontext. noipa: callers must not count on registers that the code in between has changed.
using Place = std::array<void*, 5>;

[[noreturn, gnu::noipa, gnu::no_sanitize("address")]] void GoTo(Place& to) {
  __builtin_longjmp(to.data(), 1);
}
[[gnu::noipa, gnu::no_sanitize("address")]] void Switch(Place& from, Place& to) {
  if (__builtin_setjmp(from.data()) == 0) {
    GoTo(to);
  }
}

// A stack on which threads run: many one after the other until one of them waits, which keeps it.
struct Fiber {
  Fiber(size_t number, void (*run)())
      : stack(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
    getcontext(&beginning);
    beginning.uc_stack.ss_sp = stack.get();
    beginning.uc_stack.ss_size = kStackBytes - number % kStaggers * kStaggerBytes;
    makecontext(&beginning, run, 0);
  }
  [[gnu::noipa, gnu::no_sanitize("address")]] void Enter(Place& from) {
    if (__builtin_setjmp(from.data()) == 0) {
      setcontext(&beginning);
    }
  }
  ucontext_t beginning{};
  Place place{};
  std::unique_ptr<std::byte[]> stack;
};

struct Thread {
  State state = State::kNew;
  Fiber* fiber = nullptr;
  std::source_location where;  // Of the wait.
  uint32_t mask = 0;           // Of an exchange.
  uint64_t word = 0;
};

class Device {
 public:
  static Device& Get() {
    static Device device;
    return device;
  }

  void SetOrder(Order order) { order_ = order; }

  void Run(const Configuration& configuration, absl::FunctionRef<void()> body) {
    kernel_ = configuration.kernel;
    body_ = &body;
    indices.block_size = configuration.block;
    indices.grid_size = configuration.grid;
    const dim3 grid = configuration.grid;
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    const IndexPermutation shuffled(blocks, /*seed=*/7);
    for (uint64_t i = 0; i < blocks; ++i) {
      const uint64_t block = order_ == Order::kAscending    ? i
                             : order_ == Order::kDescending ? blocks - 1 - i
                                                            : shuffled(i);
      indices.block = IndexIn(grid, block);
      RunBlock();
    }
    body_ = nullptr;
  }

  // On a thread's fiber: back to RunBlock until `state` is over.
  void Wait(State state, const std::source_location& where) {
    Thread& thread = threads_[current_];
    thread.state = state;
    thread.where = where;
    thread.fiber = fiber_;
    Switch(fiber_->place, scheduler_);
  }
  void SyncBlock(const std::source_location& where) {
    RequireKernel();
    ++at_barrier_;
    Wait(State::kAtBlockBarrier, where);
  }
  const uint64_t* Exchange(uint32_t mask, uint64_t word, const std::source_location& where) {
    RequireKernel();
    const unsigned lane = current_ % kWarp;
    DT_CHECK((mask >> lane & 1U) != 0)
        << At(where) << ": lane " << lane << " is not in its own mask";
    threads_[current_].mask = mask;
    threads_[current_].word = word;
    Wait(State::kInExchange, where);
    return words_[current_ / kWarp].data();
  }
  unsigned current() const { return current_; }

 private:
  static uint3 IndexIn(const dim3& size, uint64_t i) {
    return {static_cast<unsigned>(i % size.x), static_cast<unsigned>(i / size.x % size.y),
            static_cast<unsigned>(i / size.x / size.y)};
  }
  void RequireKernel() const { DT_CHECK(body_ != nullptr) << " outside a kernel"; }

  void RunBlock() {
    const dim3 size = indices.block_size;
    const size_t count = size_t{size.x} * size.y * size.z;
    threads_.assign(count, Thread{});
    words_.resize((count + kWarp - 1) / kWarp);
    turns_.resize(count);
    std::iota(turns_.begin(), turns_.end(), 0U);
    if (order_ == Order::kDescending) {
      std::reverse(turns_.begin(), turns_.end());
    } else if (order_ == Order::kShuffled) {
      SplitMix64 random(count);
      for (size_t i = count; i > 1; --i) {
        std::swap(turns_[i - 1], turns_[random.Below(i)]);
      }
    }
    done_ = 0;
    at_barrier_ = 0;
    for (next_ = 0; next_ < count;) {
      BeginThreads();
    }
    while (done_ < count) {
      if (!Release()) {
        ReportStuck();
      }
      for (const unsigned t : turns_) {
        if (threads_[t].state == State::kReady) {
          SetCurrent(t);
          GoOn(threads_[t].fiber);
        }
      }
    }
  }

  void SetCurrent(unsigned t) {
    current_ = t;
    indices.thread = IndexIn(indices.block_size, t);
  }

  void GoOn(Fiber* fiber) {
    fiber_ = fiber;
    Switch(scheduler_, fiber->place);
  }

  // Until one of them waits or none is left.
  void BeginThreads() {
    if (!free_.empty()) {
      Fiber* const fiber = free_.back();
      free_.pop_back();
      GoOn(fiber);
      return;
    }
    const auto run = [] { Get().RunThreads(); };
    fiber_ = fibers_.emplace_back(std::make_unique<Fiber>(fibers_.size(), run)).get();
    fiber_->Enter(scheduler_);
  }

  // What a fiber does, for ever: threads that have not begun, one after the other. (To a compiler
  // that saw as much, the call would be the end of the stack, and AddressSanitizer would wipe it.)
  [[gnu::noipa]] void RunThreads() {
    for (;;) {
      while (next_ < turns_.size()) {
        SetCurrent(turns_[next_++]);
        (*body_)();
        // current_ and fiber_ are this thread's again when it has waited.
        threads_[current_].state = State::kDone;
        ++done_;
      }
      free_.push_back(fiber_);
      Switch(fiber_->place, scheduler_);
    }
  }

  // Lets those go on whose wait is over; false: none. Every thread waits or is done.
  bool Release() {
    if (at_barrier_ == threads_.size() - done_) {
      ReleaseBlock();
      return true;
    }
    bool any = false;
    for (size_t warp = 0; warp < words_.size(); ++warp) {
      any = ReleaseWarp(warp) || any;
    }
    return any;
  }

  void ReleaseBlock() {
    at_barrier_ = 0;
    const Thread* first = nullptr;
    for (Thread& thread : threads_) {
      if (thread.state == State::kAtBlockBarrier) {
        first = first == nullptr ? &thread : first;
        DT_CHECK(thread.where.line() == first->where.line())
            << At(thread.where) << ": threads of a block meet at different barriers, another at "
            << At(first->where);
        thread.state = State::kReady;
      }
    }
  }

  bool ReleaseWarp(size_t warp) {
    bool any = false;
    const size_t begin = warp * kWarp;
    const size_t end = std::min(begin + kWarp, threads_.size());
    for (size_t t = begin; t < end; ++t) {
      if (threads_[t].state != State::kInExchange || !Complete(begin, end, threads_[t])) {
        continue;
      }
      const uint32_t mask = threads_[t].mask;
      for (size_t lane = t - begin; lane < end - begin; ++lane) {
        if ((mask >> lane & 1U) != 0) {
          words_[warp][lane] = threads_[begin + lane].word;
          threads_[begin + lane].state = State::kReady;
        }
      }
      any = true;
    }
    return any;
  }

  // Whether all lanes that `of` waits for are there. A lane that is done never comes.
  bool Complete(size_t begin, size_t end, const Thread& of) const {
    for (size_t lane = 0; lane < kWarp; ++lane) {
      if ((of.mask >> lane & 1U) == 0) {
        continue;
      }
      DT_CHECK(begin + lane < end && threads_[begin + lane].state != State::kDone)
          << At(of.where) << ": a lane waits for lane " << lane << ", which has left the kernel";
      const Thread& other = threads_[begin + lane];
      if (other.state != State::kInExchange || other.mask != of.mask ||
          other.where.line() != of.where.line()) {
        return false;
      }
    }
    return true;
  }

  [[noreturn]] void ReportStuck() const {
    std::string waits;
    for (size_t t = 0; t < threads_.size(); ++t) {
      const Thread& thread = threads_[t];
      if (thread.state != State::kDone &&
          (t == 0 || thread.where.line() != threads_[t - 1].where.line())) {
        absl::StrAppend(&waits, "; thread ", t, " waits at ", At(thread.where));
      }
    }
    DT_CHECK(false) << " no thread of the block can go on, " << done_ << " are done" << waits;
    std::abort();
  }

  std::string At(const std::source_location& where) const {
    return absl::StrCat(" ", kernel_, ", block ", indices.block.x, ", ", where.file_name(), ":",
                        where.line());
  }

  Order order_ = Order::kAscending;
  const char* kernel_ = "";
  absl::FunctionRef<void()>* body_ = nullptr;
  Place scheduler_{};
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  Fiber* fiber_ = nullptr;  // That runs.
  // Of the block that runs.
  std::vector<Thread> threads_;
  std::vector<std::array<uint64_t, kWarp>> words_;  // Of each warp's last exchange.
  std::vector<unsigned> turns_;
  size_t next_ = 0;  // In turns_: who begins next.
  size_t done_ = 0;
  size_t at_barrier_ = 0;
  unsigned current_ = 0;
};

bool Allowed(const dim3& grid, const dim3& block) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffU && grid.y <= 65535 &&
         grid.z <= 65535 && threads > 0 && threads <= 1024 && block.z <= 64;
}

}  // namespace

void SetOrder(Order order) { Device::Get().SetOrder(order); }

void Launch(const Configuration& configuration, absl::FunctionRef<void()> thread) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  DT_CHECK_EQ(configuration.shared_bytes, 0U) << configuration.kernel;
  if (!Allowed(configuration.grid, configuration.block)) {
    SetLastError(cudaErrorInvalidConfiguration);
    return;
  }
  Device::Get().Run(configuration, thread);
}

void CheckLaunchBounds(unsigned threads_max) {
  const dim3 size = indices.block_size;
  DT_CHECK_LE(size.x * size.y * size.z, threads_max) << " threads a block and __launch_bounds__";
}

void SyncBlock(const std::source_location& where) { Device::Get().SyncBlock(where); }

const uint64_t* ExchangeInWarp(uint32_t mask, uint64_t word, const std::source_location& where) {
  return Device::Get().Exchange(mask, word, where);
}

unsigned LaneOfThread() { return Device::Get().current() % kWarp; }

}  // namespace dtrain::emulation
