#include "launcher/nodes/lobby_messages.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr std::array<const char*, 5> kMessageKinds = {"join", "report", "leave", "stop", "drain"};
constexpr std::array<const char*, 7> kOrderKinds = {"start", "stop",   "park",   "dismiss",
                                                    "end",   "answer", "give_up"};

absl::Status Malformed(const char* what, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is malformed: ", why));
}

template <size_t N>
absl::StatusOr<size_t> KindOf(const std::array<const char*, N>& names, const Json& json,
                              const char* what) {
  const std::string kind = json.at("kind");
  for (size_t i = 0; i < N; ++i) {
    if (kind == names.at(i)) {
      return i;
    }
  }
  return Malformed(what, kind);
}

Json ToJson(const ElasticNode& node) {
  return {
      {"number", node.number}, {"host", node.host}, {"ranks", node.ranks}, {"alias", node.alias}};
}

ElasticNode NodeOf(const Json& json) {
  return {.number = json.at("number"),
          .host = json.at("host"),
          .ranks = json.at("ranks"),
          .alias = json.at("alias")};
}

Json ToJson(const NodeReport& report) {
  return {{"attempt", report.attempt},
          {"code", report.code},
          {"cause", report.cause.has_value() ? EncodeEnd(*report.cause) : ""},
          {"stop_signal", report.stop_signal},
          {"stopped_here", report.stopped_here},
          {"durable_step", report.durable_step},
          {"cannot_start", report.cannot_start},
          {"why", report.why}};
}

absl::StatusOr<NodeReport> ReportOf(const Json& json) {
  NodeReport report{.attempt = json.at("attempt"),
                    .code = json.at("code"),
                    .cause = {},
                    .stop_signal = json.at("stop_signal"),
                    .stopped_here = json.at("stopped_here"),
                    .durable_step = json.at("durable_step"),
                    .cannot_start = json.at("cannot_start"),
                    .why = json.at("why")};
  if (const std::string cause = json.at("cause"); !cause.empty()) {
    DT_ASSIGN_OR_RETURN(report.cause, DecodeEnd(cause));
  }
  return report;
}

Json ToJson(const std::vector<ElasticNode>& nodes) {
  Json list = Json::array();
  for (const ElasticNode& node : nodes) {
    list.push_back(ToJson(node));
  }
  return list;
}

std::vector<ElasticNode> NodesOf(const Json& json) {
  std::vector<ElasticNode> nodes;
  for (const Json& node : json) {
    nodes.push_back(NodeOf(node));
  }
  return nodes;
}

Json ToJson(const FailureCounts& failures) {
  Json hosts = Json::array();
  for (const auto& [number, host] : failures.hosts) {
    hosts.push_back({{"node", number},
                     {"cause", host.cause},
                     {"error", host.error},
                     {"times", host.times},
                     {"host", host.host},
                     {"durable_step", host.durable_step}});
  }
  return {{"durable_step", failures.durable_step},
          {"last", failures.last},
          {"alike", failures.alike},
          {"restarts_used", failures.restarts_used},
          {"bug_restarts_used", failures.bug_restarts_used},
          {"hosts", std::move(hosts)},
          {"job_term", failures.job_term}};
}

FailureCounts FailuresOf(const Json& json) {
  FailureCounts failures{.durable_step = json.at("durable_step"),
                         .last = json.at("last"),
                         .alike = json.at("alike"),
                         .restarts_used = json.at("restarts_used"),
                         .bug_restarts_used = json.at("bug_restarts_used"),
                         .job_term = json.at("job_term")};
  for (const Json& host : json.at("hosts")) {
    failures.hosts[host.at("node").get<int>()] = {.cause = host.at("cause"),
                                                  .error = host.at("error"),
                                                  .times = host.at("times"),
                                                  .host = host.at("host"),
                                                  .durable_step = host.at("durable_step")};
  }
  return failures;
}

Json ToJson(const AttemptMemory& memory) {
  return {{"attempt", memory.attempt},
          {"term", memory.term},
          {"nodes", ToJson(memory.nodes)},
          {"failures", ToJson(memory.failures)},
          {"report", memory.report.has_value() ? ToJson(*memory.report) : Json()}};
}

