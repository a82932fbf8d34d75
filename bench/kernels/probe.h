// The limit beside which `dtrain bench kernels` puts each kernel: a loop with the same mix of read
// and write streams and next to no arithmetic.
//
// A copy is no bound for a loop of four reads and three writes, so each kernel names its own mix.
// The streams are one, two or four bytes an element wide. The first `in_place` write streams of
// four bytes and the first `in_place2` of two go to the first read streams of their width; the
// others are written with or without non-temporal stores, and the caller takes the faster.
#pragma once

#include <cstdint>

namespace dtrain::bench {

struct StreamMix {
  int read4 = 0;
  int read2 = 0;
  int write4 = 0;
  int write2 = 0;
  int in_place = 0;   // So many of the write4 streams are written in place.
  int in_place2 = 0;  // So many of the write2 streams are written in place.
  int read1 = 0;
  int write1 = 0;

  bool operator==(const StreamMix&) const = default;
  int64_t BytesPerElement() const {
    return 4 * (read4 + write4) + 2 * (read2 + write2) + read1 + write1;
  }
};

// Streams start at base + k * stride: reads of four bytes, of two, of one, then pure writes of
// four, of two, of one.
struct ProbeStreams {
  char* base = nullptr;
  int64_t stride = 0;
};

// Runs the mix over elements [begin, end), multiples of 32. Returns a value that depends on every
// read. REQUIRES: a mix that Probe lists; the streams are 64-byte aligned; AVX2.
float Probe(const StreamMix& mix, const ProbeStreams& streams, bool non_temporal, int64_t begin,
            int64_t end);

}  // namespace dtrain::bench
