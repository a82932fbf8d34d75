// An HttpTransport without a network: a test's function gives the replies.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/storage/s3/http.h"

namespace dtrain::checkpoint::s3 {

class FakeTransport final : public HttpTransport {
 public:
  using Answer = std::function<absl::StatusOr<HttpReply>(const HttpRequest& request)>;
  explicit FakeTransport(Answer answer) : answer_(std::move(answer)) {}

  absl::StatusOr<HttpReply> Perform(const HttpRequest& request) override;
  // "METHOD URL" of all requests so far.
  std::vector<std::string> seen() const;
  // All that was sent, headers and bodies included.
  std::string everything() const;

 private:
  const Answer answer_;
  mutable std::mutex mutex_;
  std::vector<std::string> seen_;
  std::string everything_;
};

HttpReply ReplyOf(int code, const std::string& body = "",
                  std::vector<std::pair<std::string, std::string>> headers = {});
// A reply as S3 sends errors.
HttpReply ErrorReply(int code, const std::string& error, const std::string& more = "");
// The value of a request's header; "" when there is none.
std::string HeaderIn(const HttpRequest& request, const std::string& name);

}  // namespace dtrain::checkpoint::s3
