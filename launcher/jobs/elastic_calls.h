// Answers the commands of this host that ask the agent of an elastic job: `dtrain drain` and
// `dtrain status`. The agent tells it where it is; the control sockets' threads ask it.
// Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "comm/net/job_key.h"
#include "launcher/jobs/ask_nodes.h"
#include "launcher/jobs/control_socket.h"
#include "launcher/jobs/job_status.h"
#include "launcher/nodes/lobby.h"

namespace dtrain::launcher {

class ElasticCalls {
 public:
  // `host`: that of node 0. REQUIRES: `key` outlives this object.
  ElasticCalls(std::string host, const comm::JobKey& key) : host_(std::move(host)), key_(key) {}

  // The lobby in which the agent is; null: the coordinator is lost. A call that is being answered
  // keeps the one before until it has ended.
  void SetLobby(std::shared_ptr<LobbyAgent> lobby);
  // The attempt that runs on this node; nothing: it has no ranks.
  void SetAttempt(std::optional<AskedAttempt> attempt);

  // Serves `dtrain drain`: "drain NODE" is answered with "ok NAME", and "left" when the node has
  // left; or with "no REASON". Blocks until then.
  void Drain(const ControlCall& call);
  // Serves `dtrain status`. Blocks for a few seconds at most.
  JobNodes Nodes();

 private:
  // The attempt of the job as the lobby tells a node of it that has no ranks there.
  AskedAttempt AttemptOf(const LobbyNodes& members, LobbyAgent& lobby) const;

  const std::string host_;
  const comm::JobKey& key_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<LobbyAgent> lobby_;
  std::optional<AskedAttempt> attempt_;
};

}  // namespace dtrain::launcher
