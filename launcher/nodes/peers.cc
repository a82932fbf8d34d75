#include "launcher/nodes/peers.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {
constexpr std::array<const char*, 3> kKindNames = {"stop", "fail", "ended"};
}  // namespace

std::string Order::Encode() const {
  return DumpJson(Json{{"kind", kKindNames.at(static_cast<size_t>(kind))},
                       {"node", node},
                       {"signal", signal},
                       {"end", EncodeEnd(end)}});
}

absl::StatusOr<Order> Order::Parse(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "order of an agent"));
  const auto member = [&json](const char* key) {
    const auto found = json.find(key);
    return found == json.end() ? Json() : *found;
  };
  const Json kind = member("kind");
  Order order;
  bool known = false;
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (kind == kKindNames.at(i)) {
      order.kind = static_cast<Kind>(i);
      known = true;
    }
  }
  if (!known || !member("node").is_number_integer() || !member("signal").is_number_integer() ||
      !member("end").is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("order of an agent is malformed: ", text));
  }
  order.node = member("node").get<int>();
  order.signal = member("signal").get<int>();
  DT_ASSIGN_OR_RETURN(order.end, DecodeEnd(member("end").get<std::string>()));
  return order;
}

}  // namespace dtrain::launcher
