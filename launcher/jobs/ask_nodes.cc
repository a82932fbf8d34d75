#include "launcher/jobs/ask_nodes.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/status.h"
#include "comm/net/store_client.h"
#include "launcher/nodes/store_peers.h"

namespace dtrain::launcher {
namespace {

constexpr absl::Duration kNodesConnectTime = absl::Seconds(1);
constexpr absl::Duration kNodesAnswerTime = absl::Seconds(1);
// Each answer takes two calls, and each host's name one: with 4,096 nodes some seconds.
constexpr absl::Duration kNodesReadTime = absl::Seconds(4);

// A part of the store's keys that no other question has.
absl::StatusOr<std::string> NewQuestion() {
  std::array<uint8_t, 8> bytes{};
  DT_RETURN_IF_ERROR(comm::RandomBytes(absl::MakeSpan(bytes)));
  return absl::StrCat("launch/answers/",
                      absl::BytesToHexString(absl::string_view(
                          reinterpret_cast<const char*>(bytes.data()), bytes.size())));
}

// Fills in the hosts that are not known.
absl::Status ReadUnknownHosts(comm::Store& store, Deadline deadline,
                              std::vector<NodeAnswer>& nodes) {
  std::vector<std::string> keys;
  for (size_t place = 0; place < nodes.size(); ++place) {
    keys.push_back(HostKey(static_cast<int>(place)));
  }
  DT_ASSIGN_OR_RETURN(const std::vector<bool> is_there, store.Check(keys, deadline));
  for (size_t place = 0; place < nodes.size(); ++place) {
    if (nodes[place].node.host.empty() && is_there[place]) {
      DT_ASSIGN_OR_RETURN(nodes[place].node.host, store.Get(keys[place], deadline));
    }
  }
  return absl::OkStatus();
}

absl::Status AskByStore(const AskedAttempt& attempt, const comm::JobKey& key,
                        std::vector<NodeAnswer>& nodes) {
  const comm::Hello hello{.epoch = static_cast<uint64_t>(attempt.number),
                          .role = comm::Hello::Role::kTool,
                          .id = -1,
                          .name = "dtrain status"};
  DT_ASSIGN_OR_RETURN(
      const std::unique_ptr<comm::StoreClient> store,
      comm::StoreClient::Connect(attempt.store, key, hello, Deadline::After(kNodesConnectTime)));
  Order question;
  question.kind = Order::Kind::kAsk;
  question.node = -1;
  DT_ASSIGN_OR_RETURN(question.answers, NewQuestion());
  const Deadline answered = Deadline::After(kNodesAnswerTime);
  DT_ASSIGN_OR_RETURN(const int64_t number, store->Append(kOrderList, question.Encode(), answered));
  std::vector<std::string> keys;
  for (size_t place = 0; place < nodes.size(); ++place) {
    keys.push_back(AnswerKey(question.answers, static_cast<int>(place)));
  }
  store->Wait(keys, answered).IgnoreError();  // The next call tells who has answered.
  const Deadline reading = Deadline::After(kNodesReadTime);
  DT_ASSIGN_OR_RETURN(const std::vector<bool> is_there, store->Check(keys, reading));
  bool have_all = true;
  for (size_t place = 0; place < nodes.size(); ++place) {
    have_all = have_all && is_there[place];
    if (is_there[place]) {
      DT_ASSIGN_OR_RETURN(nodes[place].text, store->Get(keys[place], reading));
    }
  }
  DT_RETURN_IF_ERROR(ReadUnknownHosts(*store, reading, nodes));
  for (size_t place = 0; place < nodes.size(); ++place) {
    if (is_there[place]) {
      DT_RETURN_IF_ERROR(store->Delete(keys[place], reading).status());
    }
  }
  if (have_all) {  // One that has not read the question yet reads no order behind it before.
    DT_RETURN_IF_ERROR(store->Delete(comm::ListItemKey(kOrderList, number), reading).status());
  }
  return absl::OkStatus();
}

}  // namespace

JobNodes AskNodes(const AskedAttempt& attempt, const comm::JobKey& key) {
  JobNodes job{.attempt = attempt.number};
  for (const ElasticNode& node : attempt.nodes) {
    job.nodes.push_back({.node = node});
  }
  if (job.nodes.empty()) {
    return job;
  }
  if (const absl::Status asked = AskByStore(attempt, key, job.nodes); !asked.ok()) {
    job.note = absl::StrCat("this host cannot ask the nodes: ", asked.message());
  }
  return job;
}

}  // namespace dtrain::launcher
