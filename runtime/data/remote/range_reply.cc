#include "runtime/data/remote/range_reply.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text/text.h"
#include "runtime/plan/data/remote_address.h"

namespace dtrain::remote {
namespace {

using checkpoint::s3::HttpReply;
using plan::OriginOf;
using plan::SchemeOf;

struct ContentRange {
  int64_t first = -1;
  int64_t last = -1;
  int64_t total = -1;
};

// "bytes 0-1023/4096".
bool ParseContentRange(absl::string_view text, ContentRange* range) {
  const std::pair<absl::string_view, absl::string_view> halves = absl::StrSplit(text, '/');
  absl::string_view span = halves.first;
  if (!absl::ConsumePrefix(&span, "bytes ")) {
    return false;
  }
  const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(span, '-');
  return absl::SimpleAtoi(ends.first, &range->first) &&
         absl::SimpleAtoi(ends.second, &range->last) &&
         absl::SimpleAtoi(halves.second, &range->total) && range->first >= 0 &&
         range->last >= range->first && range->total > range->last;
}

// "https://host:port" of an address.

}  // namespace

absl::Status WithoutRanges(absl::string_view address) {
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot read ", address,
      ": the server does not serve ranges of a file (RFC 9110, section 14), so samples could not "
      "be read from its middle; copy the file to this host, or serve it with one that does"));
}

absl::StatusOr<ObjectPiece> PieceOfReply(const HttpReply& reply, const std::string& address,
                                         int64_t offset, int64_t wanted) {
  if (reply.code != 206) {
    return WithoutRanges(address);
  }
  ContentRange range;
  const std::string text = reply.HeaderOf("content-range");
  if (!ParseContentRange(text, &range) || range.first != offset) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot read ", address, ": bytes from ", offset,
        " on were asked for, and the server replied with Content-Range \"", Printable(text),
        "\", not with them and the file's length; copy the file to this host"));
  }
  const int64_t due = std::min(wanted, range.total - offset);
  if (static_cast<int64_t>(reply.into_bytes) != due) {
    return absl::UnavailableError(
        absl::StrCat("cannot read ", address, ": ", reply.into_bytes, " bytes came of ", due));
  }
  std::string tag = reply.HeaderOf("etag");
  if (tag.empty()) {
    tag = reply.HeaderOf("last-modified");
  }
  return ObjectPiece{{range.total, std::move(tag)}, due};
}

absl::Status JudgeWebReply(const HttpReply& reply, const std::string& address) {
  const std::string what = absl::StrCat("cannot read ", address, ": ");
  const std::string code = absl::StrCat(" [", reply.code, "]");
  switch (reply.code) {
    case 404:
    case 410:
      return absl::NotFoundError(absl::StrCat(what, "the server has no such file", code));
    case 401:
    case 403:
    case 407:
      return absl::PermissionDeniedError(
          absl::StrCat(what, "the server does not allow it", code,
                       "; serve the file without a password, or take it from s3:// with keys"));
    case 408:
    case 425:
    case 429:
      return absl::UnavailableError(absl::StrCat(what, "the server is overloaded", code));
    case 416:
      return absl::OutOfRangeError(absl::StrCat(what, "the file ends before", code));
    default:
      return reply.code >= 500 ? absl::UnavailableError(absl::StrCat(
                                     what, "the server is overloaded or has an error", code))
                               : absl::FailedPreconditionError(
                                     absl::StrCat(what, "the reply was not expected", code));
  }
}

absl::StatusOr<std::string> RedirectionOf(const HttpReply& reply, const std::string& url) {
  std::string target = reply.HeaderOf("location");
  if (absl::StartsWith(target, "//")) {
    target = absl::StrCat(SchemeOf(url), ":", target);
  } else if (absl::StartsWith(target, "/")) {
    target = absl::StrCat(OriginOf(url), target);
  }
  const bool is_secure = absl::StartsWith(target, "https://");
  if (!is_secure && (!absl::StartsWith(target, "http://") || SchemeOf(url) == "https")) {
    return absl::FailedPreconditionError(
        "the server sends on to something that is no https:// address; name the address where the "
        "file is");
  }
  return target;
}

}  // namespace dtrain::remote
