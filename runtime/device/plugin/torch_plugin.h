// The interface of libdtrain_torch_cuda.so: graphs, the one part of LibTorch's CUDA half that has
// no device-generic interface. Opened beside libdtrain_cuda.so when LibTorch's CUDA half is mapped;
// `version` shows whether both sides are built from one tree.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/device/tensor_graph.h"

namespace dtrain {

struct TorchPluginTable {
  const char* version = nullptr;
  // Makes a graph for the stream of GPU `device` that is the thread's current one.
  absl::StatusOr<std::unique_ptr<TensorGraph>> (*new_graph)(int device) = nullptr;
};

inline constexpr char kTorchPluginSymbol[] = "dtrain_torch_plugin";
inline constexpr char kTorchPluginFile[] = "libdtrain_torch_cuda.so";
using TorchPluginEntry = const TorchPluginTable*();

}  // namespace dtrain
