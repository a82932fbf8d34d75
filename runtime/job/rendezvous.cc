
#include "runtime/job/rendezvous.h"

#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/console/wait_notice.h"
#include "base/file.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "comm/net/await_key.h"
#include "comm/net/socket.h"
#include "comm/net/store_client.h"
#include "runtime/job/torch_store.h"

namespace dtrain {
namespace {

constexpr absl::Duration kTokenPoll = absl::Milliseconds(20);

std::string KeyBytes(const comm::JobKey& key) {
  const auto bytes = key.secret_bytes();
  return std::string(bytes.begin(), bytes.end());
}

uint64_t EpochOf(const JobEnv& env) { return static_cast<uint64_t>(env.attempt); }

absl::StatusOr<std::shared_ptr<comm::Store>> ConnectTo(const comm::Endpoint& where,
                                                       const comm::JobKey& key, const JobEnv& env,
                                                       Deadline deadline) {
  const comm::Hello hello{.epoch = EpochOf(env),
                          .role = comm::Hello::Role::kRank,
                          .id = env.rank,
                          .name = absl::StrCat("rank ", env.rank)};
  DT_ASSIGN_OR_RETURN(auto client, comm::StoreClient::Connect(where, key, hello, deadline));
  return std::shared_ptr<comm::Store>(std::move(client));
}

// The file in the run directory that carries the key between the ranks of a launcher without agent.
class SharedTokenFile {
 public:
  SharedTokenFile(const std::string& run_dir, const std::string& unique)
      : path_(absl::StrCat(run_dir, "/.token-", unique)) {}

