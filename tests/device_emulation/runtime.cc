// The few functions of the CUDA runtime that kernels and their tests call, on the CPU.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "tests/device_emulation/device.h"
#include "tests/device_emulation/last_error.h"

namespace dtrain::emulation {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;
char stream_storage;  // Its address is every stream.

// Device memory, each piece in a mapping of its own between two pages which fault. It begins
// filled with NaN of every floating-point type, and so do the bytes around it up to those pages,
// which are looked at when the piece is freed: an address is a multiple of 16, as kernels' loads
// ask.
constexpr int kFill = 0xff;
constexpr size_t kAlignment = 16;

struct Piece {
  std::byte* mapping;
  size_t mapped;
  size_t bytes;
};
std::unordered_map<void*, Piece>& Pieces() {
  static auto& pieces = *new std::unordered_map<void*, Piece>;
  return pieces;
}

// CUDA's cudaMemcpy from pageable memory returns when it has taken the bytes, which may be before
// they are on the device. Streams that do not wait for the default one are not ordered behind it.
struct Copy {
  void* to;
  std::vector<std::byte> bytes;
};
std::mutex copies_mutex;
std::vector<Copy>& CopiesUnderWay() {
  static auto& copies = *new std::vector<Copy>;
  return copies;
}

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

void* Allocate(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t used = RoundUp(bytes, kAlignment);
  const size_t mapped = RoundUp(used, page) + 2 * page;
  void* const mapping =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return nullptr;
  }
  auto* const start = static_cast<std::byte*>(mapping);
  std::byte* const data = start + mapped - page - used;
  std::memset(start + page, kFill, mapped - 2 * page);
  mprotect(start, page, PROT_NONE);
  mprotect(start + mapped - page, page, PROT_NONE);
  Pieces()[data] = {start, mapped, bytes};
  return data;
}

cudaError_t Free(void* data) {
  if (data == nullptr) {
    return cudaSuccess;
  }
  const auto found = Pieces().find(data);
  if (found == Pieces().end()) {
    return cudaErrorInvalidValue;
  }
  const Piece piece = found->second;
  const auto untouched = [](const std::byte* from, const std::byte* to) {
    return std::all_of(from, to, [](std::byte b) { return b == std::byte{kFill}; });
  };
  const auto* const begin = static_cast<const std::byte*>(data);
  DT_CHECK(untouched(piece.mapping + sysconf(_SC_PAGESIZE), begin))
      << " a kernel wrote before the beginning of " << piece.bytes << " bytes of device memory";
  DT_CHECK(untouched(begin + piece.bytes, begin + RoundUp(piece.bytes, kAlignment)))
      << " a kernel wrote past the end of " << piece.bytes << " bytes of device memory";
  munmap(piece.mapping, piece.mapped);
  Pieces().erase(found);
  return cudaSuccess;
}

}  // namespace

void SetLastError(cudaError error) { last_error = error; }

void LandCopies() {
  const std::lock_guard lock(copies_mutex);
  for (const Copy& copy : CopiesUnderWay()) {
    std::memcpy(copy.to, copy.bytes.data(), copy.bytes.size());
  }
  CopiesUnderWay().clear();
}

}  // namespace dtrain::emulation

namespace emulation = dtrain::emulation;

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = emulation::Allocate(bytes);
  return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* data) {
  emulation::LandCopies();
  return emulation::Free(data);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyHostToDevice) {
    const auto* const begin = static_cast<const std::byte*>(from);
    const std::lock_guard lock(emulation::copies_mutex);
    emulation::CopiesUnderWay().push_back({to, {begin, begin + bytes}});
    return cudaSuccess;
  }
  emulation::LandCopies();
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  emulation::CountLaunch();
  if (stream == nullptr) {
    emulation::LandCopies();
  }
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
  emulation::CountLaunch();
  std::memset(data, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(&emulation::stream_storage);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) {
    emulation::LandCopies();
  }
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* /*attributes*/, const void* /*kernel*/) {
  const auto error = static_cast<cudaError>(emulation::ImageError());
  if (error != cudaSuccess) {
    emulation::SetLastError(error);
  }
  return error;
}

// Any number of devices, which are one: which of them is a thread's current one is remembered.
cudaError_t cudaSetDevice(int device) {
  emulation::current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = emulation::current_device;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = emulation::last_error;
  emulation::last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    default:
      return "an error of the emulated device";
  }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

}  // extern "C"
