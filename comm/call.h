// One call of a group, as it is queued, published to peers, compared and reported. Plain values and
// pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "comm/buffer.h"

namespace dtrain::comm {

enum class CallKind : uint8_t {
  kNone,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kSend,
  kReceive,
  kBarrier,
  kRegister,
};
// "all_reduce", "reduce_scatter", ...
absl::string_view CallKindName(CallKind kind);
absl::string_view ReduceOpName(ReduceOp op);

// The part of a call that peers see, in shared memory or as the first bytes of its messages. Plain
// bytes.
struct CallHeader {
  uint64_t sequence = 0;  // Collectives: equal on all ranks. Sends: counted for each pair of ranks.
  uint64_t bytes = 0;     // The largest buffer of the call.
  uint64_t offset = 0;    // Start of the source in its registered buffer, in bytes.
  uint32_t registration = 0;  // 0: the source is not registered.
  int32_t root = -1;
  int64_t step = -1;  // The training step, for reports; -1: not known. Not compared.
  CallKind kind = CallKind::kNone;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Wire wire = Wire::kSameAsBuffer;  // kSameAsBuffer for a buffer of that very type.
  bool sum_of_squares = false;
  char name[83] = {};
};
static_assert(sizeof(CallHeader) == 128, "two cache lines");

// "bf16", "fp16", "".
absl::string_view WireName(Wire wire);

// Cuts `name` to what a header holds.
void SetName(CallHeader& header, absl::string_view name);

// `all_reduce "bucket 3" sum fp32 1024 bytes in step 7`.
std::string Describe(const CallHeader& header);

// OK when `mine` and `theirs` are the same call. InvalidArgument for another size, type, operation
// or root, FailedPrecondition for another order; the text has both sides and is the same on both.
absl::Status CompareCalls(int my_rank, const CallHeader& mine, int their_rank,
                          const CallHeader& theirs);

// The same between a send and the receive that it met.
absl::Status CompareSendReceive(int sender, const CallHeader& send, int receiver,
                                const CallHeader& receive);

// Whether `status` is an error of CompareCalls, on this rank or on another that gave up because of
// it.
bool AreRanksDifferent(const absl::Status& status);

}  // namespace dtrain::comm
