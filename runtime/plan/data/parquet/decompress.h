// The codecs of pages. Pure; any input is safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/data/parquet/format.h"

namespace dtrain::plan::parquet {

// "SNAPPY"; for a number that is no codec "codec NUMBER".
std::string CodecName(Codec codec);
// InvalidArgument, with the name: a codec whose pages are not read.
absl::Status CheckCodec(Codec codec);

// Makes `out` the `bytes` that `stored` holds. InvalidArgument says why it does not hold them.
// Memory grows with what is decompressed, and not with what a header says of it.
absl::Status Decompress(Codec codec, absl::string_view stored, size_t bytes, std::string* out);

}  // namespace dtrain::plan::parquet
