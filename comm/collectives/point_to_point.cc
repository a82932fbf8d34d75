#include "comm/collectives/point_to_point.h"

#include "base/status.h"

namespace dtrain::comm {

absl::Status PointToPoint::Run(absl::Span<const Call> calls, const WaitContext& context) {
  // All headers first: a size that differs must be found before its bytes are taken for another
  // message. Sent bytes follow at once; a receiver reads them only after it has agreed.
  std::vector<CallHeader> mine(calls.size());
  std::vector<CallHeader> theirs(calls.size());
  // One round for each message of a pair, so that headers and bytes keep their order.
  std::vector<bool> done(calls.size(), false);
  size_t left = calls.size();
  while (left > 0) {
    std::vector<bool> sending(sent_.size(), false);
    std::vector<bool> receiving(received_.size(), false);
    std::vector<size_t> round;
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto peer = static_cast<size_t>(calls[i].peer);
      auto& busy = calls[i].header.kind == CallKind::kSend ? sending : receiving;
      if (!done[i] && !busy.at(peer)) {
        busy[peer] = true;
        done[i] = true;
        --left;
        round.push_back(i);
      }
    }
    std::vector<Transfer> headers;
    std::vector<Transfer> bodies;
    for (const size_t i : round) {
      const Call& call = calls[i];
      const auto peer = static_cast<size_t>(call.peer);
      mine[i] = call.header;
      if (call.header.kind == CallKind::kSend) {
        mine[i].sequence = ++sent_[peer];
        headers.push_back(SendTo(call.peer, &mine[i], sizeof(CallHeader)));
        bodies.push_back(SendTo(call.peer, call.input.data, call.input.bytes));
      } else {
        mine[i].sequence = ++received_[peer];
        headers.push_back(ReceiveFrom(call.peer, &theirs[i], sizeof(CallHeader)));
        bodies.push_back(ReceiveFrom(call.peer, call.output.data, call.output.bytes));
      }
    }
    DT_RETURN_IF_ERROR(transport_.Move(headers, context));
    for (const size_t i : round) {
      if (calls[i].header.kind == CallKind::kReceive) {
        DT_RETURN_IF_ERROR(
            CompareSendReceive(calls[i].peer, theirs[i], transport_.rank(), mine[i]));
      }
    }
    DT_RETURN_IF_ERROR(transport_.Move(bodies, context));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::comm
