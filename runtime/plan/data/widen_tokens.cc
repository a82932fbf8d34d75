#include "runtime/plan/data/widen_tokens.h"

#include <cstddef>
#include <cstring>
#include <limits>

namespace dtrain::plan {
namespace {

// Widening and checking in one pass, without a branch, so that the compiler makes vector
// instructions of it. Ids are compared in the width that they have in the file: a register holds
// more of them than after they are widened. A negative id of 8 bytes is above all others.
template <typename Id>
[[gnu::always_inline]] inline bool WidenIds(const char* bytes, absl::Span<int64_t> out,
                                            int64_t vocabulary) {
  constexpr Id kLargest = std::numeric_limits<Id>::max();
  const auto last = static_cast<uint64_t>(vocabulary) - 1;  // Above all ids if vocabulary is 0.
  const Id largest = last < kLargest ? static_cast<Id>(last) : kLargest;
  int64_t* const to = out.data();
  const size_t count = out.size();
  Id is_beyond = 0;
  for (size_t i = 0; i < count; ++i) {
    Id id{};
    std::memcpy(&id, bytes + sizeof(id) * i, sizeof(id));
    to[i] = static_cast<int64_t>(id);
    is_beyond = static_cast<Id>(is_beyond | static_cast<Id>(id > largest));
  }
  return is_beyond == 0;
}

// Each width has a loop of its own. All are inlined into each of the forms below, which differ in
// the instructions that the compiler may use.
[[gnu::always_inline]] inline bool WidenWidth(const char* bytes, int bytes_per_token,
                                              absl::Span<int64_t> out, int64_t vocabulary) {
  switch (bytes_per_token) {
    case 1:
      return WidenIds<uint8_t>(bytes, out, vocabulary);
    case 2:
      return WidenIds<uint16_t>(bytes, out, vocabulary);
    case 4:
      return WidenIds<uint32_t>(bytes, out, vocabulary);
    default:
      return WidenIds<uint64_t>(bytes, out, vocabulary);
  }
}

bool WidenOnAnyCpu(const char* bytes, int bytes_per_token, absl::Span<int64_t> out,
                   int64_t vocabulary) {
  return WidenWidth(bytes, bytes_per_token, out, vocabulary);
}

#if defined(__x86_64__)
// There is no form with AVX-512: with AVX2 already the copy out of the page cache, which comes
// before, takes nearly all of the time.
__attribute__((target("avx2"))) bool WidenByAvx2(const char* bytes, int bytes_per_token,
                                                 absl::Span<int64_t> out, int64_t vocabulary) {
  return WidenWidth(bytes, bytes_per_token, out, vocabulary);
}
#endif

}  // namespace

bool WidenTokens(const char* bytes, int bytes_per_token, absl::Span<int64_t> out,
                 int64_t vocabulary, SimdLevel level) {
#if defined(__x86_64__)
  if (level >= SimdLevel::kAvx2) {
    return WidenByAvx2(bytes, bytes_per_token, out, vocabulary);
  }
#endif
  return WidenOnAnyCpu(bytes, bytes_per_token, out, vocabulary);
}

}  // namespace dtrain::plan
