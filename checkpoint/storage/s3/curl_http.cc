// libcurl behind the HttpTransport seam. It is opened at run time, so that neither programs nor
// ranks that use no object store load it and the libraries that it needs.
#include <curl/curl.h>
#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dl/open_once.h"
#include "base/status.h"
#include "checkpoint/storage/s3/http.h"

namespace dtrain::checkpoint::s3 {
namespace {

struct CurlFunctions {
  decltype(curl_global_init)* global_init = nullptr;
  decltype(curl_easy_init)* easy_init = nullptr;
  decltype(curl_easy_setopt)* easy_setopt = nullptr;
  decltype(curl_easy_perform)* easy_perform = nullptr;
  decltype(curl_easy_getinfo)* easy_getinfo = nullptr;
  decltype(curl_easy_reset)* easy_reset = nullptr;
  decltype(curl_easy_cleanup)* easy_cleanup = nullptr;
  decltype(curl_easy_strerror)* easy_strerror = nullptr;
  decltype(curl_slist_append)* slist_append = nullptr;
  decltype(curl_slist_free_all)* slist_free_all = nullptr;
};

absl::StatusOr<CurlFunctions> StartCurl(const DynamicLibrary& library) {
  CurlFunctions f;
  DT_RETURN_IF_ERROR(library.Bind("curl_global_init", &f.global_init));
  DT_RETURN_IF_ERROR(library.Bind("curl_easy_init", &f.easy_init));
  DT_RETURN_IF_ERROR(library.Bind("curl_easy_setopt", &f.easy_setopt));
  DT_RETURN_IF_ERROR(library.Bind("curl_easy_perform", &f.easy_perform));
  DT_RETURN_IF_ERROR(library.Bind("curl_easy_getinfo", &f.easy_getinfo));
  DT_RETURN_IF_ERROR(library.Bind("curl_easy_reset", &f.easy_reset));
  DT_RETURN_IF_ERROR(library.Bind("curl_easy_cleanup", &f.easy_cleanup));
  DT_RETURN_IF_ERROR(library.Bind("curl_easy_strerror", &f.easy_strerror));
  DT_RETURN_IF_ERROR(library.Bind("curl_slist_append", &f.slist_append));
  DT_RETURN_IF_ERROR(library.Bind("curl_slist_free_all", &f.slist_free_all));
  if (const CURLcode code = f.global_init(CURL_GLOBAL_DEFAULT); code != CURLE_OK) {
    return absl::UnavailableError(absl::StrCat("libcurl cannot start: ", f.easy_strerror(code)));
  }
  return f;
}

// Keeps SIGPIPE of a broken connection from this thread, as libcurl cannot do without signals.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;
  ~NoSigpipe() {
    const timespec now{};
    while (sigismember(&before_, SIGPIPE) == 0 && sigtimedwait(&pipe_, nullptr, &now) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

// The place to which libcurl's callbacks write.
struct Receiver {
  const HttpRequest* request;
  HttpReply reply;
  bool too_long = false;
};

size_t TakeHeader(char* data, size_t size, size_t count, void* user) {
  constexpr size_t kHeadersMax = 200;
  auto& receiver = *static_cast<Receiver*>(user);
  const absl::string_view line(data, size * count);
  if (absl::StartsWith(line, "HTTP/")) {
    receiver.reply = HttpReply();  // The reply before was a 100 Continue, or a proxy's.
    const size_t space = line.find(' ');
    receiver.reply.code = space == absl::string_view::npos ? 0 : std::atoi(data + space + 1);
    return size * count;
  }
  const size_t colon = line.find(':');
  if (colon != absl::string_view::npos && receiver.reply.headers.size() < kHeadersMax) {
    receiver.reply.headers.emplace_back(
        absl::AsciiStrToLower(line.substr(0, colon)),
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1))));
  }
  return size * count;
}

size_t TakeBody(char* data, size_t size, size_t count, void* user) {
  auto& receiver = *static_cast<Receiver*>(user);
  const size_t bytes = size * count;
  HttpReply& reply = receiver.reply;
  const absl::Span<std::byte> into = receiver.request->into;
  if (reply.ok() && !into.empty()) {
    if (bytes > into.size() - reply.into_bytes) {
      receiver.too_long = true;
      return 0;
    }
    std::memcpy(into.data() + reply.into_bytes, data, bytes);
    reply.into_bytes += bytes;
    return bytes;
  }
  if (bytes > receiver.request->reply_bytes_max - reply.body.size()) {
    receiver.too_long = true;
    return 0;
  }
  reply.body.append(data, bytes);
  return bytes;
}

int SeeProgress(void* user, curl_off_t /*down_all*/, curl_off_t /*down*/, curl_off_t /*up_all*/,
                curl_off_t /*up*/) {
  const std::atomic<bool>* const cancelled = static_cast<Receiver*>(user)->request->cancelled;
  return cancelled != nullptr && cancelled->load() ? 1 : 0;
}

// A proxy of the environment is for the outside.
bool IsLoopback(absl::string_view url) {
  for (const absl::string_view host : {"://127.", "://localhost", "://[::1]"}) {
    if (absl::StrContains(url, host)) {
      return true;
    }
  }
  return false;
}

class CurlTransport final : public HttpTransport {
 public:
  CurlTransport(const CurlFunctions& curl, std::string ca_bundle)
      : curl_(curl), ca_bundle_(std::move(ca_bundle)) {}
  CurlTransport(const CurlTransport&) = delete;
  CurlTransport& operator=(const CurlTransport&) = delete;
  ~CurlTransport() override {
    for (CURL* const handle : idle_) {
      curl_.easy_cleanup(handle);
    }
  }

