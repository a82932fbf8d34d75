#include "launcher/nodes/elastic_peers.h"

#include <sys/epoll.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "base/status.h"
#include "launcher/nodes/elastic_job.h"

namespace dtrain::launcher {

absl::StatusOr<std::unique_ptr<ElasticPeers>> ElasticPeers::Create(
    std::unique_ptr<StorePeers> peers, LobbyAgent& lobby, int attempt,
    std::function<void(const std::string&)> say) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  for (const int fd : {peers->poll_fd(), lobby.poll_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (!epoll.valid() || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return ErrnoStatus(errno, "epoll of the other nodes' agents");
    }
  }
  return std::unique_ptr<ElasticPeers>(
      new ElasticPeers(std::move(peers), lobby, attempt, std::move(say), std::move(epoll)));
}

ElasticPeers::ElasticPeers(std::unique_ptr<StorePeers> peers, LobbyAgent& lobby, int attempt,
                           std::function<void(const std::string&)> say, UniqueFd epoll)
    : peers_(std::move(peers)),
      lobby_(lobby),
      attempt_(attempt),
      say_(std::move(say)),
      epoll_(std::move(epoll)) {}

std::vector<Order> ElasticPeers::Take() {
  std::vector<Order> orders = peers_->Take();
  for (Order& order : orders) {  // Node 0, which has the coordinator, is the first of the world.
    order.job_goes_on = order.kind == Order::Kind::kStop && !StopsJob(order.signal, order.node);
  }
  while (const auto stop = lobby_.TakeStop(attempt_)) {
    if (stop->kind == LobbyOrder::Kind::kStop && stop->save) {
      say_(stop->text);
      Order order;
      order.kind = Order::Kind::kStop;
      order.signal = SIGTERM;
      order.job_goes_on = stop->job_goes_on;
      orders.push_back(order);
    } else if (ended_.ok()) {
      ended_ = absl::UnavailableError(stop->text.empty() ? "the coordinator has ended this attempt"
                                                         : stop->text);
    }
  }
  if (ended_.ok()) {
    ended_ = lobby_.health();
  }
  if (!ended_.ok()) {
    peers_->GiveUp(ended_);
  }
  return orders;
}

absl::Status ElasticPeers::health() const { return ended_.ok() ? peers_->health() : ended_; }

}  // namespace dtrain::launcher
