#include "comm/net/tls_psk.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace dtrain::comm {

struct TlsContext::Psk {
  SecretKey key;
  std::string identity;
};

namespace {

constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};

std::string OpenSslError() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT(google-runtime-int)
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown error" : reason;
}

// A session object that represents the PSK; null when OpenSSL refuses.
SSL_SESSION* NewPskSession(SSL* ssl, const TlsContext::Psk& psk) {
  SSL_SESSION* const session = SSL_SESSION_new();
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kAes128GcmSha256);
  if (session == nullptr || cipher == nullptr ||
      SSL_SESSION_set1_master_key(session, psk.key.bytes().data(), SecretKey::kBytes) != 1 ||
      SSL_SESSION_set_cipher(session, cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

const TlsContext::Psk& PskOf(SSL* ssl) {
  return *static_cast<const TlsContext::Psk*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
}

int FindSession(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** session) {
  const TlsContext::Psk& psk = PskOf(ssl);
  *session = nullptr;
  // A client with another name goes on without a PSK, which fails because there is no certificate.
  if (bytes == psk.identity.size() && std::memcmp(identity, psk.identity.data(), bytes) == 0) {
    *session = NewPskSession(ssl, psk);
    return *session == nullptr ? 0 : 1;
  }
  return 1;
}

int UseSession(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, size_t* bytes,
               SSL_SESSION** session) {
  const TlsContext::Psk& psk = PskOf(ssl);
  *session = nullptr;
  *identity = nullptr;
  *bytes = 0;
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) {
    return 1;  // Our key is for SHA-256 only.
  }
  *session = NewPskSession(ssl, psk);
  if (*session == nullptr) {
    return 0;
  }
  *identity = reinterpret_cast<const unsigned char*>(psk.identity.data());
  *bytes = psk.identity.size();
  return 1;
}

// A socket BIO that never raises SIGPIPE: OpenSSL's own one uses write(2).
int BioFd(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }
bool ShouldRetry() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int BioWrite(BIO* bio, const char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t put = ::send(BioFd(bio), data, static_cast<size_t>(bytes), MSG_NOSIGNAL);
  if (put < 0 && ShouldRetry()) {
    BIO_set_retry_write(bio);
  }
  return static_cast<int>(put);
}

int BioRead(BIO* bio, char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(BioFd(bio), data, static_cast<size_t>(bytes), 0);
  if (got < 0 && ShouldRetry()) {
    BIO_set_retry_read(bio);
  }
  if (got == 0) {
    BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  }
  return static_cast<int>(got);
}

long BioControl(BIO* bio, int command, long, void*) {  // NOLINT(google-runtime-int)
  switch (command) {
    case BIO_CTRL_FLUSH:
      return 1;
    case BIO_CTRL_EOF:
      return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
    default:
      return 0;
  }
}

BIO* NewSocketBio(int fd) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "dtrain socket");
    BIO_meth_set_write(m, BioWrite);
    BIO_meth_set_read(m, BioRead);
    BIO_meth_set_ctrl(m, BioControl);
    BIO_meth_set_create(m, [](BIO*) { return 1; });
    BIO_meth_set_destroy(m, [](BIO*) { return 1; });
    return m;
  }();
  BIO* const bio = BIO_new(method);
  if (bio != nullptr) {
    BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
    BIO_set_init(bio, 1);
  }
  return bio;
}

enum class Ending { kRead, kWrite, kClosed, kBroken, kProtocol };

Ending Classify(SSL* ssl, int result) {
  switch (SSL_get_error(ssl, result)) {
    case SSL_ERROR_WANT_READ:
      return Ending::kRead;
    case SSL_ERROR_WANT_WRITE:
      return Ending::kWrite;
    case SSL_ERROR_ZERO_RETURN:
      return Ending::kClosed;
    case SSL_ERROR_SYSCALL:
      return Ending::kBroken;
    default:
      return ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING
                 ? Ending::kBroken
                 : Ending::kProtocol;
  }
}

absl::Status TransferError(Ending ending, int error_number) {
  switch (ending) {
    case Ending::kClosed:
      return absl::UnavailableError("the peer closed the connection");
    case Ending::kBroken:
      ERR_clear_error();
      return error_number == 0 ? absl::UnavailableError("the connection broke")
                               : Annotate(BrokenConnection(error_number), "the connection broke");
    default:
      return absl::DataLossError(
          absl::StrCat("a TLS record is not what the peer sent: ", OpenSslError()));
  }
}

