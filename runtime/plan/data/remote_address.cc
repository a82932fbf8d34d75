#include "runtime/plan/data/remote_address.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text/text.h"

namespace dtrain::plan {

bool IsRemoteAddress(absl::string_view path) {
  const size_t scheme = path.find("://");
  return scheme != absl::string_view::npos && scheme > 0 &&
         std::all_of(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(scheme),
                     [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); });
}

absl::string_view SchemeOf(absl::string_view address) {
  return address.substr(0, address.find("://"));
}

absl::string_view OriginOf(absl::string_view url) {
  return url.substr(0, url.find_first_of("/?#", url.find("://") + 3));
}

absl::Status CheckRemoteAddress(const std::string& address) {
  const absl::string_view scheme = SchemeOf(address);
  if (scheme != "s3" && scheme != "https" && scheme != "http") {
    return absl::InvalidArgumentError(absl::StrCat(
        "token files cannot be read from ", Printable(address),
        ": allowed are paths, s3://bucket/key, https://host/path and http://host/path"));
  }
  if (scheme == "s3") {
    return absl::OkStatus();
  }
  const absl::string_view origin = OriginOf(address);
  if (absl::StrContains(origin, "@")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an address of token files at ", origin.substr(origin.rfind('@') + 1),
        " has a user name or a password in it, which the run's records would show; serve the files "
        "without, or take them from s3:// with keys in the environment"));
  }
  const std::string lower = absl::AsciiStrToLower(address);
  for (const char* const name :
       {"signature=", "?sig=", "&sig=", "credential=", "token=", "key=", "password=", "secret="}) {
    if (absl::StrContains(lower, name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "an address of token files at ", origin,
          " has a signature or a token in it, which would expire and which the run's records would "
          "show; take the files from s3:// with keys in the environment"));
    }
  }
  return absl::OkStatus();
}

}  // namespace dtrain::plan
