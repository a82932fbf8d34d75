// `dtrain launch --nnodes MIN:MAX`: this node's part of a job whose number of nodes changes.
//
// The agent joins the coordinator's lobby and does what it orders: waits as a spare, runs attempts,
// leaves. Node 0 also has the coordinator. Used by the main thread.
#pragma once

#include "launcher/node_session.h"

namespace dtrain::launcher {

// Blocks until this node has left the job, or the job has ended. Returns the exit code. REQUIRES:
// the session is prepared.
int RunElastic(NodeSession& session);

}  // namespace dtrain::launcher
