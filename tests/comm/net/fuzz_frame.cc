// Fuzz target: frames of the control channel, put together from pieces of any size.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "comm/net/frame.h"
#include "comm/net/secure_stream.h"
#include "tests/fuzz/fuzz_target.h"

namespace dtrain {
namespace {

constexpr uint64_t kEpoch = 7;
constexpr uint32_t kPayloadMax = 1U << 20;

std::string Encode(const comm::FrameHeader& header, const std::string& payload) {
  const auto bytes = comm::EncodeFrameHeader(header);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + payload;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string hello = comm::EncodeHello({.epoch = kEpoch, .id = 3, .name = "node-3"});
  const auto length = static_cast<uint32_t>(hello.size());
  // The first byte is the size of the pieces.
  return {"\x01" + Encode({length, 1, 0, kEpoch}, hello),
          "\x10" + Encode({length, 1, 0, kEpoch}, hello) + Encode({3, 16, 1, kEpoch}, "abc"),
          "\xff" + Encode({0, 16, 0, kEpoch}, "") + Encode({0, 17, 1, kEpoch}, ""),
          "\x40" + Encode({kPayloadMax, 16, 0, kEpoch}, std::string(300, 'x'))};
}

}  // namespace dtrain

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace dtrain;  // NOLINT(google-build-using-namespace)
  if (bytes == 0) {
    return 0;
  }
  const size_t piece = std::max<size_t>(1, data[0]);
  comm::FrameReader reader(kPayloadMax);
  reader.RequireEpoch(kEpoch);
  size_t at = 1;
  while (at < bytes) {
    const auto space = reader.Space();
    DT_CHECK(!space.empty());
    // Memory follows the bytes that came, whatever a header announces.
    DT_CHECK_LE(reader.buffered_bytes() + space.size(), 2 * bytes + (128U << 10));
    const size_t take = std::min({space.size(), bytes - at, piece});
    std::memcpy(space.data(), data + at, take);
    at += take;
    const auto frame = reader.Commit(take);
    if (!frame.ok()) {
      return 0;
    }
    if (frame->has_value()) {
      DT_CHECK_LE((*frame)->payload.size(), kPayloadMax);
      DT_CHECK_EQ((*frame)->epoch, kEpoch);
      const auto hello = comm::DecodeHello((*frame)->payload, kEpoch);
      if (hello.ok()) {
        DT_CHECK(comm::EncodeHello(*hello) == (*frame)->payload);
      }
    }
  }
  return 0;
}