absl::StatusOr<IoResult> Finish(SSL* ssl, int result, size_t bytes, int error_number) {
  if (result == 1) {
    return IoResult{bytes, IoWant::kNothing};
  }
  switch (const Ending ending = Classify(ssl, result)) {
    case Ending::kRead:
      return IoResult{0, IoWant::kRead};
    case Ending::kWrite:
      return IoResult{0, IoWant::kWrite};
    default:
      return TransferError(ending, error_number);
  }
}

}  // namespace

TlsContext::TlsContext(TlsRole role, const JobKey& key)
    : role_(role), psk_(new Psk{key.TlsPsk(), key.Identity()}) {}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Create(TlsRole role, const JobKey& key) {
  std::shared_ptr<TlsContext> context(new TlsContext(role, key));
  const bool server = role == TlsRole::kServer;
  SSL_CTX* const ctx = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
  context->context_ = ctx;
  if (ctx == nullptr || SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") != 1 ||
      (server && SSL_CTX_set_num_tickets(ctx, 0) != 1)) {
    return absl::InternalError(absl::StrCat("TLS 1.3 is not available: ", OpenSslError()));
  }
  SSL_CTX_set_app_data(ctx, context->psk_.get());
  SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
  if (server) {
    SSL_CTX_set_psk_find_session_callback(ctx, FindSession);
  } else {
    // A server without the key would have to show a certificate, and none is trusted.
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(ctx, UseSession);
  }
  return context;
}

absl::StatusOr<TlsSession> TlsContext::NewSession(int fd) {
  ERR_clear_error();
  SSL* const ssl = SSL_new(context_);
  BIO* const bio = NewSocketBio(fd);
  if (ssl == nullptr || bio == nullptr) {
    SSL_free(ssl);
    BIO_free(bio);
    return absl::ResourceExhaustedError(absl::StrCat("new TLS session: ", OpenSslError()));
  }
  SSL_set_bio(ssl, bio, bio);
  if (role_ == TlsRole::kServer) {
    SSL_set_accept_state(ssl);
  } else {
    SSL_set_connect_state(ssl);
  }
  return TlsSession(shared_from_this(), ssl);
}

TlsSession::TlsSession(TlsSession&& other) noexcept
    : context_(std::move(other.context_)), ssl_(std::exchange(other.ssl_, nullptr)) {}

TlsSession& TlsSession::operator=(TlsSession&& other) noexcept {
  if (this != &other) {
    SSL_free(ssl_);
    ssl_ = std::exchange(other.ssl_, nullptr);
    context_ = std::move(other.context_);
  }
  return *this;
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

absl::StatusOr<IoWant> TlsSession::Handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  if (result == 1) {
    if (SSL_session_reused(ssl_) != 1) {
      return absl::PermissionDeniedError("the peer did not prove the job's key");
    }
    return IoWant::kNothing;
  }
  switch (const Ending ending = Classify(ssl_, result)) {
    case Ending::kRead:
      return IoWant::kRead;
    case Ending::kWrite:
      return IoWant::kWrite;
    case Ending::kClosed:
    case Ending::kBroken:
      return TransferError(ending, 0);
    default:
      return absl::PermissionDeniedError(
          absl::StrCat("the two ends do not hold the same job token (TLS: ", OpenSslError(), ")"));
  }
}

absl::StatusOr<IoResult> TlsSession::Read(void* data, size_t bytes) {
  ERR_clear_error();
  errno = 0;
  size_t got = 0;
  const int result = SSL_read_ex(ssl_, data, bytes, &got);
  return Finish(ssl_, result, got, errno);
}

absl::StatusOr<IoResult> TlsSession::Write(const void* data, size_t bytes) {
  ERR_clear_error();
  errno = 0;
  size_t put = 0;
  const int result = SSL_write_ex(ssl_, data, bytes, &put);
  return Finish(ssl_, result, put, errno);
}

void TlsSession::CloseNotify() {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    SSL_shutdown(ssl_);
    ERR_clear_error();
  }
}

}  // namespace dtrain::comm
