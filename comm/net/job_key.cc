#include "comm/net/job_key.h"

#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/job_env.h"
#include "base/status.h"

namespace dtrain::comm {
namespace {

// Reads until `bytes` is full or the stream ends; the number read. `fd` may be a pipe.
absl::StatusOr<size_t> ReadUpTo(int fd, absl::Span<uint8_t> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(fd, bytes.data() + done, bytes.size() - done);
    if (got == 0) {
      break;
    }
    if (got < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "read");
    }
    done += got > 0 ? static_cast<size_t>(got) : 0;
  }
  return done;
}

// Big enough for 64 digits, a newline and the byte that shows the file is longer.
class TokenText {
 public:
  ~TokenText() { OPENSSL_cleanse(text_.data(), text_.size()); }
  absl::Span<uint8_t> space() { return absl::MakeSpan(text_); }
  absl::Span<const uint8_t> first(size_t bytes) const {
    return absl::MakeConstSpan(text_).subspan(0, bytes);
  }

 private:
  std::array<uint8_t, 67> text_{};
};

int HexDigit(uint8_t c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const int lower = std::tolower(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// 32 raw bytes or 64 hex digits, or false.
bool ParseToken(absl::Span<const uint8_t> text, SecretKey& token) {
  if (text.size() == SecretKey::kBytes) {
    token = SecretKey(text);
    return true;
  }
  for (const uint8_t end : {'\n', '\r'}) {
    if (!text.empty() && text.back() == end) {
      text.remove_suffix(1);
    }
  }
  if (text.size() != 2 * SecretKey::kBytes) {
    return false;
  }
  for (size_t i = 0; i < SecretKey::kBytes; ++i) {
    const int high = HexDigit(text[2 * i]);
    const int low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return false;
    }
    token.data()[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

absl::Span<const uint8_t> OctetsOf(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

SecretKey::SecretKey(absl::Span<const uint8_t> bytes) {
  DT_CHECK_EQ(bytes.size(), kBytes);
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

SecretKey::~SecretKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

bool operator==(const SecretKey& a, const SecretKey& b) {
  return ConstantTimeEqual(a.bytes(), b.bytes());
}

bool ConstantTimeEqual(absl::Span<const uint8_t> a, absl::Span<const uint8_t> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::Status RandomBytes(absl::Span<uint8_t> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = getrandom(out.data() + done, out.size() - done, 0);
    if (got < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "getrandom");
    }
    done += got > 0 ? static_cast<size_t>(got) : 0;
  }
  return absl::OkStatus();
}

std::array<uint8_t, 32> HmacSha256(const SecretKey& key,
                                   std::initializer_list<absl::Span<const uint8_t>> parts) {
  std::vector<uint8_t> message;
  for (const auto& part : parts) {
    message.insert(message.end(), part.begin(), part.end());
  }
  std::array<uint8_t, 32> mac{};
  unsigned int bytes = 0;
  const unsigned char* const result =
      HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(SecretKey::kBytes), message.data(),
           message.size(), mac.data(), &bytes);
  DT_CHECK(result != nullptr && bytes == mac.size()) << " HMAC-SHA-256 is not available";
  return mac;
}

absl::StatusOr<JobKey> JobKey::Generate() {
  SecretKey token;
  DT_RETURN_IF_ERROR(RandomBytes({token.data(), SecretKey::kBytes}));
  return JobKey(token);
}

absl::StatusOr<JobKey> JobKey::FromBytes(absl::Span<const uint8_t> bytes) {
  if (bytes.size() != SecretKey::kBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the job token has %d bytes; allowed: 32", bytes.size()));
  }
  return JobKey(SecretKey(bytes));
}

absl::StatusOr<JobKey> JobKey::FromFd(int fd) {
  const UniqueFd owned(fd);
  SecretKey token;
  const auto bytes = ReadUpTo(fd, {token.data(), SecretKey::kBytes});
  if (!bytes.ok() || *bytes != SecretKey::kBytes) {
    return absl::FailedPreconditionError(
        absl::StrFormat("descriptor %d (%s) holds no job token: %s; allowed: 32 bytes, read once",
                        fd, env::kTokenFd,
                        bytes.ok() ? absl::StrCat("only ", *bytes, " bytes")
                                   : std::string(bytes.status().message())));
  }
  return JobKey(token);
}

absl::StatusOr<JobKey> JobKey::FromFile(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("stat ", path));
  }
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 0177) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "token file %s has mode %04o and owner %d; allowed: a regular file of user %d with mode "
        "0600 (chmod 600 %s)",
        path, info.st_mode & 07777, info.st_uid, geteuid(), path));
  }
  TokenText text;
  SecretKey token;
  DT_ASSIGN_OR_RETURN(const size_t bytes, ReadUpTo(fd.get(), text.space()));
  if (!ParseToken(text.first(bytes), token)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "token file %s holds %d bytes that are no token; allowed: 32 raw bytes or 64 hex digits",
        path, static_cast<int64_t>(info.st_size)));
  }
  return JobKey(token);
}

