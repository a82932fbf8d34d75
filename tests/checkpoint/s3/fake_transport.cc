#include "tests/checkpoint/s3/fake_transport.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace dtrain::checkpoint::s3 {

absl::StatusOr<HttpReply> FakeTransport::Perform(const HttpRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    seen_.push_back(absl::StrCat(request.method, " ", request.url));
    for (const auto& [name, value] : request.headers) {
      absl::StrAppend(&everything_, name, ": ", value, "\n");
    }
    everything_.append(reinterpret_cast<const char*>(request.body.data()), request.body.size());
  }
  return answer_(request);
}

std::vector<std::string> FakeTransport::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

std::string FakeTransport::everything() const {
  const std::lock_guard lock(mutex_);
  return everything_;
}

HttpReply ReplyOf(int code, const std::string& body,
                  std::vector<std::pair<std::string, std::string>> headers) {
  HttpReply reply;
  reply.code = code;
  reply.body = body;
  reply.headers = std::move(headers);
  return reply;
}

HttpReply ErrorReply(int code, const std::string& error, const std::string& more) {
  return ReplyOf(code, absl::StrCat("<?xml version=\"1.0\"?><Error><Code>", error, "</Code>", more,
                                    "</Error>"));
}

std::string HeaderIn(const HttpRequest& request, const std::string& name) {
  for (const auto& [header, value] : request.headers) {
    if (absl::EqualsIgnoreCase(header, name)) {
      return value;
    }
  }
  return "";
}

}  // namespace dtrain::checkpoint::s3
