#include "comm/transport/transport.h"

#include "absl/strings/str_cat.h"

namespace dtrain::comm {

absl::Status TimedOut(const Transport& transport) {
  std::string text = "timed out waiting for";
  absl::string_view separator = " ";
  for (const int peer : transport.Awaited()) {
    absl::StrAppend(&text, separator, transport.PeerName(peer));
    separator = "; ";
  }
  return absl::DeadlineExceededError(text);
}

}  // namespace dtrain::comm