absl::StatusOr<JobKey> JobKey::Load(int token_fd, const std::string& token_file) {
  if (token_fd >= 0) {
    return FromFd(token_fd);
  }
  if (!token_file.empty()) {
    auto key = FromFile(token_file);
    if (absl::IsNotFound(key.status())) {
      return absl::NotFoundError(absl::StrFormat(
          "%s names %s, which does not exist on this host; every node needs the same one: openssl "
          "rand -hex 32 > FILE; chmod 600 FILE; then copy it to them",
          env::kTokenFile, token_file));
    }
    return key;
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "no job token: neither %s (an inherited descriptor) nor %s (a file of mode 0600) is set; "
      "start with dtrain launch, or make one: openssl rand -hex 32 > FILE; chmod 600 FILE",
      env::kTokenFd, env::kTokenFile));
}

absl::Status JobKey::WriteFile(const std::string& path) const {
  DT_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  std::string text = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(token_.bytes().data()), SecretKey::kBytes));
  text += '\n';
  const absl::Status written = WriteFully(fd.get(), text.data(), text.size());
  OPENSSL_cleanse(text.data(), text.size());
  DT_RETURN_IF_ERROR(Annotate(written, path));
  return Annotate(fd.Close(), path);
}

SecretKey JobKey::Derive(absl::string_view purpose) const {
  static constexpr absl::string_view kSalt = "dtrain job key v1";
  SecretKey key;
  EVP_KDF* const kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* const context = EVP_KDF_CTX_new(kdf);
  char digest[] = "SHA256";
  const auto octets = [](const char* name, absl::Span<const uint8_t> bytes) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<uint8_t*>(bytes.data()),
                                             bytes.size());
  };
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      octets(OSSL_KDF_PARAM_KEY, token_.bytes()), octets(OSSL_KDF_PARAM_SALT, OctetsOf(kSalt)),
      octets(OSSL_KDF_PARAM_INFO, OctetsOf(purpose)), OSSL_PARAM_construct_end()};
  const int derived =
      context == nullptr ? 0 : EVP_KDF_derive(context, key.data(), SecretKey::kBytes, parameters);
  EVP_KDF_CTX_free(context);
  EVP_KDF_free(kdf);
  DT_CHECK_EQ(derived, 1) << " HKDF-SHA-256 is not available";
  return key;
}

SecretKey JobKey::TlsPsk() const { return Derive("tls psk"); }

std::string JobKey::Identity() const {
  const SecretKey name = Derive("tls identity");
  return absl::StrCat("dtrain-", absl::BytesToHexString(absl::string_view(
                                     reinterpret_cast<const char*>(name.bytes().data()), 16)));
}

SecretKey JobKey::PairKey(uint64_t epoch, int rank_a, int rank_b) const {
  return Derive(absl::StrFormat("pair epoch %d ranks %d %d", epoch, std::min(rank_a, rank_b),
                                std::max(rank_a, rank_b)));
}

}  // namespace dtrain::comm