  absl::StatusOr<HttpReply> Perform(const HttpRequest& request) override {
    const NoSigpipe no_sigpipe;
    CURL* const handle = Take();
    if (handle == nullptr) {
      return absl::ResourceExhaustedError("libcurl makes no handle: memory or descriptors are out");
    }
    Receiver receiver{.request = &request, .reply = {}};
    curl_slist* list = nullptr;
    for (const auto& [name, value] : request.headers) {
      list = curl_.slist_append(list, absl::StrCat(name, ": ", value).c_str());
    }
    list = curl_.slist_append(list, "Expect:");  // Without a wait for 100 Continue.
    char error[CURL_ERROR_SIZE] = "";
    SetOptions(handle, request, receiver, list, error);
    const CURLcode code = curl_.easy_perform(handle);
    curl_.easy_reset(handle);  // Its connections stay.
    curl_.slist_free_all(list);
    Give(handle);
    if (code == CURLE_OK) {
      return std::move(receiver.reply);
    }
    return StatusOf(code, *error != 0 ? error : curl_.easy_strerror(code), receiver);
  }

 private:
  CURL* Take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      return curl_.easy_init();
    }
    CURL* const handle = idle_.back();
    idle_.pop_back();
    return handle;
  }
  void Give(CURL* handle) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(handle);
  }

  void SetOptions(CURL* handle, const HttpRequest& request, Receiver& receiver, curl_slist* headers,
                  char* error) {
    const auto set = [&](CURLoption option, auto value) {
      static_cast<void>(curl_.easy_setopt(handle, option, value));
    };
    constexpr long kStalledSeconds = 20;  // NOLINT(google-runtime-int): libcurl wants a long.
    set(CURLOPT_ERRORBUFFER, error);
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_PATH_AS_IS, 1L);
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));  // NOLINT
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
    set(CURLOPT_CONNECTTIMEOUT_MS, Milliseconds(request.connect_timeout));
    set(CURLOPT_TIMEOUT_MS, Milliseconds(request.deadline.Remaining()));
    set(CURLOPT_HEADERFUNCTION, &TakeHeader);
    set(CURLOPT_HEADERDATA, static_cast<void*>(&receiver));
    set(CURLOPT_WRITEFUNCTION, &TakeBody);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&receiver));
    set(CURLOPT_XFERINFOFUNCTION, &SeeProgress);
    set(CURLOPT_XFERINFODATA, static_cast<void*>(&receiver));
    set(CURLOPT_NOPROGRESS, 0L);
    if (!ca_bundle_.empty()) {
      set(CURLOPT_CAINFO, ca_bundle_.c_str());
    }
    if (request.never_by_proxy || IsLoopback(request.url)) {
      set(CURLOPT_NOPROXY, "*");
    }
    if (request.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
      return;
    }
    if (request.method == "PUT" || request.method == "POST") {
      set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : AsText(request.body));
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    }
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }

  static const char* AsText(absl::Span<const std::byte> bytes) {
    return reinterpret_cast<const char*>(bytes.data());
  }
  // 0 would mean no limit.
  static long Milliseconds(absl::Duration duration) {  // NOLINT(google-runtime-int)
    const absl::Duration day = absl::Hours(24);
    return std::max<long>(1, absl::ToInt64Milliseconds(std::min(duration, day)));  // NOLINT
  }

  static absl::Status StatusOf(CURLcode code, const char* text, const Receiver& receiver) {
    switch (code) {
      case CURLE_ABORTED_BY_CALLBACK:
        return absl::CancelledError("the request was cancelled");
      case CURLE_PEER_FAILED_VERIFICATION:
      case CURLE_SSL_CACERT_BADFILE:
        return absl::FailedPreconditionError(
            absl::StrCat("the server's certificate is not trusted (", text,
                         "); AWS_CA_BUNDLE names a file of certificates to trust"));
      case CURLE_UNSUPPORTED_PROTOCOL:
      case CURLE_URL_MALFORMAT:
        return absl::InvalidArgumentError(text);
      case CURLE_OUT_OF_MEMORY:
        return absl::ResourceExhaustedError(text);
      default:
        return receiver.too_long
                   ? absl::ResourceExhaustedError("the reply is longer than it may be")
                   : absl::UnavailableError(text);
    }
  }

  const CurlFunctions& curl_;
  const std::string ca_bundle_;
  std::mutex mutex_;
  std::vector<CURL*> idle_;
};

}  // namespace

std::string HttpReply::HeaderOf(absl::string_view name) const {
  for (const auto& [header, value] : headers) {
    if (header == name) {
      return value;
    }
  }
  return "";
}

absl::StatusOr<std::unique_ptr<HttpTransport>> MakeCurlTransport(const std::string& ca_bundle) {
  DT_ASSIGN_OR_RETURN(
      const CurlFunctions* const curl,
      OpenOnce<CurlFunctions>(
          {"libcurl.so.4", "libcurl-gnutls.so.4"},
          absl::UnimplementedError("libcurl is needed for object stores; install libcurl4"),
          StartCurl));
  return std::make_unique<CurlTransport>(*curl, ca_bundle);
}

}  // namespace dtrain::checkpoint::s3