  absl::StatusOr<comm::JobKey> Create(const std::string& run_dir) const {
    DT_RETURN_IF_ERROR(MakeDirectories(run_dir));
    unlink(path_.c_str());  // The key of an attempt that died is worth nothing.
    DT_ASSIGN_OR_RETURN(const comm::JobKey key, comm::JobKey::Generate());
    DT_RETURN_IF_ERROR(key.WriteFile(path_));
    return key;
  }
  absl::StatusOr<comm::JobKey> Await(Deadline deadline) const {
    return comm::AwaitKeyFile(
        path_, deadline,
        absl::FailedPreconditionError(absl::StrFormat(
            "no job token: rank 0 left none in %s, and DTRAIN_TOKEN_FILE is not set; give a run "
            "directory that all nodes share, or set DTRAIN_TOKEN_FILE to a 0600 file of 32 bytes",
            path_)));
  }
  void Remove() const { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

bool HasKey(const JobEnv& env) { return env.token_fd >= 0 || !env.token_file.empty(); }

std::string WhoWaits(const JobEnv& env) {
  return absl::StrFormat("rank %d of %d waits for", env.rank, env.world_size);
}

// A launcher's variables that are left in a shell make ranks of programs that are alone.
std::string WhyRanks(const JobEnv& env) {
  return absl::StrFormat("%s is %d: unset it if this program is to run alone", env.world_size_name,
                         env.world_size);
}

// The notice of another rank while it joins rank 0 at `where`.
std::string WaitsForRankZero(const JobEnv& env, const comm::Endpoint& where,
                             const SharedTokenFile& file) {
  return absl::StrFormat(
      "%s rank 0 at %s%s (%s)", WhoWaits(env), where.ToString(),
      HasKey(env) ? "" : absl::StrCat(" and for the job's key, which it leaves in ", file.path()),
      WhyRanks(env));
}

// Rank 0, once it serves at `where`: blocks until the others have joined.
absl::Status AwaitAll(comm::Store& store, const JobEnv& env, const comm::Endpoint& where,
                      Deadline deadline) {
  DT_RETURN_IF_ERROR(store.Set(comm::RankKey("joined", 0), "1", deadline));
  return comm::WaitForRanks(store, "joined", env.world_size, deadline,
                            absl::StrFormat("%s (%s)", where.ToString(), WhyRanks(env)));
}

absl::StatusOr<std::unique_ptr<comm::StoreServer>> Serve(const JobEnv& env, int port,
                                                         const comm::JobKey& key) {
  const bool one_node = env.local_world_size == env.world_size;
  std::string address = env.host_address;
  if (address.empty()) {
    address = one_node ? "127.0.0.1" : env.store_host;
  }
  return comm::StoreServer::Create(address, port, key, EpochOf(env));
}

// Rank 0's part: makes or loads the key, serves at `port` (0: a free one), says where, and waits
// for the others.
absl::StatusOr<std::unique_ptr<Rendezvous>> Host(
    const JobEnv& env, const std::string& run_dir, const SharedTokenFile& file, int port,
    absl::FunctionRef<absl::Status(const comm::Endpoint&)> publish, Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const comm::JobKey key, HasKey(env)
                                                  ? comm::JobKey::Load(env.token_fd, env.token_file)
                                                  : file.Create(run_dir));
  auto meeting = std::make_unique<Rendezvous>();
  meeting->key_bytes = KeyBytes(key);
  DT_ASSIGN_OR_RETURN(meeting->server, Serve(env, port, key));
  DT_ASSIGN_OR_RETURN(meeting->store, ConnectTo(meeting->server->endpoint(), key, env, deadline));
  DT_RETURN_IF_ERROR(publish(meeting->server->endpoint()));
  const absl::Status joined = AwaitAll(*meeting->store, env, meeting->server->endpoint(), deadline);
  if (!HasKey(env)) {
    file.Remove();
  }
  DT_RETURN_IF_ERROR(joined);
  return meeting;
}

// The others' part, once the key is known.
absl::StatusOr<std::unique_ptr<Rendezvous>> Join(const JobEnv& env, const comm::Endpoint& where,
                                                 const comm::JobKey& key, Deadline deadline) {
  auto meeting = std::make_unique<Rendezvous>();
  meeting->key_bytes = KeyBytes(key);
  DT_ASSIGN_OR_RETURN(meeting->store, ConnectTo(where, key, env, deadline));
  DT_RETURN_IF_ERROR(meeting->store->Set(comm::RankKey("joined", env.rank), "1", deadline));
  return meeting;
}

absl::StatusOr<std::unique_ptr<Rendezvous>> MeetThroughTorchStore(const JobEnv& env,
                                                                  const std::string& run_dir,
                                                                  Deadline deadline) {
  const std::string torchrun =
      absl::StrFormat("torchrun's store at %s:%d", env.store_host, env.store_port);
  std::optional<WaitNotice> notice(std::in_place, absl::StrCat(WhoWaits(env), " ", torchrun));
  DT_ASSIGN_OR_RETURN(
      const auto torch_store,
      TorchStore::Connect(env.store_host, env.store_port,
                          absl::StrFormat("dtrain/%s/%d", env.run_id, env.attempt), deadline));
  notice.reset();
  if (env.rank == 0) {
    // Clock and pid tell two runs on one shared directory apart; this name is no secret.
    const std::string unique = absl::StrFormat(
        "%016x", MixBits(static_cast<uint64_t>(absl::ToUnixNanos(Clock::Real().WallTime())) ^
                         static_cast<uint64_t>(getpid())));
    const auto publish = [&](const comm::Endpoint& where) {
      return torch_store->Set("store", absl::StrCat(unique, " ", where.ToString()));
    };
    return Host(env, run_dir, SharedTokenFile(run_dir, unique), 0, publish, deadline);
  }
  notice.emplace(absl::StrCat(WhoWaits(env), " rank 0 to leave its address in ", torchrun));
  DT_ASSIGN_OR_RETURN(const std::string published, torch_store->Get("store"));
  const size_t space = published.find(' ');
  if (space == std::string::npos) {
    return absl::InternalError("rank 0 published a malformed address: " + published);
  }
  DT_ASSIGN_OR_RETURN(const comm::Endpoint where, comm::ParseEndpoint(published.substr(space + 1)));
  const SharedTokenFile file(run_dir, published.substr(0, space));
  notice.emplace(WaitsForRankZero(env, where, file));
  DT_ASSIGN_OR_RETURN(const comm::JobKey key, HasKey(env)
                                                  ? comm::JobKey::Load(env.token_fd, env.token_file)
                                                  : file.Await(deadline));
  return Join(env, where, key, deadline);
}

// mpirun, srun: rank 0 serves at the address that everyone derives from the environment.
absl::StatusOr<std::unique_ptr<Rendezvous>> MeetAtKnownAddress(const JobEnv& env,
                                                               const std::string& run_dir,
                                                               Deadline deadline) {
  const SharedTokenFile file(run_dir, absl::StrCat(env.run_id, "-", env.attempt));
  if (env.rank == 0) {
    const auto known = [](const comm::Endpoint&) { return absl::OkStatus(); };
    return Host(env, run_dir, file, env.store_port, known, deadline);
  }
  const comm::Endpoint where{env.store_host, env.store_port};
  const WaitNotice notice(WaitsForRankZero(env, where, file));
  while (true) {  // A stale file of a dead attempt has another key: read it again until it fits.
    DT_ASSIGN_OR_RETURN(
        const comm::JobKey key,
        HasKey(env) ? comm::JobKey::Load(env.token_fd, env.token_file) : file.Await(deadline));
    auto meeting = Join(env, where, key, deadline);
    if (meeting.ok() || !absl::IsPermissionDenied(meeting.status()) || HasKey(env) ||
        deadline.Expired()) {
      return meeting;
    }
    Clock::Real().Sleep(kTokenPoll);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Meet(const JobEnv& env, const std::string& run_dir,
                                                 Deadline deadline) {
  if (env.store_is_served) {
    DT_ASSIGN_OR_RETURN(const comm::JobKey key, comm::JobKey::Load(env.token_fd, env.token_file));
    const comm::Endpoint where{env.store_host, env.store_port};
    const WaitNotice notice(
        absl::StrFormat("%s the coordinator of dtrain launch at %s (%s names it)", WhoWaits(env),
                        where.ToString(), env::kStore));
    auto meeting = std::make_unique<Rendezvous>();
    meeting->key_bytes = KeyBytes(key);
    DT_ASSIGN_OR_RETURN(meeting->store, ConnectTo(where, key, env, deadline));
    return meeting;
  }
  return env.torch_agent_store ? MeetThroughTorchStore(env, run_dir, deadline)
                               : MeetAtKnownAddress(env, run_dir, deadline);
}

}  // namespace dtrain
