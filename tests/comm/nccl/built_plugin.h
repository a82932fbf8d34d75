// The CUDA plugin of this build, opened once.
#pragma once

#include <gtest/gtest.h>

#include "comm/nccl/plugin.h"

namespace dtrain::comm {

inline Plugin& BuiltPlugin() {
  static auto plugin = OpenCudaPluginIn({DTRAIN_BUILT_PLUGIN_FOLDER});
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  return *plugin;
}

}  // namespace dtrain::comm
