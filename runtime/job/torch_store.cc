#include "runtime/job/torch_store.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace dtrain {
namespace {

absl::Status Failed(const std::string& what, const std::exception& error) {
  const std::string text = error.what();
  return absl::UnavailableError(
      absl::StrFormat("torchrun's store: %s: %s", what, text.substr(0, text.find('\n'))));
}

}  // namespace

struct TorchStore::State {
  c10::intrusive_ptr<c10d::PrefixStore> store;
};

TorchStore::TorchStore(std::unique_ptr<State> state) : state_(std::move(state)) {}
TorchStore::~TorchStore() = default;

absl::StatusOr<std::unique_ptr<TorchStore>> TorchStore::Connect(const std::string& host, int port,
                                                                const std::string& prefix,
                                                                Deadline deadline) {
  try {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = false;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(
        std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline.Remaining()), 1, 86'400'000));
    auto state = std::make_unique<State>();
    state->store = c10::make_intrusive<c10d::PrefixStore>(
        prefix, c10::make_intrusive<c10d::TCPStore>(host, options));
    return std::unique_ptr<TorchStore>(new TorchStore(std::move(state)));
  } catch (const std::exception& error) {
    return Failed(absl::StrFormat("cannot reach %s:%d", host, port), error);
  }
}

absl::Status TorchStore::Set(const std::string& key, const std::string& value) {
  try {
    state_->store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return Failed("set " + key, error);
  }
}

absl::StatusOr<std::string> TorchStore::Get(const std::string& key) {
  try {
    const std::vector<uint8_t> value = state_->store->get(key);
    return std::string(value.begin(), value.end());
  } catch (const std::exception& error) {
    return Failed("get " + key, error);
  }
}

}  // namespace dtrain
