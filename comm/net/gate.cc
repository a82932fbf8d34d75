#include "comm/net/gate.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/threads/worker.h"

namespace dtrain::comm {
namespace {

int64_t Now() { return Clock::Real().MonotonicNanos(); }

int16_t PollEvents(IoWant want) {
  return static_cast<int16_t>(want == IoWant::kWrite ? POLLOUT : POLLIN);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gate>> Gate::Create(const Endpoint& where,
                                                   const ListenOptions& listen,
                                                   const GateOptions& options, Factory factory,
                                                   Admit admit) {
  DT_ASSIGN_OR_RETURN(UniqueFd listener, Listen(where, listen));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return ErrnoStatus(errno, "eventfd");
  }
  std::unique_ptr<Gate> gate(new Gate(std::move(listener), std::move(wake), options,
                                      std::move(factory), std::move(admit)));
  gate->thread_ = std::thread([raw = gate.get()] { raw->Run(); });
  return gate;
}

Gate::Gate(UniqueFd listener, UniqueFd wake, const GateOptions& options, Factory factory,
           Admit admit)
    : options_(options),
      factory_(std::move(factory)),
      admit_(std::move(admit)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      endpoint_(LocalEndpoint(listener_.get())) {}

Gate::~Gate() {
  stop_ = true;
  (void)eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Gate::Run() {
  PrepareThread("dtrain-gate", /*low_priority=*/false);
  std::vector<pollfd> polls;
  std::vector<std::list<Pending>::iterator> order;
  while (!stop_) {
    const int64_t now = Now();
    LogRejects(now);
    polls.assign(
        {{wake_.get(), POLLIN, 0}, {now < accept_again_nanos_ ? -1 : listener_.get(), POLLIN, 0}});
    order.clear();
    for (auto it = pending_.begin(); it != pending_.end(); ++it) {
      polls.push_back({it->handshake->fd(), PollEvents(it->want), 0});
      order.push_back(it);
    }
    // Only time limits need waking for; without any the thread sleeps.
    const bool timed =
        !pending_.empty() || now < accept_again_nanos_ || rejects_logged_ != rejected_.load();
    if (::poll(polls.data(), polls.size(), timed ? 100 : -1) < 0 && errno != EINTR) {
      DT_LOG(Error) << options_.name << ": poll: " << std::strerror(errno);
      return;
    }
    for (size_t i = 0; i < order.size(); ++i) {
      if (polls[i + 2].revents != 0) {
        AdvanceOne(order[i]);
      }
    }
    const int64_t oldest = Now() - absl::ToInt64Nanoseconds(options_.handshake_timeout);
    while (!pending_.empty() && pending_.front().since_nanos < oldest) {
      Reject(pending_.front().address, "no proof of the job's key in time");
      pending_.pop_front();
    }
    if (polls[1].revents != 0) {
      AcceptAll();
    }
  }
}

void Gate::AcceptAll() {
  // Bounded, so that a flood cannot starve the handshakes that are under way.
  for (int i = 0; i < options_.pending_max; ++i) {
    auto accepted = AcceptNow(listener_.get());
    if (!accepted.ok()) {  // Out of descriptors or memory: leave the rest in the backlog a while.
      Reject("?", std::string(accepted.status().message()));
      accept_again_nanos_ = Now() + absl::ToInt64Nanoseconds(absl::Milliseconds(100));
      return;
    }
    if (!accepted->valid()) {
      return;
    }
    const std::string address = PeerEndpoint(accepted->get()).host;
    const int64_t now = Now();
    if (!MakeRoom(address, options_.loopback_exempt && IsLoopback(address), now)) {
      Reject(address, "too many unfinished handshakes");
      continue;
    }
    const absl::Status prepared = PrepareSocket(accepted->get(), options_.user_timeout);
    auto handshake = prepared.ok() ? factory_(*std::move(accepted)) : prepared;
    if (!handshake.ok()) {
      Reject(address, std::string(handshake.status().message()));
      continue;
    }
    pending_.push_back({*std::move(handshake), address, now, IoWant::kRead});
    AdvanceOne(std::prev(pending_.end()));
  }
}

bool Gate::MakeRoom(const std::string& address, bool exempt, int64_t now) {
  int from_address = 0;
  auto oldest_of_address = pending_.end();
  for (auto it = pending_.begin(); it != pending_.end() && !exempt; ++it) {
    if (it->address == address) {
      oldest_of_address = from_address++ == 0 ? it : oldest_of_address;
    }
  }
  auto victim = pending_.end();
  if (from_address >= options_.per_address_max) {
    victim = oldest_of_address;
  } else if (pending_.size() >= static_cast<size_t>(options_.pending_max)) {
    victim = pending_.begin();
  } else {
    return true;
  }
  if (now - victim->since_nanos < absl::ToInt64Nanoseconds(options_.grace)) {
    return false;
  }
  Reject(victim->address, "an unfinished handshake made room for a newer one");
  pending_.erase(victim);
  return true;
}

void Gate::AdvanceOne(std::list<Pending>::iterator pending) {
  const auto want = pending->handshake->Advance();
  if (!want.ok()) {
    Reject(pending->address, std::string(want.status().message()));
    pending_.erase(pending);
  } else if (*want == IoWant::kNothing) {
    std::unique_ptr<Handshake> done = std::move(pending->handshake);
    pending_.erase(pending);
    admit_(std::move(done));
  } else {
    pending->want = *want;
  }
}

void Gate::Reject(const std::string& address, const std::string& reason) {
  ++rejected_;
  last_reject_ = absl::StrCat(address, ": ", reason);
}

void Gate::LogRejects(int64_t now) {
  const uint64_t rejected = rejected_.load();
  if (rejected == rejects_logged_ ||
      (logged_at_nanos_ != 0 &&
       now - logged_at_nanos_ < absl::ToInt64Nanoseconds(options_.log_interval))) {
    return;
  }
  DT_LOG(Warning) << options_.name << " at " << endpoint_.ToString() << ": refused "
                  << rejected - rejects_logged_ << " connections (" << rejected
                  << " in all); the last from " << last_reject_;
  rejects_logged_ = rejected;
  logged_at_nanos_ = now;
}

}  // namespace dtrain::comm
