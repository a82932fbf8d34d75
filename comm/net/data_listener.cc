#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/net/data_handshake.h"
#include "comm/net/data_socket.h"

namespace dtrain::comm {

absl::StatusOr<std::unique_ptr<DataListener>> DataListener::Create(const Endpoint& where,
                                                                   const JobKey& key,
                                                                   const Options& options) {
  std::unique_ptr<DataListener> listener(new DataListener(options));
  DataListener* const raw = listener.get();
  GateOptions gate = options.gate;
  gate.user_timeout = options.socket.user_timeout;
  gate.name = gate.name == GateOptions().name ? absl::StrFormat("data of rank %d", options.self)
                                              : gate.name;
  DT_ASSIGN_OR_RETURN(
      listener->gate_,
      Gate::Create(
          where, options.listen, gate,
          [key, options](UniqueFd fd) -> absl::StatusOr<std::unique_ptr<Handshake>> {
            const DataPeers peers{.epoch = options.epoch, .self = options.self};
            return DataHandshake::Create(std::move(fd), TlsRole::kServer, key, peers,
                                         options.world_size, options.socket);
          },
          [raw](std::unique_ptr<Handshake> done) {
            auto socket = static_cast<DataHandshake&>(*done).Finish();
            std::lock_guard lock(raw->mutex_);
            if (raw->ready_.size() >= raw->options_.ready_max) {
              DT_LOG(Warning) << "refused a data connection between " << socket->name() << ": "
                              << raw->ready_.size() << " wait to be accepted already";
              return;
            }
            raw->ready_.push_back(std::move(socket));
            raw->arrived_.notify_all();
          }));
  return listener;
}

DataListener::~DataListener() { gate_.reset(); }

void DataListener::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  arrived_.notify_all();
}

absl::StatusOr<std::unique_ptr<DataSocket>> DataListener::Accept(Deadline deadline) {
  return Take([](const DataPeers&) { return true; }, "no rank connected", deadline);
}

absl::StatusOr<std::unique_ptr<DataSocket>> DataListener::AcceptFrom(int rank, int channel,
                                                                     Deadline deadline) {
  return Take(
      [rank, channel](const DataPeers& peers) {
        return peers.peer == rank && peers.channel == channel;
      },
      absl::StrFormat("rank %d (channel %d) did not connect", rank, channel), deadline);
}

absl::StatusOr<std::unique_ptr<DataSocket>> DataListener::Take(
    const std::function<bool(const DataPeers&)>& fits, const std::string& whom, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto found = std::find_if(ready_.begin(), ready_.end(),
                                    [&](const auto& socket) { return fits(socket->peers()); });
    if (found != ready_.end()) {
      auto socket = std::move(*found);
      ready_.erase(found);
      return socket;
    }
    if (closed_) {
      return absl::CancelledError(
          absl::StrFormat("rank %d listens no longer at %s", options_.self, endpoint().ToString()));
    }
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(
          absl::StrFormat("%s: nothing came to rank %d at %s in time (%d connections refused)",
                          whom, options_.self, endpoint().ToString(), rejected()));
    }
    arrived_.wait_for(lock, std::chrono::milliseconds(deadline.PollTimeoutMs()));
  }
}

}  // namespace dtrain::comm
