// Encodes texts for tests of tokenizers: `tokenizer_ids PATH plain|template|fast PATTERN`. Standard
// input has texts, each behind its length (u32); standard output gets for each the number of its
// tokens, the tokens, and the text that they decode to behind its length. "template" adds the
// tokens around a text; "fast" does not decode token by token too.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/tokenizer.h"

namespace dtrain::plan {
namespace {

void Write(const void* data, size_t bytes) { std::fwrite(data, 1, bytes, stdout); }

absl::Status ExpectSameStreamed(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids,
                                const std::string& decoded) {
  StreamDecoder stream(tokenizer, /*skip_special=*/false);
  std::string streamed;
  for (const uint32_t id : ids) {
    streamed += stream.Push(id);
  }
  streamed += stream.Finish();
  return streamed == decoded
             ? absl::OkStatus()
             : absl::InternalError("a text decoded token by token is another one: " + decoded);
}

absl::Status Encode(const Tokenizer& tokenizer, absl::string_view text,
                    const EncodeOptions& options, bool streams) {
  std::vector<uint32_t> ids;
  DT_RETURN_IF_ERROR(tokenizer.Encode(text, options, &ids));
  const std::string decoded = tokenizer.Decode(ids);
  if (streams) {
    DT_RETURN_IF_ERROR(ExpectSameStreamed(tokenizer, ids, decoded));
  }
  const auto count = static_cast<uint32_t>(ids.size());
  const auto bytes = static_cast<uint32_t>(decoded.size());
  Write(&count, sizeof(count));
  Write(ids.data(), 4 * ids.size());
  Write(&bytes, sizeof(bytes));
  Write(decoded.data(), decoded.size());
  return absl::OkStatus();
}

absl::Status Run(const std::string& path, const std::string& pattern, const EncodeOptions& options,
                 bool streams) {
  DT_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(path, {.pattern = pattern}));
  const std::string all(std::istreambuf_iterator<char>(std::cin), {});
  for (size_t at = 0; at + 4 <= all.size();) {
    uint32_t length = 0;
    std::memcpy(&length, all.data() + at, sizeof(length));
    DT_RETURN_IF_ERROR(
        Encode(*tokenizer, absl::string_view(all).substr(at + 4, length), options, streams));
    at += 4 + size_t{length};
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace dtrain::plan

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: tokenizer_ids PATH plain|template|fast PATTERN\n", stderr);
    return 64;
  }
  dtrain::plan::EncodeOptions options;
  const std::string mode = argv[2];
  options.add_template = mode == "template";
  return dtrain::EndOf("tokenizer_ids",
                       dtrain::plan::Run(argv[1], argv[3], options, mode != "fast"));
}
