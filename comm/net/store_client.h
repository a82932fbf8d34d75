// A Store served by a StoreServer of this or another host, over TLS with the job's key.
//
// Thread-safe: calls of several threads share one connection and are told apart by request ids.
// There is no reconnect: when the connection breaks, all calls give Unavailable for good.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "comm/net/secure_channel.h"
#include "comm/net/store.h"

namespace dtrain::comm {

struct StoreRequest;
struct StoreReply;

class StoreClient final : public Store {
 public:
  // Waits until the server listens; errors as SecureChannel::Connect.
  static absl::StatusOr<std::unique_ptr<StoreClient>> Connect(const Endpoint& server,
                                                              const JobKey& key, const Hello& hello,
                                                              Deadline deadline);
  ~StoreClient() override;

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, Deadline deadline) override;
  absl::StatusOr<Exchange> CompareExchange(absl::string_view key,
                                           std::optional<absl::string_view> expected,
                                           absl::string_view desired, Deadline deadline) override;
  absl::Status Wait(absl::Span<const std::string> keys, Deadline deadline) override;
  absl::StatusOr<std::vector<bool>> Check(absl::Span<const std::string> keys,
                                          Deadline deadline) override;
  absl::StatusOr<bool> Delete(absl::string_view key, Deadline deadline) override;
  // Sets the next item of `list` (ListItemKey) and gives its number, from 1 on. One call: no client
  // that dies leaves a number without an item, and many that append at once do not compete.
  absl::StatusOr<int64_t> Append(absl::string_view list, absl::string_view value,
                                 Deadline deadline);

  // Makes waiting and later calls fail with Unavailable; for an abort from another thread.
  void Close();
  // The local end of the connection: the address by which the server's host reaches this one.
  Endpoint local_endpoint() const;
  const std::string& name() const { return channel_->name(); }

 private:
  explicit StoreClient(std::unique_ptr<SecureChannel> channel);
  // Sends, then waits for the reply with the same id.
  absl::StatusOr<StoreReply> Call(StoreRequest& request, Deadline deadline);
  absl::StatusOr<StoreReply> Await(uint64_t id, Deadline deadline);
  void ReadOne(std::unique_lock<std::mutex>& lock, Deadline deadline);

  const std::unique_ptr<SecureChannel> channel_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_id_ = 1;
  bool reading_ = false;  // One of the waiting threads reads for all.
  absl::Status broken_;
  // Calls in flight; a reply to an id that is not here came after its deadline and is dropped.
  absl::flat_hash_map<uint64_t, std::optional<std::string>> replies_;
};

}  // namespace dtrain::comm
