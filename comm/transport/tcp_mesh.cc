#include "comm/transport/tcp_mesh.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/net/data_socket.h"
#include "comm/net/socket.h"
#include "comm/net/store_client.h"
#include "comm/transport/stream_transport.h"

namespace dtrain::comm {
namespace {

// Channel 0 of a pair carries reasons, those from 1 on data.
constexpr int kControlChannel = 0;

absl::StatusOr<JobKey> KeyOf(const GroupOptions& options) {
  if (options.job_key.empty()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "group \"%s\" needs TCP between its ranks, and there is no job key to authenticate them: "
        "start through dtrain launch, or set DTRAIN_TOKEN_FILE",
        options.name));
  }
  return JobKey::FromBytes(absl::MakeConstSpan(
      reinterpret_cast<const uint8_t*>(options.job_key.data()), options.job_key.size()));
}

}  // namespace

absl::StatusOr<std::string> HostAddress(Store& store, const GroupOptions& options) {
  if (!options.host_interface.empty()) {
    return InterfaceAddress(options.host_interface);
  }
  if (!options.host_address.empty()) {
    return options.host_address;
  }
  const auto* const client = dynamic_cast<StoreClient*>(&store);
  return client != nullptr ? client->local_endpoint().host : "127.0.0.1";
}

absl::StatusOr<std::unique_ptr<StreamTransport>> ConnectTcpMesh(Store& store,
                                                                const GroupOptions& options,
                                                                const std::string& prefix,
                                                                std::vector<std::string> names,
                                                                Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const JobKey key, KeyOf(options));
  DataListener::Options listen;
  listen.epoch = options.epoch;
  listen.self = options.rank;
  listen.world_size = options.size;
  listen.socket.tls = options.tcp_tls;
  Endpoint mine;
  DT_ASSIGN_OR_RETURN(mine.host, HostAddress(store, options));
  DT_ASSIGN_OR_RETURN(const auto listener, DataListener::Create(mine, key, listen));
  const std::string published = absl::StrCat(prefix, "/tcp");
  DT_RETURN_IF_ERROR(store.Set(RankKey(published, options.rank),
                               Endpoint{mine.host, listener->port()}.ToString(), deadline));
  DT_RETURN_IF_ERROR(WaitForRanks(store, published, options.size, deadline));

  std::vector<StreamPeer> peers(static_cast<size_t>(options.size));
  for (int rank = 0; rank < options.size; ++rank) {
    StreamPeer& peer = peers[static_cast<size_t>(rank)];
    peer.name = std::move(names[static_cast<size_t>(rank)]);
    if (rank == options.rank) {
      continue;
    }
    Endpoint where;
    if (rank < options.rank) {
      DT_ASSIGN_OR_RETURN(const std::string text, store.Get(RankKey(published, rank), deadline));
      DT_ASSIGN_OR_RETURN(where, ParseEndpoint(text));
    }
    const auto open = [&](int channel) {
      return rank < options.rank
                 ? DataSocket::Connect(where, key,
                                       DataPeers{options.epoch, options.rank, rank, channel},
                                       listen.socket, deadline)
                 : listener->AcceptFrom(rank, channel, deadline);
    };
    for (int channel = 0; channel <= options.tcp_connections; ++channel) {
      auto socket = open(channel);
      if (!socket.ok()) {
        return Annotate(socket.status(), absl::StrCat("connecting to ", peer.name));
      }
      if (channel == kControlChannel) {
        peer.control = std::make_unique<DataChannel>(*std::move(socket));
        continue;
      }
      // Ranks send ahead, so a late rank may leave more bytes unread than its window holds. The
      // deadlines of collectives bound that; the control line tells of a dead host.
      DT_RETURN_IF_ERROR((*socket)->WaitForLateReader());
      peer.data.push_back(std::make_unique<DataChannel>(*std::move(socket)));
    }
  }
  return std::make_unique<StreamTransport>(options.rank, std::move(peers),
                                           [](int) { return absl::OkStatus(); });
}

}  // namespace dtrain::comm
