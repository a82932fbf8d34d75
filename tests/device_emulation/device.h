// A CUDA device on the CPU, so that kernels are run, and not only compiled, where there is no GPU.
//
// translate.py turns a .cu file into C++: a launch becomes Launch(), a thread of a block a fiber
// that runs until it waits for others. Behaviour that a GPU leaves undefined ends the process with
// a report: different barriers in a block, a shuffle whose lanes have left, more threads than
// __launch_bounds__ allows, an address that is no multiple of what is loaded or stored there.
// Threads run one after the other, each warp as far as it comes alone, in an order that a test
// chooses, so a missing barrier shows as wrong results in one of two orders. Shared memory begins
// filled with NaN; device memory lies between pages that fault (runtime.cc).
//
// Not found: updates of one value by several threads without atomics, which come one after the
// other here, so that none is lost in either order; reads before the beginning of device memory or
// up to 15 bytes past its end, which give NaN (writes there are found when it is freed); any access
// beyond memory in tests that bring host memory, as those of the runtime's fake GPU do. Not
// emulated: kernels of streams that overlap, the caches. A copy from the host's pageable memory
// lands late, as on a GPU: before what is queued to the default stream or waits for it, not before
// a kernel of another stream.
//
// A launch returns when its kernel is done; those of other host threads wait for their turn.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace dtrain::emulation {

// The order in which threads of a block take turns, and blocks of a grid. Between them, of any two
// each comes first once.
enum class Order { kAscending, kDescending };
void SetOrder(Order order);

struct Configuration {
  const char* kernel;
  dim3 grid;
  dim3 block;
  size_t shared_bytes;  // Dynamic shared memory. REQUIRES: 0; no kernel has any.
  void* stream;         // nullptr is the default stream, which waits for copies.
};

// Runs `thread` once for each thread of the grid. A configuration that CUDA refuses runs nothing
// and is the last error of the runtime.
void Launch(const Configuration& configuration, absl::FunctionRef<void()> thread);

// From now on there is no code for this device, for that reason (a cudaError): kernels can be
// neither asked for nor launched. cudaSuccess: there is.
void SetImageError(int error);
int ImageError();

// Counts what was given to the device so far: kernels, and copies and fills, queued as they are.
int64_t Launches();
void CountLaunch();

// The running thread's values of CUDA's variables of these names.
struct Indices {
  uint3 thread;
  uint3 block;
  dim3 block_size;
  dim3 grid_size;
};
extern Indices indices;

// The parts of which intrinsics.h is made; only kernels use them.
struct Where {  // A place in a kernel's source. (clang 14 has no std::source_location.)
  const char* file = nullptr;
  int line = 0;
};
void CheckLaunchBounds(unsigned threads_max, unsigned blocks_min = 1);
// Fills a shared variable that the block has not met yet.
void BeginShared(void* data, size_t bytes);
void SyncBlock(const Where& where);
// Gives `word` to the lanes of the warp that `mask` names and waits for theirs; element `lane` of
// the result is that lane's word, until the thread's next wait.
const uint64_t* ExchangeInWarp(uint32_t mask, uint64_t word, const Where& where);
// The lane of the thread that runs.
unsigned Lane();

}  // namespace dtrain::emulation
