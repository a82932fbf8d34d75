// What libdtrain_torch_cuda.so gives: the one thing of LibTorch's CUDA half that has no
// device-generic interface. Opened beside libdtrain_cuda.so when LibTorch's CUDA half is mapped;
// both sides are built from one tree, as `version` says.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/device/tensor_graph.h"

namespace dtrain {

struct TorchPluginTable {
  const char* version = nullptr;
  // For the stream that is the thread's current one of GPU `device`.
  absl::StatusOr<std::unique_ptr<TensorGraph>> (*new_graph)(int device) = nullptr;
};

inline constexpr char kTorchPluginSymbol[] = "dtrain_torch_plugin";
inline constexpr char kTorchPluginFile[] = "libdtrain_torch_cuda.so";
using TorchPluginEntry = const TorchPluginTable*();

}  // namespace dtrain
