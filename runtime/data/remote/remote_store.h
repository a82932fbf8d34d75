// A plan::DataStore over S3 and web servers. Files are read by blocks, which are kept in a folder
// of this host (block_folder.h) and fetched ahead of the reader (block_fetcher.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/data/remote/block_fetcher.h"
#include "runtime/data/remote/object_client.h"
#include "runtime/plan/data/data_store.h"

namespace dtrain::remote {

struct RemoteStoreOptions {
  std::string cache_dir;        // "": ~/.cache/dtrain.
  int64_t cache_bytes_max = 0;  // 0: half of what is free on its disk.
  // 0: by the size of the files. Where the folder holds them all, every byte is fetched once, in
  // large blocks; otherwise most of a block leaves before it is read, so blocks are small.
  int64_t block_bytes = 0;
  ClientOptions client;
  FetcherOptions fetcher;
};

// FailedPrecondition: the folder cannot be written to; Unimplemented: no libcurl.
absl::StatusOr<std::unique_ptr<plan::DataStore>> OpenRemoteStore(const RemoteStoreOptions& options);

}  // namespace dtrain::remote
