#include "runtime/data/remote/remote_store.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"
#include "base/text/text.h"
#include "runtime/data/remote/block_folder.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain::remote {
namespace {

constexpr int64_t kHeadBytes = 1024;  // Enough for the header of every kind of data file.
// Before reading starts, files up to this size are looked at by one request for all of them, if
// there are no more than this many.
constexpr int64_t kWholeBytesMax = 1 << 20;
constexpr int64_t kWholeFilesMax = 64;
constexpr int64_t kBlockBytesOfAll = 4 << 20;
constexpr int64_t kBlockBytesOfSome = 256 << 10;
constexpr size_t kOpenAtOnce = 16;

absl::Span<std::byte> AsBytes(absl::Span<char> span) {
  return {reinterpret_cast<std::byte*>(span.data()), span.size()};
}

class RemoteStore;

class RemoteObject final : public plan::RemoteFile {
 public:
  RemoteObject(RemoteStore& store, std::string address, ObjectVersion version, std::string head)
      : store_(store),
        address_(std::move(address)),
        version_(std::move(version)),
        head_(std::move(head)) {}

  int64_t bytes() const override { return version_.bytes; }
  absl::Status ReadAt(int64_t offset, absl::Span<char> into) const override;
  bool WillRead(int64_t offset, int64_t bytes) const override;

  // Fills `into` from the server. FailedPrecondition: the object is another one by now.
  absl::Status Fetch(ObjectClient& client, int64_t offset, absl::Span<std::byte> into,
                     const std::atomic<bool>* cancelled) const;
  // Names its blocks of `block_bytes` bytes.
  uint64_t Hash(int64_t block_bytes) const {
    plan::StableHash hash;
    hash.Add(address_).Add(static_cast<uint64_t>(version_.bytes)).Add(version_.tag);
    if (version_.tag.empty()) {  // A later run could not tell whether it is still the same object.
      hash.Add(static_cast<uint64_t>(getpid()));
      hash.Add(static_cast<uint64_t>(Clock::Real().MonotonicNanos()));
    }
    return hash.Add(static_cast<uint64_t>(block_bytes)).value();
  }

 private:
  friend class RemoteStore;
  // Fills `into` before reading starts.
  absl::Status LookAt(int64_t offset, absl::Span<char> into) const;
  BlockId BlockAt(int64_t offset, int64_t block_bytes) const {
    const int64_t begin = offset / block_bytes * block_bytes;
    return {hash_, offset / block_bytes, std::min(block_bytes, version_.bytes - begin)};
  }

  RemoteStore& store_;
  const std::string address_;
  const ObjectVersion version_;
  const std::string head_;  // Its first bytes.
  uint64_t hash_ = 0;       // Set when reading starts.
  mutable std::mutex mutex_;
  mutable std::string whole_;  // Guarded. All of it; "" unless it is small and was looked at.
};

class RemoteStore final : public plan::DataStore {
 public:
  RemoteStore(RemoteStoreOptions options, std::unique_ptr<ObjectClient> client,
              std::unique_ptr<BlockFolder> folder)
      : options_(std::move(options)), client_(std::move(client)), folder_(std::move(folder)) {}
  ~RemoteStore() override { cancelled_ = true; }

  absl::StatusOr<std::vector<std::string>> Expand(const std::string& pattern) override {
    return client_->Expand(pattern);
  }
  void OpenAhead(absl::Span<const std::string> addresses) override;
  absl::StatusOr<std::shared_ptr<const plan::RemoteFile>> Open(const std::string& address) override;
  void StartReading() override;
  void ForgetAhead() override {
    if (fetcher_ != nullptr) {
      fetcher_->ForgetAhead();
    }
  }
  void Cancel() override;

  // Null before reading starts.
  BlockFetcher* fetcher() const { return fetcher_.get(); }
  int64_t block_bytes() const { return block_bytes_; }
  ObjectClient& client() { return *client_; }
  const std::atomic<bool>& cancelled() const { return cancelled_; }
  bool has_few_files() {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(opened_.size()) <= 2 * kWholeFilesMax;  // Masks count too.
  }

 private:
  using Opened = absl::StatusOr<std::shared_ptr<RemoteObject>>;
  Opened Look(const std::string& address);

  const RemoteStoreOptions options_;
  const std::unique_ptr<ObjectClient> client_;
  std::unique_ptr<BlockFolder> folder_;  // The fetcher's, when there is one.
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::map<std::string, Opened> opened_;  // Guarded.
  int64_t block_bytes_ = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<RemoteObject>> by_hash_;
  std::unique_ptr<BlockFetcher> fetcher_;  // The last one, because its threads use the others.
};

absl::Status RemoteObject::Fetch(ObjectClient& client, int64_t offset, absl::Span<std::byte> into,
                                 const std::atomic<bool>* cancelled) const {
  DT_ASSIGN_OR_RETURN(const ObjectPiece piece, client.Read(address_, offset, into, cancelled));
  if (piece.version == version_ && piece.bytes_read == static_cast<int64_t>(into.size())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s has changed while the run reads it: it had %d bytes (version %s) when it was opened, and "
      "has %d (version %s) now, so the samples would not be those of the run any more; put the old "
      "file back and start again, or begin a run of its own with the new one",
      address_, version_.bytes, Printable(version_.tag), piece.version.bytes,
      Printable(piece.version.tag)));
}

