// Turns a touch of weights whose memory is elsewhere, at ZeRO stage 3, into one line that names the
// parameter and exit code 64, where there would be a bare SIGSEGV: code that reads weights without
// a LibTorch operation (data_ptr, an accessor) is not seen, so nothing was gathered for it.
#pragma once

#include <string>
#include <vector>

#include "runtime/memory/memory_fault.h"
#include "runtime/model/flat_parameters.h"

namespace dtrain {

class UnseenRead final : private MemoryFault::Listener {
 public:
  // REQUIRES: the values of `flat` are reserved; it outlives this object.
  explicit UnseenRead(const FlatParameters& flat);
  UnseenRead(const UnseenRead&) = delete;
  UnseenRead& operator=(const UnseenRead&) = delete;

 private:
  struct Range {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    const std::string* name = nullptr;
  };

  static std::vector<Range> RangesOf(const FlatParameters& flat);
  bool OnFault(const std::byte* at) override;

  const std::vector<Range> ranges_;  // By parameter, in the order of their addresses.
  const MemoryFault fault_;
};

}  // namespace dtrain
