// The requests and replies of the store, as payloads of frames. Pure; fuzzed by tests/fuzz.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::comm {

inline constexpr uint32_t kFrameStoreRequest = 16;
inline constexpr uint32_t kFrameStoreReply = 17;
// The largest request: one value, or the keys of one Wait.
inline constexpr uint32_t kStoreRequestBytesMax = 4U << 20;

enum class StoreOp : uint8_t {
  kSet = 1,
  kGet = 2,  // Waits.
  kAdd = 3,
  kCompareExchange = 4,
  kWait = 5,
  kCheck = 6,
  kDelete = 7,
  kCancel = 8,  // Ends the waiting request `id`; has no reply.
  kAppend = 9,
};

struct StoreRequest {
  uint64_t id = 0;
  StoreOp op = StoreOp::kSet;
  std::vector<std::string> keys{};  // One, except in kWait and kCheck; none in kCancel.
  std::string value{};              // kSet, kCompareExchange, kAppend.
  std::optional<std::string> expected{};
  int64_t delta = 0;
};
std::string EncodeStoreRequest(const StoreRequest& request);
// InvalidArgument unless the payload is exactly one well-formed request within the limits.
absl::StatusOr<StoreRequest> ParseStoreRequest(absl::string_view payload);

struct StoreReply {
  uint64_t id = 0;
  absl::Status status;
  // kAdd: the sum; kAppend: the item's number; kCompareExchange, kDelete: 0 or 1.
  int64_t number = 0;
  std::string value;  // The rest of the payload: kGet, kCompareExchange, kCheck.
};
// The part before the value, which is sent behind it without a copy.
std::string EncodeStoreReplyHead(const StoreReply& reply);
absl::StatusOr<StoreReply> ParseStoreReply(absl::string_view payload);
// Parses only the id, by which the waiting caller is found.
absl::StatusOr<uint64_t> ParseStoreReplyId(absl::string_view payload);

}  // namespace dtrain::comm
