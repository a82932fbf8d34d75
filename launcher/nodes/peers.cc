#include "launcher/nodes/peers.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {
constexpr std::array<const char*, 5> kKindNames = {"stop", "fail", "ended", "ask", "look"};
}  // namespace

std::string Order::Encode() const {
  Json json = {{"kind", kKindNames.at(static_cast<size_t>(kind))},
               {"node", node},
               {"signal", signal},
               {"end", EncodeEnd(end)}};
  if (kind == Kind::kAsk) {
    json["answers"] = answers;
  } else if (kind == Kind::kEnded) {
    json["durable_step"] = durable_step;
  }
  return DumpJson(json);
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
  const bool is_question = known && order.kind == Order::Kind::kAsk;
  const bool is_end = known && order.kind == Order::Kind::kEnded;
  if (!known || !member("node").is_number_integer() || !member("signal").is_number_integer() ||
      !member("end").is_string() || (is_question && !member("answers").is_string()) ||
      (is_end && !member("durable_step").is_number_integer())) {
    return absl::InvalidArgumentError(absl::StrCat("order of an agent is malformed: ", text));
  }
  order.node = member("node").get<int>();
  order.signal = member("signal").get<int>();
  DT_ASSIGN_OR_RETURN(order.end, DecodeEnd(member("end").get<std::string>()));
  if (is_question) {
    order.answers = member("answers").get<std::string>();
  }
  if (is_end) {
    order.durable_step = member("durable_step").get<int64_t>();
  }
  return order;
}

Order CannotStartOrder(int node, int rank, const std::string& host, const absl::Status& why) {
  Order order;
  order.kind = Order::Kind::kFail;
  order.end.rank = rank;
  order.end.node = node;
  order.end.host = host;
  order.end.exit_code = ExitCodeFor(why);
  order.end.error = std::string(why.message());
  return order;
}

}  // namespace dtrain::launcher
