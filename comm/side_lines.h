// Data connections between the ranks of a host group beside its collectives, for a service that
// answers whenever it is asked. They are authenticated, and encrypted with comm.tcp.tls, like those
// of the group. A value; thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "comm/group.h"
#include "comm/net/data_socket.h"
#include "comm/net/job_key.h"
#include "comm/net/socket.h"
#include "comm/net/store.h"

namespace dtrain::comm {

class SideLines {
 public:
  // `store`: the one by which the group was made. InvalidArgument: it is no host group.
  // FailedPrecondition: there is no job key to authenticate with.
  static absl::StatusOr<SideLines> Of(Group& group, Store& store);

  // Listens at the address at which the other ranks reach this one.
  absl::StatusOr<std::unique_ptr<DataListener>> Listen() const;
  // Connects to the listener of a rank.
  absl::StatusOr<std::unique_ptr<DataSocket>> Connect(int rank, const Endpoint& where,
                                                      Deadline deadline) const;

 private:
  SideLines(const JobKey& key, std::string address, DataListener::Options options)
      : key_(key), address_(std::move(address)), options_(std::move(options)) {}

  JobKey key_;
  std::string address_;
  DataListener::Options options_;
};

}  // namespace dtrain::comm
