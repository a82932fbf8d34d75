// The twin of object_client.cc for builds without libcurl's header.
#include "runtime/data/remote/object_client.h"

namespace dtrain::remote {

absl::StatusOr<std::unique_ptr<ObjectClient>> MakeObjectClient(const ClientOptions& /*options*/) {
  return absl::UnimplementedError(
      "data.train or data.validation names an address, but this dtrain was built without libcurl; "
      "install libcurl4-openssl-dev and build it again");
}

}  // namespace dtrain::remote
