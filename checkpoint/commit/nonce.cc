#include "checkpoint/commit/nonce.h"

#include <sys/random.h>

#include <cstdint>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace dtrain::checkpoint {

std::string RandomNonce() {
  uint64_t value = 0;
  // At most 256 bytes are never cut short once the generator is seeded (getrandom(2)).
  const ssize_t n = getrandom(&value, sizeof(value), 0);
  DT_CHECK_EQ(n, static_cast<ssize_t>(sizeof(value)));
  return absl::StrFormat("%016x", value);
}

}  // namespace dtrain::checkpoint
