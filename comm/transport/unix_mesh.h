// Unix-socket connections between all ranks of one node: they carry descriptors of shared memory,
// tell at once when a peer's process ends, and carry its messages.
//
// Every peer must run as this user (SO_PEERCRED) and know the group's nonce. The sockets are
// abstract or unnamed: nothing stays in a file system. One thread at a time calls SendFd and
// ReceiveFd; the rest is thread-safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/unique_fd.h"
#include "comm/transport/wait_context.h"

namespace dtrain::comm {

// A listening socket with a name of the kernel's choice.
struct UnixListener {
  UniqueFd fd;
  std::string name;   // Name of the abstract socket, in hexadecimal digits.
  std::string nonce;  // 32 hexadecimal digits; only ranks of the group learn it, from the store.

  static absl::StatusOr<UnixListener> Create();
};

class UnixMesh {
 public:
  struct Member {
    int rank = 0;      // Rank in the group, for messages.
    std::string name;  // Name of its UnixListener.
    std::string nonce;
  };
  // Blocks until all members are connected. `members` are the ranks of this node in order, `self`
  // indexes this rank among them.
  static absl::StatusOr<UnixMesh> Connect(UnixListener listener, std::vector<Member> members,
                                          int self, Deadline deadline);

  int self() const { return self_; }
  int size() const { return static_cast<int>(peers_.size()); }
  // The rank of member `index` in the group.
  int rank(int index) const { return peers_.at(static_cast<size_t>(index)).rank; }
  // The connection with member `index`; -1 for self. Non-blocking stream.
  int fd(int index) const { return peers_.at(static_cast<size_t>(index)).socket.get(); }

  absl::Status SendFd(int index, int fd, const WaitContext& context);
  absl::StatusOr<UniqueFd> ReceiveFd(int index, const WaitContext& context);

  // Unavailable, naming rank and pid, when member `index` has closed its connection or died.
  absl::Status CheckAlive(int index) const;
  // "rank 1 (pid 12)".
  std::string PeerName(int index) const;

 private:
  struct Peer {
    int rank = 0;
    pid_t pid = 0;  // The pid as this process sees it; 0 when it cannot.
    UniqueFd socket;
    UniqueFd pidfd;  // Notices a death even when a forked child holds the socket open.
  };
  absl::Status AddPeer(int index, UniqueFd socket);
  // The ranks after self that are not connected yet: "ranks 2, 3".
  std::string Unconnected() const;

  int self_ = 0;
  std::vector<Peer> peers_;
};

}  // namespace dtrain::comm
