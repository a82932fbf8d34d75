#include "comm/call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtrain::comm {
namespace {

constexpr char kRanksDiffer[] = "ranks differ at collective";

bool Reduces(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduceScatter;
}

bool SameShape(const CallHeader& a, const CallHeader& b) {
  return a.bytes == b.bytes && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.wire == b.wire && a.sum_of_squares == b.sum_of_squares;
}

}  // namespace

absl::string_view CallKindName(CallKind kind) {
  switch (kind) {
    case CallKind::kNone:
      return "none";
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kSend:
      return "send";
    case CallKind::kReceive:
      return "receive";
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kRegister:
      return "register";
  }
  return "unknown";  // A damaged header of a peer.
}

absl::string_view ReduceOpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "unknown";
}

absl::string_view WireName(Wire wire) {
  switch (wire) {
    case Wire::kSameAsBuffer:
      return "";
    case Wire::kBFloat16:
      return "bf16";
    case Wire::kFloat16:
      return "fp16";
  }
  return "unknown";
}

void SetName(CallHeader& header, absl::string_view name) {
  const size_t length = std::min(name.size(), sizeof(header.name) - 1);
  std::memset(header.name, 0, sizeof(header.name));
  std::memcpy(header.name, name.data(), length);
}

std::string Describe(const CallHeader& h) {
  std::string text(CallKindName(h.kind));
  if (h.name[0] != '\0') {
    absl::StrAppend(&text, " \"", absl::string_view(h.name, strnlen(h.name, sizeof(h.name))), "\"");
  }
  const std::string step = h.step >= 0 ? absl::StrCat(" in step ", h.step) : "";
  if (h.kind == CallKind::kBarrier || h.kind == CallKind::kNone) {
    return text + step;
  }
  if (Reduces(h.kind)) {
    absl::StrAppend(&text, " ", ReduceOpName(h.op));
  }
  if (h.kind != CallKind::kRegister) {
    absl::StrAppend(&text, " ", h.dtype <= DType::kBool ? DTypeName(h.dtype) : "unknown");
  }
  absl::StrAppend(&text, " ", h.bytes, " bytes");
  if (h.kind == CallKind::kBroadcast) {
    absl::StrAppend(&text, " from rank ", h.root);
  }
  const absl::string_view wire = WireName(h.wire);
  absl::StrAppend(&text, wire.empty() ? "" : " as ", wire, h.sum_of_squares ? " with norm" : "",
                  step);
  return text;
}

absl::Status CompareCalls(int my_rank, const CallHeader& mine, int their_rank,
                          const CallHeader& theirs) {
  const bool same_name = std::memcmp(mine.name, theirs.name, sizeof(mine.name)) == 0;
  if (mine.sequence == theirs.sequence && mine.kind == theirs.kind && same_name &&
      SameShape(mine, theirs)) {
    return absl::OkStatus();
  }
  // The lower rank first, so that both sides print the same line.
  std::pair<int, const CallHeader*> first{my_rank, &mine};
  std::pair<int, const CallHeader*> second{their_rank, &theirs};
  if (second.first < first.first) {
    std::swap(first, second);
  }
  const std::string text = absl::StrFormat(
      "%s %d: rank %d called %s, rank %d called %s: all ranks must make the same calls in the same "
      "order",
      kRanksDiffer, mine.sequence, first.first, Describe(*first.second), second.first,
      Describe(*second.second));
  const bool order = mine.kind != theirs.kind || !same_name || mine.sequence != theirs.sequence;
  return order ? absl::FailedPreconditionError(text) : absl::InvalidArgumentError(text);
}

absl::Status CompareSendReceive(int sender, const CallHeader& send, int receiver,
                                const CallHeader& receive) {
  const bool order = send.kind != CallKind::kSend || send.sequence != receive.sequence;
  if (!order && send.bytes == receive.bytes && send.dtype == receive.dtype) {
    return absl::OkStatus();
  }
  const std::string text = absl::StrFormat(
      "message %d from rank %d to rank %d differs: rank %d called %s, rank %d called %s: sizes, "
      "types and order of sends and receives must match",
      receive.sequence, sender, receiver, sender, Describe(send), receiver, Describe(receive));
  return order ? absl::FailedPreconditionError(text) : absl::InvalidArgumentError(text);
}

bool AreRanksDifferent(const absl::Status& status) {
  return absl::StrContains(status.message(), kRanksDiffer);
}

}  // namespace dtrain::comm
