// Fuzz target: requests and replies of the store.
#include <string>
#include <vector>

#include "base/check.h"
#include "comm/net/store.h"
#include "comm/net/store_protocol.h"
#include "tests/fuzz/fuzz_target.h"

namespace dtrain {

std::vector<std::string> FuzzSeeds() {
  using comm::StoreOp;
  const auto encode = [](StoreOp op, std::vector<std::string> keys, std::string value) {
    comm::StoreRequest request;
    request.id = 1;
    request.op = op;
    request.keys = std::move(keys);
    request.value = std::move(value);
    if (op == StoreOp::kCompareExchange) {
      request.expected = "old";
    }
    return comm::EncodeStoreRequest(request);
  };
  return {encode(StoreOp::kSet, {"key"}, "value"),
          encode(StoreOp::kGet, {"ready/0"}, ""),
          encode(StoreOp::kAdd, {"count"}, ""),
          encode(StoreOp::kCompareExchange, {"leader"}, "new"),
          encode(StoreOp::kWait, {"ready/0", "ready/1", "ready/2"}, ""),
          encode(StoreOp::kCheck, {}, ""),
          encode(StoreOp::kDelete, {"key"}, ""),
          encode(StoreOp::kCancel, {}, ""),
          comm::EncodeStoreReplyHead({1, absl::NotFoundError("no"), 7, ""}) + "value"};
}

}  // namespace dtrain

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace dtrain;  // NOLINT(google-build-using-namespace)
  const absl::string_view payload(reinterpret_cast<const char*>(data), bytes);
  if (const auto request = comm::ParseStoreRequest(payload); request.ok()) {
    // Each request has one encoding, so nothing in the payload was ignored.
    DT_CHECK(comm::EncodeStoreRequest(*request) == payload);
    DT_CHECK_LE(request->value.size(), comm::kStoreValueBytesMax);
    DT_CHECK_LE(request->keys.size(), comm::kStoreKeysMax);
    for (const std::string& key : request->keys) {
      DT_CHECK(!key.empty() && key.size() <= comm::kStoreKeyBytesMax);
    }
  }
  if (const auto reply = comm::ParseStoreReply(payload); reply.ok()) {
    DT_CHECK_EQ(comm::ParseStoreReplyId(payload).value_or(~reply->id), reply->id);
  }
  return 0;
}
