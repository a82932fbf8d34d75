// Where the tests' topology files are.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "launcher/topology/nccl_topology.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {

inline std::string FixturePath(const std::string& name) {
  return absl::StrCat(DTRAIN_SOURCE_DIR, "/tests/launcher/topology/fixtures/", name);
}

// The folder of real topologies beside the source tree; "" if there is none.
inline std::string CorpusFolder() {
  for (const char* const above : {"/../shared/corpus", "/../../shared/corpus"}) {
    const std::string folder = absl::StrCat(DTRAIN_SOURCE_DIR, above, "/topology");
    if (std::filesystem::is_directory(folder)) {
      return folder;
    }
  }
  return "";
}

inline constexpr const char* kNoCorpus =
    "LOUD SKIP: no shared/corpus beside the source tree: real topologies were not tried";

inline Topology ReadNcclNode(const std::string& path) {
  const auto element = ReadNcclFile(path);
  EXPECT_TRUE(element.ok()) << element.status();
  auto topology = element.ok() ? FromNccl(*element, path) : element.status();
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *std::move(topology) : Topology();
}

}  // namespace dtrain::launcher
