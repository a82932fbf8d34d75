#include "comm/net/store_protocol.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/net/key_values.h"
#include "comm/net/wire.h"

namespace dtrain::comm {
namespace {

constexpr size_t kMessageBytesMax = 4096;

absl::Status Malformed() { return absl::InvalidArgumentError("malformed store message"); }

// The number of keys that an operation takes.
bool KeyCountFits(StoreOp op, size_t count) {
  switch (op) {
    case StoreOp::kWait:
    case StoreOp::kCheck:
      return count <= kStoreKeysMax;
    case StoreOp::kCancel:
      return count == 0;
    default:
      return count == 1;
  }
}

}  // namespace

std::string EncodeStoreRequest(const StoreRequest& request) {
  WireWriter writer;
  writer.U64(request.id);
  writer.U8(static_cast<uint8_t>(request.op));
  writer.U64(static_cast<uint64_t>(request.delta));
  writer.U8(request.expected.has_value() ? 1 : 0);
  writer.Bytes(request.expected.value_or(""));
  writer.Bytes(request.value);
  writer.U32(static_cast<uint32_t>(request.keys.size()));
  for (const std::string& key : request.keys) {
    writer.Bytes(key);
  }
  return writer.Take();
}

absl::StatusOr<StoreRequest> ParseStoreRequest(absl::string_view payload) {
  WireReader reader(payload);
  StoreRequest request;
  request.id = reader.U64();
  const uint8_t op = reader.U8();
  request.delta = static_cast<int64_t>(reader.U64());
  const uint8_t has_expected = reader.U8();
  const absl::string_view expected = reader.Bytes(kStoreValueBytesMax);
  request.value = std::string(reader.Bytes(kStoreValueBytesMax));
  const uint32_t keys = reader.U32();
  if (!reader.ok() || op < static_cast<uint8_t>(StoreOp::kSet) ||
      op > static_cast<uint8_t>(StoreOp::kAppend) || has_expected > 1 ||
      (has_expected == 0 && !expected.empty())) {
    return Malformed();
  }
  request.op = static_cast<StoreOp>(op);
  if (!KeyCountFits(request.op, keys)) {
    return Malformed();
  }
  if (has_expected == 1) {
    request.expected = std::string(expected);
  }
  for (uint32_t i = 0; i < keys && reader.ok(); ++i) {
    request.keys.emplace_back(reader.Bytes(kStoreKeyBytesMax));
    DT_RETURN_IF_ERROR(CheckStoreKey(request.keys.back()));
  }
  if (!reader.Complete()) {
    return Malformed();
  }
  return request;
}

std::string EncodeStoreReplyHead(const StoreReply& reply) {
  WireWriter writer;
  writer.U64(reply.id);
  writer.U8(static_cast<uint8_t>(reply.status.code()));
  writer.U64(static_cast<uint64_t>(reply.number));
  writer.Bytes(reply.status.message().substr(0, kMessageBytesMax));
  return writer.Take();
}

absl::StatusOr<StoreReply> ParseStoreReply(absl::string_view payload) {
  WireReader reader(payload);
  StoreReply reply;
  reply.id = reader.U64();
  const uint8_t code = reader.U8();
  reply.number = static_cast<int64_t>(reader.U64());
  const absl::string_view message = reader.Bytes(kMessageBytesMax);
  reply.value = std::string(reader.Rest());
  if (!reader.ok() || code > static_cast<uint8_t>(absl::StatusCode::kUnauthenticated)) {
    return Malformed();
  }
  reply.status = absl::Status(static_cast<absl::StatusCode>(code), message);
  return reply;
}

absl::StatusOr<uint64_t> ParseStoreReplyId(absl::string_view payload) {
  WireReader reader(payload);
  const uint64_t id = reader.U64();
  if (!reader.ok()) {
    return Malformed();
  }
  return id;
}

}  // namespace dtrain::comm
