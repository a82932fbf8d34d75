#include "launcher/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "launcher/machine.h"

namespace dtrain::launcher {

absl::StatusOr<Rendezvous> Rendezvous::Join(const JoinRequest& request,
                                            const std::function<int()>& cancelled) {
  Rendezvous meeting;
  meeting.shape_.attempt = request.attempt;
  meeting.shape_.node_rank = request.options.node_rank;
  if (request.options.nodes == 1) {
    DT_RETURN_IF_ERROR(meeting.JoinOneNode(request));
  } else {
    DT_RETURN_IF_ERROR(meeting.JoinNodes(request, cancelled));
  }
  return meeting;
}

absl::Status Rendezvous::JoinOneNode(const JoinRequest& request) {
  constexpr char kLoopback[] = "127.0.0.1";
  DT_ASSIGN_OR_RETURN(server_, comm::StoreServer::Create(kLoopback, 0, request.key,
                                                         static_cast<uint64_t>(request.attempt)));
  shape_.ranks_of_node = {request.local_ranks};
  shape_.run_id = request.run_id;
  shape_.store = server_->endpoint().ToString();
  shape_.host_address = kLoopback;
  shape_.node_id = absl::StrCat(request.run_id, "/0");
  shape_.master_address = kLoopback;
  shape_.master_port = FreePort(kLoopback);
  return absl::OkStatus();
}

absl::Status Rendezvous::JoinNodes(const JoinRequest&, const std::function<int()>&) {
  return absl::UnimplementedError("several nodes");
}

Rendezvous::~Rendezvous() { peers_.reset(); }

}  // namespace dtrain::launcher
