// The supervisor's view of the other nodes in an attempt of an elastic job: the agents of the
// attempt, and above them the coordinator, which may end it. Used by the supervisor's thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "launcher/nodes/lobby.h"
#include "launcher/nodes/peers.h"
#include "launcher/nodes/store_peers.h"

namespace dtrain::launcher {

class ElasticPeers final : public Peers {
 public:
  // `say` is told why the coordinator lets the ranks save and stop. REQUIRES: `lobby` outlives it.
  static absl::StatusOr<std::unique_ptr<ElasticPeers>> Create(
      std::unique_ptr<StorePeers> peers, LobbyAgent& lobby, int attempt,
      std::function<void(const std::string&)> say);

  int poll_fd() const override { return epoll_.get(); }
  // An order of the coordinator to save and stop is one of these, as by SIGTERM.
  std::vector<Order> Take() override;
  // Not OK also when the coordinator is lost or has ended the attempt.
  absl::Status health() const override;
  void Publish(Order order) override { peers_->Publish(std::move(order)); }
  int nodes() const override { return peers_->nodes(); }
  void Share(std::string summary) override { peers_->Share(std::move(summary)); }
  void ShareAtOnce(std::string summary) override { peers_->ShareAtOnce(std::move(summary)); }
  std::vector<std::pair<int, std::string>> TakeShared() override { return peers_->TakeShared(); }
  void TellReserve() override { lobby_.TellReserve(); }
  void Answer(const Order& question, const std::string& text) override {
    peers_->Answer(question, text);
  }

 private:
  ElasticPeers(std::unique_ptr<StorePeers> peers, LobbyAgent& lobby, int attempt,
               std::function<void(const std::string&)> say, UniqueFd epoll);

  const std::unique_ptr<StorePeers> peers_;
  LobbyAgent& lobby_;
  const int attempt_;
  const std::function<void(const std::string&)> say_;
  UniqueFd epoll_;  // Watches both descriptors.
  absl::Status ended_;
};

}  // namespace dtrain::launcher
