#include "launcher/hosts/channel_message.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/hosts/frames.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kNumberBytes = 4;  // Its channel, little-endian; the event's byte follows.
constexpr absl::string_view kZero("\0", 1);

}  // namespace

std::string ChannelMessage::ToFrame() const {
  std::string payload;
  payload.reserve(kNumberBytes + 1 + bytes.size());
  for (size_t i = 0; i < kNumberBytes; ++i) {
    payload.push_back(static_cast<char>((channel >> (8 * i)) & 0xff));
  }
  payload.push_back(static_cast<char>(event));
  payload.append(bytes);
  return EncodeFrame(FrameKind::kChannel, payload);
}

absl::StatusOr<ChannelMessage> ChannelMessage::Parse(absl::string_view payload) {
  if (payload.size() <= kNumberBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a message of a channel has %d bytes; allowed: %d and more", payload.size(),
                        kNumberBytes + 1));
  }
  ChannelMessage message;
  for (size_t i = 0; i < kNumberBytes; ++i) {
    message.channel |= static_cast<uint32_t>(static_cast<unsigned char>(payload[i])) << (8 * i);
  }
  message.event = static_cast<ChannelEvent>(payload[kNumberBytes]);
  if (message.event < ChannelEvent::kOpen || message.event > ChannelEvent::kEnd) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a message of a channel has the event %d; allowed: 1 to 7",
                        static_cast<int>(message.event)));
  }
  message.bytes = std::string(payload.substr(kNumberBytes + 1));
  return message;
}

std::string BytesOf(const std::vector<std::string>& words) { return absl::StrJoin(words, kZero); }

std::vector<std::string> WordsOf(absl::string_view bytes) {
  if (bytes.empty()) {
    return {};
  }
  return absl::StrSplit(bytes, absl::ByChar('\0'));
}

}  // namespace dtrain::launcher
