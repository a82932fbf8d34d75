// torchrun's own TCPStore, as the place where rank 0 publishes its address. Neither authenticated
// nor encrypted: addresses may travel there, keys may not.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/deadline.h"

namespace dtrain {

class TorchStore {
 public:
  // A client of the store at host:port; keys get `prefix` before them.
  static absl::StatusOr<std::unique_ptr<TorchStore>> Connect(const std::string& host, int port,
                                                             const std::string& prefix,
                                                             Deadline deadline);
  ~TorchStore();
  absl::Status Set(const std::string& key, const std::string& value);
  // Waits until `key` exists, up to Connect's deadline.
  absl::StatusOr<std::string> Get(const std::string& key);

 private:
  struct State;
  explicit TorchStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dtrain
