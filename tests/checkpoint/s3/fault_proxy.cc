#include "tests/checkpoint/s3/fault_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/check.h"

namespace dtrain::checkpoint::s3 {
namespace {

constexpr char kHeadEnd[] = "\r\n\r\n";
constexpr char kSlowDownReply[] =
    "HTTP/1.1 503 Slow Down\r\nContent-Length: 72\r\nConnection: close\r\n\r\n"
    "<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>";

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// Appends what comes next; false at the end of the connection.
bool ReadMore(int fd, std::string& text) {
  char buffer[64 << 10];
  const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
  if (n > 0) {
    text.append(buffer, static_cast<size_t>(n));
  }
  return n > 0;
}

bool SendAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t n = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n <= 0) {
      return false;
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

size_t BodyBytes(absl::string_view head) {
  for (const absl::string_view line : absl::StrSplit(head, "\r\n")) {
    size_t bytes = 0;
    if (absl::StartsWithIgnoreCase(line, "content-length:") &&
        absl::SimpleAtoi(line.substr(line.find(':') + 1), &bytes)) {
      return bytes;
    }
  }
  return 0;
}

// One whole request; "" when the connection ends before.
std::string ReadRequest(int fd) {
  std::string text;
  size_t head_end = std::string::npos;
  while (head_end == std::string::npos) {
    if (!ReadMore(fd, text)) {
      return "";
    }
    head_end = text.find(kHeadEnd);
  }
  const size_t all = head_end + 4 + BodyBytes(text.substr(0, head_end));
  while (text.size() < all) {
    if (!ReadMore(fd, text)) {
      return "";
    }
  }
  return text;
}

// With "Connection: close", so that the reply ends with the connection.
std::string WithClose(const std::string& request) {
  const size_t line_end = request.find("\r\n");
  return absl::StrCat(request.substr(0, line_end), "\r\nConnection: close",
                      request.substr(line_end));
}

void FlipInBody(std::string& message) {
  const size_t body = message.find(kHeadEnd);
  if (body != std::string::npos && body + 4 < message.size()) {
    const size_t at = body + 4 + (message.size() - body - 4) / 2;
    message[at] = static_cast<char>(message[at] ^ 1);
  }
}

// Under a name that no server knows; the signature no longer fits where it is checked.
void HideCondition(std::string& request) {
  const size_t at = request.find("if-none-match: *");
  if (at < request.find(kHeadEnd)) {
    request[at] = 'x';
  }
}

}  // namespace

FaultProxy::FaultProxy(int server_port, Judge judge)
    : server_port_(server_port),
      judge_(std::move(judge)),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = Loopback(0);
  DT_CHECK_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  DT_CHECK_EQ(listen(listener_.get(), 128), 0);
  socklen_t bytes = sizeof(address);
  DT_CHECK_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

FaultProxy::~FaultProxy() {
  ending_ = true;
  shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  {
    const std::lock_guard lock(mutex_);
    for (const int fd : open_) {
      shutdown(fd, SHUT_RDWR);
    }
  }
  for (std::thread& server : servers_) {
    server.join();
  }
}

std::string FaultProxy::endpoint() const { return absl::StrCat("http://127.0.0.1:", port_); }

void FaultProxy::Accept() {
  while (!ending_) {
    const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      return;
    }
    const std::lock_guard lock(mutex_);
    open_.insert(fd);
    servers_.emplace_back([this, fd] {
      Serve(fd);
      const std::lock_guard inner(mutex_);
      open_.erase(fd);
      close(fd);
    });
  }
}

void FaultProxy::Serve(int fd) {
  std::string request = ReadRequest(fd);
  if (request.empty()) {
    return;
  }
  const Fault fault = judge_(request.substr(0, request.find("\r\n")), requests_++);
  faults_ += fault == Fault::kNone ? 0 : 1;
  if (fault == Fault::kReset) {
    return;
  }
  if (fault == Fault::kSlowDown) {
    SendAll(fd, kSlowDownReply);
    return;
  }
  if (fault == Fault::kHold) {
    ++held_;
    while (!released_ && !ending_) {
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  if (fault == Fault::kFlipRequest) {
    FlipInBody(request);
  }
  if (fault == Fault::kDropCondition) {
    HideCondition(request);
  }
  std::string reply = Forward(WithClose(request));
  if (fault == Fault::kLoseReply || reply.find(kHeadEnd) == std::string::npos) {
    return;
  }
  if (fault == Fault::kFlipReply) {
    FlipInBody(reply);
  }
  if (fault == Fault::kCutReply) {
    const size_t body = reply.find(kHeadEnd) + 4;
    reply.resize(body + (reply.size() - body) / 2);
  }
  SendAll(fd, reply);
}

std::string FaultProxy::Forward(const std::string& request) const {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(server_port_);
  std::string reply;
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      SendAll(fd.get(), request)) {
    while (ReadMore(fd.get(), reply)) {
    }
  }
  return reply;
}

}  // namespace dtrain::checkpoint::s3
