// The lines that a run prints before its first step. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "base/console/banner.h"
#include "dtrain/config.h"

namespace dtrain::plan {

// Facts of a run beyond its configuration.
struct RunFacts {
  std::string version;
  std::string run_id;
  std::string run_dir;
  std::string launcher;   // "dtrain launch", "torchrun".
  std::string transport;  // Between hosts' memories, by Group::transport's name; "alone": one rank.
  std::string device;     // "CPU", or the name of the GPU.
  std::string device_transport;  // Transport of a GPU's gradients; "" on a CPU.
  int nodes = 0;                 // 0: unknown.
  int attempt = 0;               // Restarts so far.
  int64_t parameters = 0;        // 0: unknown.
  int64_t trained = 0;           // Parameters that are not frozen.
  int64_t tokens = 0;            // In the training data; 0: the program brings its data.
  int64_t files = 0;             // Files of the training data.
};

Banner RunBanner(const Config& config, const RunFacts& facts);

}  // namespace dtrain::plan
