// Any text is a Content-Range, a place to which a server sends on and an address, or a one-line
// error.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/check.h"
#include "runtime/data/remote/range_reply.h"
#include "runtime/plan/data/remote_address.h"
#include "tests/fuzz/fuzz_target.h"

namespace dtrain {

std::vector<std::string> FuzzSeeds() {
  return {"bytes 10-19/400", "bytes */0", "https://host:1/x?a=b",
          "//host/x",        "/x",        "s3://bucket/x"};
}

}  // namespace dtrain

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace dtrain;  // NOLINT(google-build-using-namespace)
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  checkpoint::s3::HttpReply reply;
  reply.code = 206;
  reply.headers = {{"content-range", text}, {"location", text}};
  reply.into_bytes = 10;
  if (const auto piece = remote::PieceOfReply(reply, "https://host/x", 10, 10); piece.ok()) {
    DT_CHECK_EQ(piece->bytes_read, 10);
    DT_CHECK(piece->version.bytes >= 20) << piece->version.bytes;
  }
  if (const auto next = remote::RedirectionOf(reply, "https://host/x"); next.ok()) {
    DT_CHECK(absl::StartsWith(*next, "https://")) << *next;
  }
  const absl::Status address = plan::CheckRemoteAddress(text);
  DT_CHECK(address.ok() || absl::IsInvalidArgument(address)) << address;
  return 0;
}
