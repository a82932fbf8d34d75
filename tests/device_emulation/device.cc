#include "tests/device_emulation/device.h"

#include <driver_types.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/device_emulation/last_error.h"

namespace dtrain::emulation {

Indices indices;

namespace {

std::atomic<int64_t> launches = 0;
std::atomic<int> image_error = cudaSuccess;

constexpr unsigned kWarp = 32;
constexpr int kFill = 0xff;  // NaN of every floating-point type.
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

bool SamePlace(const Where& a, const Where& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

struct Thread {
  State state = State::kNew;
  Fiber* fiber = nullptr;
  Where where;        // The place in the source where the thread waits.
  uint32_t mask = 0;  // The lanes that take part in the exchange it waits for.
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
    SetThreads(configuration.block);
    const dim3 grid = configuration.grid;
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    for (uint64_t i = 0; i < blocks; ++i) {
      indices.block = IndexIn(grid, Turn(i, blocks));
      RunBlock();
    }
    body_ = nullptr;
  }

  void BeginShared(void* data, size_t bytes) {
    if (std::find(shared_.begin(), shared_.end(), data) == shared_.end()) {
      std::memset(data, kFill, bytes);
      shared_.push_back(data);
    }
  }

  // Called on a thread's fiber: goes back to RunWarp until `state` is over.
  void Wait(State state, const Where& where) {
    Thread& thread = threads_[current_];
    thread.state = state;
    thread.where = where;
    thread.fiber = fiber_;
    Switch(fiber_->place, scheduler_);
  }
  void SyncBlock(const Where& where) {
    RequireKernel();
    ++at_barrier_;
    Wait(State::kAtBlockBarrier, where);
  }
  const uint64_t* Exchange(uint32_t mask, uint64_t word, const Where& where) {
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
  const char* kernel() const { return kernel_; }

 private:
  // The index that runs as number `turn` of `count`.
  uint64_t Turn(uint64_t turn, uint64_t count) const {
    return order_ == Order::kAscending ? turn : count - 1 - turn;
  }
  static uint3 IndexIn(const dim3& size, uint64_t i) {
    return {static_cast<unsigned>(i % size.x), static_cast<unsigned>(i / size.x % size.y),
            static_cast<unsigned>(i / size.x / size.y)};
  }
  void RequireKernel() const { DT_CHECK(body_ != nullptr) << " outside a kernel"; }

  // Their indices cost divisions, and a thread gets its own again whenever it goes on.
  void SetThreads(const dim3& size) {
    if (size.x == size_.x && size.y == size_.y && size.z == size_.z) {
      return;
    }
    size_ = size;
    index_of_thread_.resize(size_t{size.x} * size.y * size.z);
    for (size_t i = 0; i < index_of_thread_.size(); ++i) {
      index_of_thread_[i] = IndexIn(size, i);
    }
  }

  void RunBlock() {
    threads_.assign(index_of_thread_.size(), Thread{});
    words_.resize((threads_.size() + kWarp - 1) / kWarp);
    shared_.clear();
    done_ = 0;
    at_barrier_ = 0;
    do {
      for (size_t i = 0; i < words_.size(); ++i) {
        RunWarp(Turn(i, words_.size()));
      }
    } while (ReleaseBlock());
    if (done_ < threads_.size()) {
      ReportStuck();
    }
  }

  // Runs `warp` until each of its threads waits for one of another warp or is done.
  void RunWarp(size_t warp) {
    begin_ = warp * kWarp;
    lanes_ = std::min(size_t{kWarp}, threads_.size() - begin_);
    next_ = threads_[begin_].state == State::kNew ? 0 : lanes_;
    while (next_ < lanes_) {
      BeginThreads();
    }
    do {
      for (size_t i = 0; i < lanes_; ++i) {
        const size_t t = begin_ + Turn(i, lanes_);
        if (threads_[t].state == State::kReady) {
          SetCurrent(t);
          GoOn(threads_[t].fiber);
        }
      }
    } while (ReleaseWarp(warp));
  }

  void SetCurrent(size_t t) {
    current_ = static_cast<unsigned>(t);
    indices.thread = index_of_thread_[t];
  }

  void GoOn(Fiber* fiber) {
    fiber_ = fiber;
    Switch(scheduler_, fiber->place);
  }

  // Begins threads until one of them waits or none is left.
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

  // The endless loop of a fiber: it runs threads of a warp that have not begun, one after the
  // other. (noipa hides the loop from the compiler, which would take the call as the end of the
  // stack, so that AddressSanitizer would wipe it.)
  [[gnu::noipa]] void RunThreads() {
    for (;;) {
      while (next_ < lanes_) {
        SetCurrent(begin_ + Turn(next_++, lanes_));
        (*body_)();
        // current_ and fiber_ are this thread's again when it has waited.
        threads_[current_].state = State::kDone;
        ++done_;
      }
      free_.push_back(fiber_);
      Switch(fiber_->place, scheduler_);
    }
  }

  // Lets a block go on whose threads all wait at the barrier or are done; false: it does not.
  bool ReleaseBlock() {
    if (at_barrier_ == 0 || at_barrier_ < threads_.size() - done_) {
      return false;
    }
    at_barrier_ = 0;
    const Thread* first = nullptr;
    for (Thread& thread : threads_) {
      if (thread.state == State::kAtBlockBarrier) {
        first = first == nullptr ? &thread : first;
        DT_CHECK(SamePlace(thread.where, first->where))
            << At(thread.where) << ": threads of a block meet at different barriers, another at "
            << At(first->where);
        thread.state = State::kReady;
      }
    }
    return true;
  }

  // Gives the words of the warp that runs to lanes that all wait for them; false: none.
  bool ReleaseWarp(size_t warp) {
    bool any = false;
    Thread* const threads = &threads_[begin_];
    for (size_t i = 0; i < lanes_; ++i) {
      if (threads[i].state != State::kInExchange || !Complete(threads[i])) {
        continue;
      }
      const uint32_t mask = threads[i].mask;
      for (size_t lane = i; lane < lanes_; ++lane) {
        if ((mask >> lane & 1U) != 0) {
          words_[warp][lane] = threads[lane].word;
          threads[lane].state = State::kReady;
        }
      }
      any = true;
    }
    return any;
  }

  // Whether all lanes that `of` waits for are there. A lane that is done never comes.
  bool Complete(const Thread& of) const {
    for (size_t lane = 0; lane < kWarp; ++lane) {
      if ((of.mask >> lane & 1U) == 0) {
        continue;
      }
      DT_CHECK(lane < lanes_ && threads_[begin_ + lane].state != State::kDone)
          << At(of.where) << ": a lane waits for lane " << lane << ", which has left the kernel";
      const Thread& other = threads_[begin_ + lane];
      if (other.state != State::kInExchange || other.mask != of.mask ||
          !SamePlace(other.where, of.where)) {
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
          (t == 0 || thread.where.line != threads_[t - 1].where.line)) {
        absl::StrAppend(&waits, "; thread ", t, " waits at ", At(thread.where));
      }
    }
    DT_CHECK(false) << " no thread of the block can go on, " << done_ << " are done" << waits;
    std::abort();
  }

  std::string At(const Where& where) const {
    const uint3 block = indices.block;
    return absl::StrCat(" ", kernel_, ", block (", block.x, ", ", block.y, ", ", block.z, "), ",
                        where.file, ":", where.line);
  }

  Order order_ = Order::kAscending;
  const char* kernel_ = "";
  absl::FunctionRef<void()>* body_ = nullptr;
  dim3 size_{0, 0, 0};  // The blocks' size that index_of_thread_ is for.
  std::vector<uint3> index_of_thread_;
  Place scheduler_{};
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  Fiber* fiber_ = nullptr;  // The one that runs.
  // State of the block that runs.
  std::vector<Thread> threads_;
  std::vector<std::array<uint64_t, kWarp>> words_;  // The words of each warp's last exchange.
  std::vector<void*> shared_;                       // Its shared variables so far.
  size_t done_ = 0;
  size_t at_barrier_ = 0;
  // State of the warp that runs.
  size_t begin_ = 0;  // Its first thread.
  size_t lanes_ = 0;
  size_t next_ = 0;  // The next thread to begin, in its turn.
  unsigned current_ = 0;
};

bool Allowed(const dim3& grid, const dim3& block) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffU && grid.y <= 65535 &&
         grid.z <= 65535 && threads > 0 && threads <= 1024 && block.z <= 64;
}

}  // namespace

void SetOrder(Order order) { Device::Get().SetOrder(order); }

void SetImageError(int error) { image_error = error; }
int ImageError() { return image_error; }

int64_t Launches() { return launches; }
void CountLaunch() { ++launches; }

void Launch(const Configuration& configuration, absl::FunctionRef<void()> thread) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  DT_CHECK_EQ(configuration.shared_bytes, 0U) << configuration.kernel;
  if (!Allowed(configuration.grid, configuration.block)) {
    SetLastError(cudaErrorInvalidConfiguration);
    return;
  }
  if (const auto error = static_cast<cudaError>(ImageError()); error != cudaSuccess) {
    SetLastError(error);
    return;
  }
  CountLaunch();
  if (configuration.stream == nullptr) {
    LandCopies();
  }
  Device::Get().Run(configuration, thread);
}

void CheckLaunchBounds(unsigned threads_max, [[maybe_unused]] unsigned blocks_min) {
  const dim3 size = indices.block_size;
  DT_CHECK_LE(size.x * size.y * size.z, threads_max)
      << " threads a block and __launch_bounds__ of " << Device::Get().kernel();
}

void SyncBlock(const Where& where) { Device::Get().SyncBlock(where); }

const uint64_t* ExchangeInWarp(uint32_t mask, uint64_t word, const Where& where) {
  return Device::Get().Exchange(mask, word, where);
}

void BeginShared(void* data, size_t bytes) { Device::Get().BeginShared(data, bytes); }

unsigned Lane() { return Device::Get().current() % kWarp; }

}  // namespace dtrain::emulation
