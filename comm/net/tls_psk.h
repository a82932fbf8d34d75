// TLS 1.3 with the job's pre-shared key and no certificates, on a non-blocking socket.
//
// A peer without the key cannot finish the handshake, on either end. Key exchange is (EC)DHE, so a
// token that leaks later opens no recorded traffic. TlsContext may be shared by threads;
// a TlsSession is used by one thread at a time. A session owns no descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/net/job_key.h"
#include "comm/net/socket.h"

// OpenSSL's names, so that its headers stay out of ours.
struct ssl_st;
struct ssl_ctx_st;

namespace dtrain::comm {

enum class TlsRole { kServer, kClient };

class TlsSession;

class TlsContext : public std::enable_shared_from_this<TlsContext> {
 public:
  static absl::StatusOr<std::shared_ptr<TlsContext>> Create(TlsRole role, const JobKey& key);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // A session on connected, non-blocking `fd`, which must outlive it.
  absl::StatusOr<TlsSession> NewSession(int fd);
  TlsRole role() const { return role_; }

  struct Psk;  // The data that OpenSSL's callbacks read.

 private:
  TlsContext(TlsRole role, const JobKey& key);
  const TlsRole role_;
  std::unique_ptr<Psk> psk_;
  ssl_ctx_st* context_ = nullptr;
};

struct IoResult {
  size_t bytes = 0;
  IoWant want = IoWant::kNothing;  // Set when bytes is 0.
};

class TlsSession {
 public:
  TlsSession(TlsSession&& other) noexcept;
  TlsSession& operator=(TlsSession&& other) noexcept;
  ~TlsSession();

  // Goes on with the handshake; kNothing: done, and both ends have proved the key.
  // PermissionDenied: the peer has another key, or none. Unavailable: it went away.
  absl::StatusOr<IoWant> Handshake();
  // Reads at most `bytes`; Unavailable at the end of the stream or on a broken connection,
  // DataLoss when a record was altered.
  absl::StatusOr<IoResult> Read(void* data, size_t bytes);
  // Writes at most `bytes`. After kRead or kWrite repeat with the same bytes (the buffer may move).
  absl::StatusOr<IoResult> Write(const void* data, size_t bytes);
  // Tells the peer that no more comes; best effort, never blocks.
  void CloseNotify();

 private:
  friend class TlsContext;
  TlsSession(std::shared_ptr<void> keep_context, ssl_st* ssl)
      : context_(std::move(keep_context)), ssl_(ssl) {}
  std::shared_ptr<void> context_;  // The PSK must outlive the session.
  ssl_st* ssl_ = nullptr;
};

}  // namespace dtrain::comm
