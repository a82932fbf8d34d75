// Turns a touch of weights whose memory is elsewhere, at ZeRO stage 3, into one line that names the
// parameter and exit code 64, where there would be a bare SIGSEGV: code that reads weights without
// a LibTorch operation (data_ptr, an accessor) is not seen, so nothing was gathered for it. Other
// faults go to whoever handled them before.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/engine/flat_parameters.h"

namespace dtrain {

class UnseenRead {
 public:
  // REQUIRES: the values of `flat` are reserved; it outlives this object.
  explicit UnseenRead(const FlatParameters& flat);
  ~UnseenRead();
  UnseenRead(const UnseenRead&) = delete;
  UnseenRead& operator=(const UnseenRead&) = delete;

  // Plain data, which a signal handler may read.
  struct Range {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    const char* name = nullptr;
  };

 private:
  std::vector<Range> ranges_;  // By parameter, in the order of their addresses.
  int slot_ = -1;
};

}  // namespace dtrain
