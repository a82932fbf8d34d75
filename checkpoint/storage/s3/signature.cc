#include "checkpoint/storage/s3/signature.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/storage/s3/digest.h"

namespace dtrain::checkpoint::s3 {
namespace {

constexpr char kAlgorithm[] = "AWS4-HMAC-SHA256";
constexpr size_t kDayBytes = 8;  // "20130524".

// Names in lower case, values without outer spaces and with single inner ones; sorted by name, and
// the values of a name that comes twice joined with commas.
NamedValues CanonicalHeaders(const NamedValues& headers) {
  NamedValues canonical;
  for (const auto& [name, value] : headers) {
    std::string text = value;
    absl::RemoveExtraAsciiWhitespace(&text);
    canonical.emplace_back(absl::AsciiStrToLower(name), std::move(text));
  }
  std::stable_sort(canonical.begin(), canonical.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  NamedValues merged;
  for (auto& [name, value] : canonical) {
    if (!merged.empty() && merged.back().first == name) {
      absl::StrAppend(&merged.back().second, ",", value);
    } else {
      merged.emplace_back(name, std::move(value));
    }
  }
  return merged;
}

std::string SignedNames(const NamedValues& canonical) {
  return absl::StrJoin(canonical, ";", [](std::string* out, const auto& header) {
    absl::StrAppend(out, header.first);
  });
}

}  // namespace

std::string AmzTime(absl::Time time) {
  return absl::FormatTime("%Y%m%dT%H%M%SZ", time, absl::UTCTimeZone());
}

std::string PercentEncode(absl::string_view text, bool keep_slash) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~' ||
        (keep_slash && c == '/')) {
      encoded.push_back(c);
    } else {
      encoded.push_back('%');
      encoded.push_back(kHex[byte >> 4U]);
      encoded.push_back(kHex[byte & 0xfU]);
    }
  }
  return encoded;
}

std::string EncodeQuery(const NamedValues& query) {
  NamedValues encoded;
  for (const auto& [name, value] : query) {
    encoded.emplace_back(PercentEncode(name, /*keep_slash=*/false),
                         PercentEncode(value, /*keep_slash=*/false));
  }
  std::sort(encoded.begin(), encoded.end());
  return absl::StrJoin(encoded, "&", absl::PairFormatter("="));
}

std::string CanonicalRequest(const RequestToSign& request) {
  const NamedValues headers = CanonicalHeaders(request.headers);
  std::string lines;
  for (const auto& [name, value] : headers) {
    absl::StrAppend(&lines, name, ":", value, "\n");
  }
  return absl::StrCat(request.method, "\n", PercentEncode(request.path, /*keep_slash=*/true), "\n",
                      EncodeQuery(request.query), "\n", lines, "\n", SignedNames(headers), "\n",
                      request.payload_sha256);
}

std::string Authorization(const RequestToSign& request, const SigningScope& scope,
                          const SigningKeys& keys) {
  const std::string day = scope.time.substr(0, kDayBytes);
  const std::string credential_scope =
      absl::StrCat(day, "/", scope.region, "/", scope.service, "/aws4_request");
  const std::string to_sign = absl::StrCat(kAlgorithm, "\n", scope.time, "\n", credential_scope,
                                           "\n", Sha256Hex(BytesOf(CanonicalRequest(request))));
  std::string key = HmacSha256(absl::StrCat("AWS4", keys.secret_access_key), day);
  for (const absl::string_view part :
       {absl::string_view(scope.region), absl::string_view(scope.service),
        absl::string_view("aws4_request")}) {
    key = HmacSha256(key, part);
  }
  return absl::StrCat(kAlgorithm, " Credential=", keys.access_key_id, "/", credential_scope,
                      ", SignedHeaders=", SignedNames(CanonicalHeaders(request.headers)),
                      ", Signature=", absl::BytesToHexString(HmacSha256(key, to_sign)));
}

}  // namespace dtrain::checkpoint::s3
