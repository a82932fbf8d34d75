#include "runtime/plan/data/parquet/decompress.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/data/parquet/block_codecs.h"

namespace dtrain::plan::parquet {
namespace {

constexpr size_t kFirstBytes = size_t{1} << 20;

absl::Status BadStored(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("its data are damaged or cut: ", why));
}

// Room for more output, of which `made` bytes are there: twice as much each time, up to `bytes`.
void Grow(size_t made, size_t bytes, std::string* out) {
  out->resize(std::min(bytes, std::max(kFirstBytes, 2 * made)));
}

absl::Status DecompressGzip(absl::string_view stored, size_t bytes, std::string* out) {
  constexpr int kGzipOrZlib = 32 + MAX_WBITS;
  z_stream stream{};
  if (inflateInit2(&stream, kGzipOrZlib) != Z_OK) {
    return absl::ResourceExhaustedError("no memory to decompress");
  }
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));
  stream.avail_in = static_cast<uInt>(stored.size());
  size_t made = 0;
  while (made < bytes) {
    Grow(made, bytes, out);
    stream.next_out = reinterpret_cast<Bytef*>(out->data() + made);
    stream.avail_out = static_cast<uInt>(out->size() - made);
    const int result = inflate(&stream, Z_NO_FLUSH);
    const size_t before = made;
    made = out->size() - stream.avail_out;
    if (result == Z_STREAM_END && stream.avail_in > 0) {
      inflateReset(&stream);  // Members of gzip may follow each other.
      continue;
    }
    if ((result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) ||
        (made == before && made < bytes)) {
      return BadStored(stream.msg != nullptr ? stream.msg : "it ends too early");
    }
  }
  return absl::OkStatus();
}

absl::Status DecompressZstd(absl::string_view stored, size_t bytes, std::string* out) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  if (stream == nullptr) {
    return absl::ResourceExhaustedError("no memory to decompress");
  }
  ZSTD_inBuffer in{stored.data(), stored.size(), 0};
  ZSTD_outBuffer made{nullptr, 0, 0};
  while (made.pos < bytes) {
    Grow(made.pos, bytes, out);
    made.dst = out->data();
    made.size = out->size();
    const size_t before = made.pos;
    const size_t read = in.pos;
    const size_t left = ZSTD_decompressStream(stream.get(), &made, &in);
    if (ZSTD_isError(left) != 0) {
      return BadStored(ZSTD_getErrorName(left));
    }
    if (made.pos == before && in.pos == read) {
      return BadStored("it ends too early");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string CodecName(Codec codec) {
  constexpr const char* kNames[] = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO",
                                    "BROTLI",       "LZ4",    "ZSTD", "LZ4_RAW"};
  const auto number = static_cast<size_t>(codec);
  return number < std::size(kNames) ? kNames[number] : absl::StrCat("codec ", number);
}

absl::Status CheckCodec(Codec codec) {
  switch (codec) {
    case Codec::kUncompressed:
    case Codec::kSnappy:
    case Codec::kGzip:
    case Codec::kZstd:
    case Codec::kLz4Raw:
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrFormat(
          "it is compressed by %s; allowed: UNCOMPRESSED, SNAPPY, GZIP, ZSTD, LZ4_RAW",
          CodecName(codec)));
  }
}

absl::Status Decompress(Codec codec, absl::string_view stored, size_t bytes, std::string* out) {
  switch (codec) {
    case Codec::kUncompressed:
      if (stored.size() != bytes) {
        return BadStored(
            absl::StrFormat("it has %d bytes and should have %d", stored.size(), bytes));
      }
      out->assign(stored.data(), stored.size());
      return absl::OkStatus();
    case Codec::kSnappy:
      return DecompressSnappy(stored, bytes, out);
    case Codec::kLz4Raw:
      return DecompressLz4(stored, bytes, out);
    case Codec::kGzip:
    case Codec::kZstd:
      out->clear();
      return codec == Codec::kGzip ? DecompressGzip(stored, bytes, out)
                                   : DecompressZstd(stored, bytes, out);
    default:
      return CheckCodec(codec);
  }
}

}  // namespace dtrain::plan::parquet
