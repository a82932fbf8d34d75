// Reads replies to requests for a range of an object. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/storage/s3/http.h"
#include "runtime/data/remote/object_client.h"

namespace dtrain::remote {

// What a reply 2xx to a request for `wanted` bytes from `offset` on has brought. FailedPrecondition
// names `address`: the server does not know ranges, or does not say how long the object is.
absl::StatusOr<ObjectPiece> PieceOfReply(const checkpoint::s3::HttpReply& reply,
                                         const std::string& address, int64_t offset,
                                         int64_t wanted);
// The error for servers that reply with whole objects.
absl::Status WithoutRanges(absl::string_view address);

// What a reply that is neither 2xx nor a redirection means, for a web server. Unavailable: it may
// help to try again.
absl::Status JudgeWebReply(const checkpoint::s3::HttpReply& reply, const std::string& address);

// The address to which a redirection from `url` leads. FailedPrecondition: to nothing that may be
// followed; never from https to http.
absl::StatusOr<std::string> RedirectionOf(const checkpoint::s3::HttpReply& reply,
                                          const std::string& url);

}  // namespace dtrain::remote
