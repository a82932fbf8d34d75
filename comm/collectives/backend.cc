#include "comm/collectives/backend.h"

#include "base/status.h"

namespace dtrain::comm {

absl::Status Backend::Run(const Call& call, const WaitContext& context) {
  DT_RETURN_IF_ERROR(Begin(call, context));
  switch (call.header.kind) {
    case CallKind::kAllReduce:
      return AllReduce(call, context);
    case CallKind::kReduceScatter:
      return ReduceScatter(call, context);
    case CallKind::kAllGather:
      return AllGather(call, context);
    case CallKind::kBroadcast:
      return Broadcast(call, context);
    case CallKind::kAllToAll:
      return AllToAll(call, context);
    default:
      return Meet(call, context);
  }
}

}  // namespace dtrain::comm
