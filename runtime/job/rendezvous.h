// How the ranks of a job meet: one key-value store that all of them reach, and the key they share.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/job_env.h"
#include "comm/net/job_key.h"
#include "comm/net/store.h"
#include "comm/net/store_server.h"

namespace dtrain {

struct Rendezvous {
  std::unique_ptr<comm::StoreServer> server;  // On rank 0 under launchers without a dtrain agent.
  std::shared_ptr<comm::Store> store;
  std::string key_bytes;  // 32 bytes: comm::GroupOptions::job_key.
  ~Rendezvous() {
    store.reset();
    server.reset();
  }
};

// Connects this rank. Blocks until the store answers. Under `dtrain launch` the coordinator serves
// the store; elsewhere rank 0 does, at an address found through torchrun's own store, or at the
// meeting point that the environment names. The key comes from DTRAIN_TOKEN_FD or
// DTRAIN_TOKEN_FILE, else from a 0600 file that rank 0 creates exclusively in `run_dir` and removes
// when all have joined.
absl::StatusOr<std::unique_ptr<Rendezvous>> Meet(const JobEnv& env, const std::string& run_dir,
                                                 Deadline deadline);

}  // namespace dtrain
