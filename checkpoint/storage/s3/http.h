// The transport seam of the S3 client: one HTTP request and its reply. The real form is libcurl,
// opened at run time (curl_http.cc); tests put a failing one in its place. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/deadline.h"

namespace dtrain::checkpoint::s3 {

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  absl::Span<const std::byte> body;
  // Takes the body of a reply 2xx when it is not empty; a longer body is an error.
  absl::Span<std::byte> into;
  size_t reply_bytes_max = 1 << 20;  // Limit on HttpReply::body.
  absl::Duration connect_timeout = absl::Seconds(5);
  Deadline deadline = Deadline::Infinite();
  bool never_by_proxy = false;                   // For addresses of this machine or its link.
  const std::atomic<bool>* cancelled = nullptr;  // Ends the request soon after it becomes true.
};

struct HttpReply {
  int code = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // Names in lower case.
  std::string body;
  size_t into_bytes = 0;  // How much of HttpRequest::into was filled.

  bool ok() const { return code >= 200 && code < 300; }
  // The value of the header `name`, in lower case; "" when there is none.
  std::string HeaderOf(absl::string_view name) const;
};

class HttpTransport {
 public:
  virtual ~HttpTransport() = default;
  // Blocks until the reply is there, whatever its code. Unavailable: no whole reply came, and the
  // server may have done what was asked all the same; Cancelled; FailedPrecondition: the server's
  // certificate is not trusted; ResourceExhausted: the reply is longer than it may be.
  virtual absl::StatusOr<HttpReply> Perform(const HttpRequest& request) = 0;
};

// The process's libcurl, opened at the first call and kept. Unimplemented: it is not installed.
// `ca_bundle` names a file of trusted certificates; "": the system's.
absl::StatusOr<std::unique_ptr<HttpTransport>> MakeCurlTransport(const std::string& ca_bundle);

}  // namespace dtrain::checkpoint::s3
