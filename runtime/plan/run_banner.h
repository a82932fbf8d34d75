// What a run says before its first step. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "base/console/banner.h"
#include "dtrain/config.h"

namespace dtrain::plan {

// What the configuration does not know.
struct RunFacts {
  std::string version;
  std::string run_id;
  std::string run_dir;
  std::string launcher;  // "dtrain launch", "torchrun".
  std::string
      transport;       // Between hosts' memories, as Group::transport names it; "alone": one rank.
  std::string device;  // "CPU", or what the GPU is called.
  std::string device_transport;  // Of gradients on a GPU; "" on a CPU.
  int nodes = 0;                 // 0: unknown.
  int attempt = 0;               // Restarts so far.
  int64_t parameters = 0;        // 0: unknown.
  int64_t trained = 0;           // Of these, the ones that are not frozen.
  int64_t tokens = 0;            // Of the training data; 0: the program has data of its own.
  int64_t files = 0;             // That hold them.
};

Banner RunBanner(const Config& config, const RunFacts& facts);

}  // namespace dtrain::plan
