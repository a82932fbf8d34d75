// Asks the agents of all nodes of an attempt how their ranks are. The question and the answers go
// through the store in which the agents meet, so only holders of the job's token take part.
// Thread-safe.
#pragma once

#include <vector>

#include "comm/net/job_key.h"
#include "comm/net/socket.h"
#include "launcher/jobs/job_status.h"
#include "launcher/nodes/elastic_job.h"

namespace dtrain::launcher {

struct AskedAttempt {
  int number = -1;
  comm::Endpoint store = {};
  // By node rank. Hosts may be "": nodes of a fixed number have said theirs in the store.
  std::vector<ElasticNode> nodes = {};
};

// Waits for the store a second at most, and then for the answers a second; to read those of many
// nodes may take some more. A node that does not answer in time has no text; the note says why
// nobody could be asked.
JobNodes AskNodes(const AskedAttempt& attempt, const comm::JobKey& key);

}  // namespace dtrain::launcher
