// Collectives between the ranks of one node over shared memory, by the direct algorithm. The ranks
// are all ranks of a group, or its ranks on this node. Driven by one thread at a time; Break may
// come from any.
//
// Registered buffers are reached in place: each rank reduces its slice of everybody's buffer and
// writes the result into all of them, which is 4 x bytes of memory traffic for two ranks and no
// copy. Other buffers and small messages go through the staging area in chunks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/collectives/backend.h"
#include "comm/collectives/partition.h"
#include "comm/collectives/point_to_point.h"
#include "comm/transport/shm_segment.h"
#include "comm/transport/stream_transport.h"
#include "comm/transport/unix_mesh.h"

namespace dtrain::comm {

class ShmCollectives final : public Backend {
 public:
  // Collective over the mesh; blocks.
  static absl::StatusOr<std::unique_ptr<ShmCollectives>> Create(UnixMesh mesh,
                                                                const std::string& name,
                                                                const WaitContext& context);
  std::string transport() const override { return "shm"; }
  absl::Status RunPointToPoint(absl::Span<const Call> calls, const WaitContext& context) override {
    return messages_.Run(calls, context);
  }
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Call& call,
                                                         std::shared_ptr<SymmetricBuffer> buffer,
                                                         const WaitContext& context) override;
  bool Locate(const Registration& registration, const Buffer& buffer,
              CallHeader& header) const override;
  void Break(const absl::Status& reason) override { segment_->Break(reason); }
  absl::Status BrokenStatus() const override { return segment_->BrokenStatus(); }
  // The group's ranks that a wait in shared memory is for.
  std::vector<int> Awaited() const { return segment_->Awaited(); }

  absl::Status Begin(const Call& call, const WaitContext& context) override;
  absl::Status Meet(const Call& call, const WaitContext& context) override;
  absl::Status AllReduce(const Call& call, const WaitContext& context) override;
  absl::Status ReduceScatter(const Call& call, const WaitContext& context) override;
  absl::Status AllGather(const Call& call, const WaitContext& context) override;
  absl::Status Broadcast(const Call& call, const WaitContext& context) override;
  absl::Status AllToAll(const Call& call, const WaitContext& context) override;

  // The two halves of an all-reduce, both after Begin and Meet of that call. Gives the slice of the
  // buffer that this rank owns, reduced over the node: its sum (an average is not divided), maximum
  // or minimum, without the norm. Only the first `owners` ranks own a slice; the others' is empty.
  absl::StatusOr<Buffer> ReduceSlice(const Call& call, int owners, const WaitContext& context);
  // Each rank gets the slices of the others; the sum of squares, if wanted, is that of `squares`.
  absl::Status GatherSlices(const Call& call, int owners, double squares,
                            const WaitContext& context);

  // ReduceParts and GatherParts are the halves of a reduce-scatter and of an all-gather among more
  // ranks than this node's. A Share lists a member's parts of the buffer, in bytes. In the member's
  // own memory they follow each other, each in `room` bytes; the rest of a part's room is neither
  // read nor written.
  struct Share {
    std::vector<Slice> parts = {};
    size_t room = 0;
    size_t bytes() const { return parts.size() * room; }
  };
  using Shares = std::vector<Share>;  // By member.
  // Each rank ends with the node's sums (maxima, minima) of its parts of the input in `sums`; they
  // may be written over afterwards. Called after Begin and Meet, as the next two functions are.
  absl::Status ReduceParts(const Call& call, const Shares& shares, char* sums,
                           const WaitContext& context);
  // `own` holds this rank's parts; each rank ends with those bytes of all parts in `output` that
  // lie in `window` of the buffer.
  absl::Status GatherParts(const Shares& shares, const char* own, Slice window, char* output,
                           const WaitContext& context);
  // The sum over the node of every rank's `squares`.
  absl::StatusOr<double> SumSquares(const Call& call, double squares, const WaitContext& context);

 private:
  // The bytes of a buffer that belong to a member.
  using PartOf = absl::FunctionRef<Slice(int index)>;

  ShmCollectives(std::unique_ptr<UnixMesh> mesh, std::unique_ptr<ShmSegment> segment);

  absl::Status CheckHeaders(const Call& call) const;
  // The address in this process of each rank's source of this call; empty when any is not
  // registered.
  std::vector<char*> Sources(const Call& call) const;
  absl::Status AllReduceInPlace(const Call& call, const std::vector<char*>& sources,
                                const WaitContext& context);
  absl::Status AllReduceByAll(const Call& call, bool first_synced, const WaitContext& context);
  absl::Status AllReduceBySlices(const Call& call, const WaitContext& context);
  // Reduces this rank's part of everybody's input into `output`; `sources`: see Sources.
  absl::Status ReduceParts(const Call& call, const std::vector<char*>& sources, PartOf part_of,
                           char* output, double& squares, const WaitContext& context);
  // Copies everybody's part into its place in the output. `own` is this rank's part; `from` gives
  // the address of another's in this process, if it is registered.
  absl::Status GatherParts(const Call& call, bool registered, PartOf part_of, const char* own,
                           absl::FunctionRef<const char*(int index)> from,
                           const WaitContext& context);
  // `call` as it is summed inside the node: in the buffer's own type, and without the division of
  // an average.
  static Call InsideNode(const Call& call);
  size_t LongestPart(PartOf part_of) const;
  // Reduces as `call` says, and adds the sum of squares to `squares` if it is wanted.
  static void ReduceFor(const Call& call, absl::Span<const void* const> inputs,
                        absl::Span<void* const> outputs, size_t count, double& squares);
  // Copies [start, start + room) of every part of the input into this rank's stage, one after the
  // other.
  void StageParts(const Call& call, PartOf part_of, size_t start, size_t room);
  void SumPartials(const Call& call);

  std::unique_ptr<UnixMesh> mesh_;
  std::unique_ptr<ShmSegment> segment_;
  const int self_;
  const int size_;
  StreamTransport stream_;
  PointToPoint messages_;
  uint64_t turn_ = 0;  // Chooses the next staging buffer; equal on all ranks.
  uint32_t registrations_ = 0;
};

}  // namespace dtrain::comm
