// The CUDA plugin of this build, which is opened once. DTRAIN_PLUGIN_DIR names another folder, such
// as that of a pack of ./dev gpu.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/job_env.h"
#include "comm/nccl/plugin.h"

namespace dtrain::comm {

inline Plugin& BuiltPlugin() {
  const std::string named = PluginDirectory(ReadEnvironment());
  static auto plugin =
      OpenCudaPluginIn({named.empty() ? std::string(DTRAIN_BUILT_PLUGIN_FOLDER) : named});
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  return *plugin;
}

}  // namespace dtrain::comm
