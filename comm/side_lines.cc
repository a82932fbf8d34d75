#include "comm/side_lines.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "comm/host_group.h"
#include "comm/transport/tcp_mesh.h"

namespace dtrain::comm {

absl::StatusOr<SideLines> SideLines::Of(Group& group, Store& store) {
  const auto* const host = dynamic_cast<HostGroup*>(&group);
  if (host == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group over ", group.transport(), " has no lines between its hosts"));
  }
  const GroupOptions& of_group = host->options();
  if (of_group.job_key.empty()) {
    return absl::FailedPreconditionError(
        "ranks of several hosts read each other's files over TCP, and there is no job key to "
        "authenticate them: start through dtrain launch, or set DTRAIN_TOKEN_FILE");
  }
  DT_ASSIGN_OR_RETURN(
      const JobKey key,
      JobKey::FromBytes(absl::MakeConstSpan(
          reinterpret_cast<const uint8_t*>(of_group.job_key.data()), of_group.job_key.size())));
  DT_ASSIGN_OR_RETURN(std::string address, HostAddress(store, of_group));
  DataListener::Options options;
  options.epoch = of_group.epoch;
  options.self = of_group.rank;
  options.world_size = of_group.size;
  options.socket.tls = of_group.tcp_tls;
  return SideLines(key, std::move(address), std::move(options));
}

absl::StatusOr<std::unique_ptr<DataListener>> SideLines::Listen() const {
  return DataListener::Create({address_, 0}, key_, options_);
}

absl::StatusOr<std::unique_ptr<DataSocket>> SideLines::Connect(int rank, const Endpoint& where,
                                                               Deadline deadline) const {
  const DataPeers peers{.epoch = options_.epoch, .self = options_.self, .peer = rank};
  return DataSocket::Connect(where, key_, peers, options_.socket, deadline);
}

}  // namespace dtrain::comm
