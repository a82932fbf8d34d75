// Compresses bytes as gzip and zstd do, for tests.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <string>

#include "base/check.h"

namespace dtrain::plan {

inline std::string Gzip(const std::string& text) {
  z_stream stream{};
  DT_CHECK_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  std::string in = text;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  DT_CHECK_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const size_t bytes = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3);
  DT_CHECK_EQ(ZSTD_isError(bytes), 0U);
  out.resize(bytes);
  return out;
}

}  // namespace dtrain::plan