absl::Status RemoteObject::ReadAt(int64_t offset, absl::Span<char> into) const {
  const auto size = static_cast<int64_t>(into.size());
  DT_CHECK(offset >= 0 && offset <= bytes() - size)
      << address_ << ": bytes [" << offset << ", +" << size << ") of " << bytes();
  if (offset + size <= static_cast<int64_t>(head_.size())) {
    std::memcpy(into.data(), head_.data() + offset, into.size());
    return absl::OkStatus();
  }
  BlockFetcher* const fetcher = store_.fetcher();
  if (fetcher == nullptr) {
    return LookAt(offset, into);
  }
  const int64_t block_bytes = store_.block_bytes();
  for (int64_t done = 0; done < size;) {
    const BlockId id = BlockAt(offset + done, block_bytes);
    const int64_t in_block = (offset + done) % block_bytes;
    const int64_t count = std::min(size - done, id.bytes - in_block);
    DT_RETURN_IF_ERROR(fetcher->Read(
        id, in_block,
        AsBytes(into.subspan(static_cast<size_t>(done), static_cast<size_t>(count)))));
    done += count;
  }
  return absl::OkStatus();
}

absl::Status RemoteObject::LookAt(int64_t offset, absl::Span<char> into) const {
  if (bytes() > kWholeBytesMax || !store_.has_few_files()) {
    return Fetch(store_.client(), offset, AsBytes(into), &store_.cancelled());
  }
  const std::lock_guard lock(mutex_);
  if (whole_.empty()) {
    std::string whole(static_cast<size_t>(bytes()), '\0');
    DT_RETURN_IF_ERROR(
        Fetch(store_.client(), 0, AsBytes(absl::MakeSpan(whole)), &store_.cancelled()));
    whole_ = std::move(whole);
  }
  std::memcpy(into.data(), whole_.data() + offset, into.size());
  return absl::OkStatus();
}

bool RemoteObject::WillRead(int64_t offset, int64_t bytes) const {
  BlockFetcher* const fetcher = store_.fetcher();
  if (fetcher == nullptr) {
    return true;
  }
  const int64_t block_bytes = store_.block_bytes();
  for (int64_t at = offset / block_bytes * block_bytes; at < offset + bytes; at += block_bytes) {
    if (!fetcher->WillRead(BlockAt(at, block_bytes))) {
      return false;
    }
  }
  return true;
}

RemoteStore::Opened RemoteStore::Look(const std::string& address) {
  std::string head(static_cast<size_t>(kHeadBytes), '\0');
  absl::StatusOr<ObjectPiece> piece =
      client_->Read(address, 0, AsBytes(absl::MakeSpan(head)), &cancelled_);
  if (absl::IsOutOfRange(piece.status())) {
    piece = ObjectPiece();  // Servers have no range of a file without bytes.
  }
  DT_RETURN_IF_ERROR(piece.status());
  head.resize(static_cast<size_t>(piece->bytes_read));
  return std::make_shared<RemoteObject>(*this, address, piece->version, std::move(head));
}

void RemoteStore::OpenAhead(absl::Span<const std::string> addresses) {
  std::atomic<size_t> next{0};
  const auto open = [&] {
    for (size_t i = next++; i < addresses.size(); i = next++) {
      static_cast<void>(Open(addresses[i]));  // Open gives the error again to who asks for it.
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(kOpenAtOnce, addresses.size()); ++i) {
    threads.emplace_back(open);
  }
  open();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

absl::StatusOr<std::shared_ptr<const plan::RemoteFile>> RemoteStore::Open(
    const std::string& address) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = opened_.find(address); known != opened_.end()) {
      DT_RETURN_IF_ERROR(known->second.status());
      return std::shared_ptr<const plan::RemoteFile>(*known->second);
    }
  }
  Opened opened = Look(address);
  const std::lock_guard lock(mutex_);
  const Opened& kept = opened_.emplace(address, std::move(opened)).first->second;
  DT_RETURN_IF_ERROR(kept.status());
  return std::shared_ptr<const plan::RemoteFile>(*kept);
}

void RemoteStore::StartReading() {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const auto& [address, object] : opened_) {
    sum += object.ok() ? (*object)->bytes() : 0;
  }
  const bool all_fit = folder_ != nullptr && sum <= folder_->bytes_max() - folder_->bytes_max() / 8;
  block_bytes_ = options_.block_bytes > 0 ? options_.block_bytes
                 : all_fit                ? kBlockBytesOfAll
                                          : kBlockBytesOfSome;
  for (const auto& [address, object] : opened_) {
    if (object.ok()) {
      std::string().swap((*object)->whole_);
      (*object)->hash_ = (*object)->Hash(block_bytes_);
      by_hash_[(*object)->hash_] = *object;
    }
  }
  fetcher_ = std::make_unique<BlockFetcher>(
      options_.fetcher, std::move(folder_), [this](const BlockId& id, absl::Span<std::byte> into) {
        return by_hash_.at(id.object)->Fetch(*client_, id.number * block_bytes_, into, &cancelled_);
      });
  if (cancelled_) {
    fetcher_->Cancel();
  }
}

void RemoteStore::Cancel() {
  cancelled_ = true;
  const std::lock_guard lock(mutex_);
  if (fetcher_ != nullptr) {
    fetcher_->Cancel();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<plan::DataStore>> OpenRemoteStore(
    const RemoteStoreOptions& options) {
  std::string folder = options.cache_dir;
  if (folder.empty()) {
    const Environment& environment = options.client.environment;
    const auto home = environment.find("HOME");
    if (home == environment.end() || home->second.empty()) {
      return absl::FailedPreconditionError(
          "data.train or data.validation names an address, but HOME is not set; set data.cache_dir "
          "to a folder on a local disk");
    }
    folder = absl::StrCat(home->second, "/.cache/dtrain");
  }
  DT_ASSIGN_OR_RETURN(auto client, MakeObjectClient(options.client));
  DT_ASSIGN_OR_RETURN(auto blocks, BlockFolder::Open(folder, options.cache_bytes_max));
  return std::make_unique<RemoteStore>(options, std::move(client), std::move(blocks));
}

}  // namespace dtrain::remote