absl::StatusOr<AttemptMemory> MemoryOf(const Json& json) {
  AttemptMemory memory{.attempt = json.at("attempt"),
                       .term = json.at("term"),
                       .nodes = NodesOf(json.at("nodes")),
                       .failures = FailuresOf(json.at("failures"))};
  if (const Json& report = json.at("report"); !report.is_null()) {
    DT_ASSIGN_OR_RETURN(memory.report, ReportOf(report));
  }
  return memory;
}

}  // namespace

std::string LobbyMessage::Encode() const {
  return DumpJson(Json{{"kind", kMessageKinds.at(static_cast<size_t>(kind))},
                       {"from", from},
                       {"node", ToJson(node)},
                       {"report", ToJson(report)},
                       {"memory", memory.has_value() ? ToJson(*memory) : Json()},
                       {"job_term", job_term},
                       {"signal", signal},
                       {"target", target}});
}

absl::StatusOr<LobbyMessage> LobbyMessage::Parse(absl::string_view text) {
  constexpr char kWhat[] = "a message to the coordinator";
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, kWhat));
  try {
    LobbyMessage message;
    DT_ASSIGN_OR_RETURN(const size_t kind, KindOf(kMessageKinds, json, kWhat));
    message.kind = static_cast<Kind>(kind);
    message.from = json.at("from");
    message.node = NodeOf(json.at("node"));
    if (message.kind == Kind::kJoin && message.node.ranks < 1) {
      return Malformed(kWhat, "a node without ranks");
    }
    DT_ASSIGN_OR_RETURN(message.report, ReportOf(json.at("report")));
    if (const Json& memory = json.at("memory"); !memory.is_null()) {
      DT_ASSIGN_OR_RETURN(message.memory, MemoryOf(memory));
    }
    message.job_term = json.at("job_term");
    message.signal = json.at("signal");
    message.target = json.at("target");
    return message;
  } catch (const Json::exception& error) {
    return Malformed(kWhat, error.what());
  }
}

std::string LobbyOrder::Encode() const {
  return DumpJson(Json{{"kind", kOrderKinds.at(static_cast<size_t>(kind))},
                       {"attempt", attempt},
                       {"names", names},
                       {"nodes", ToJson(nodes)},
                       {"save", save},
                       {"job_goes_on", job_goes_on},
                       {"code", code},
                       {"text", text},
                       {"failures", ToJson(failures)}});
}

absl::StatusOr<LobbyOrder> LobbyOrder::Parse(absl::string_view text) {
  constexpr char kWhat[] = "an order of the coordinator";
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, kWhat));
  try {
    LobbyOrder order;
    DT_ASSIGN_OR_RETURN(const size_t kind, KindOf(kOrderKinds, json, kWhat));
    order.kind = static_cast<Kind>(kind);
    order.attempt = json.at("attempt");
    order.names = json.at("names").get<std::vector<std::string>>();
    order.nodes = NodesOf(json.at("nodes"));
    order.save = json.at("save");
    order.job_goes_on = json.at("job_goes_on");
    order.code = json.at("code");
    order.text = json.at("text");
    order.failures = FailuresOf(json.at("failures"));
    return order;
  } catch (const Json::exception& error) {
    return Malformed(kWhat, error.what());
  }
}

bool BeginsJob(const LobbyOrder& start, int64_t first_term) {
  return start.failures.job_term >= first_term;
}

std::string LobbyNodes::Encode() const {
  Json list = Json::array();
  for (const Row& row : rows) {
    list.push_back(
        {{"node", ToJson(row.node)}, {"place", row.place}, {"state", row.state}, {"why", row.why}});
  }
  return DumpJson(
      Json{{"attempt", attempt}, {"nodes", std::move(list)}, {"started_at", started_at}});
}

absl::StatusOr<LobbyNodes> LobbyNodes::Parse(absl::string_view text) {
  constexpr char kWhat[] = "the coordinator's list of nodes";
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, kWhat));
  try {
    LobbyNodes nodes{.attempt = json.at("attempt"), .started_at = json.at("started_at")};
    for (const Json& row : json.at("nodes")) {
      nodes.rows.push_back({.node = NodeOf(row.at("node")),
                            .place = row.at("place"),
                            .state = row.at("state"),
                            .why = row.at("why")});
    }
    return nodes;
  } catch (const Json::exception& error) {
    return Malformed(kWhat, error.what());
  }
}

std::string LobbyOrderKey(int64_t number) { return absl::StrCat("lobby/order/", number); }

std::string MeetingKey(int64_t term, int attempt) {
  return absl::StrCat("lobby/meeting/", term, "/", attempt);
}

}  // namespace dtrain::launcher
