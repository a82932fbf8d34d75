// Any line gives a text, a conversation or a one-line error, and a conversation always renders to
// a mask as long as its tokens.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/text/utf8.h"
#include "runtime/plan/data/text/chat_template.h"
#include "runtime/plan/data/text/records.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/runtime/plan/data/text/byte_chat_encoder.h"

namespace dtrain {

std::vector<std::string> FuzzSeeds() {
  return {R"({"text": "a\u00e4\ud83d\ude00\n", "meta": [1, {"text": null}], "n": -1.5e3})",
          R"({"prompt": "p", "completion": "c", "system": "s"})",
          R"({"instruction": "i", "input": "x", "output": "o"})",
          R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
                           {"role": "tool", "content": "t"}]})"};
}

}  // namespace dtrain

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace dtrain;  // NOLINT(google-build-using-namespace)
  const absl::string_view line(reinterpret_cast<const char*>(data), bytes);
  const absl::StatusOr<std::string> text = plan::ParseTextRecord(line, "text");
  DT_CHECK(text.ok() || !text.status().message().empty());
  DT_CHECK(!text.ok() || IsUtf8(*text)) << "a text that is no UTF-8";
  const absl::StatusOr<plan::Conversation> conversation = plan::ParseConversation(line, {});
  if (!conversation.ok()) {
    DT_CHECK(!conversation.status().message().empty());
    return 0;
  }
  static const plan::ByteChatEncoder encoder;
  for (const char* const name : {"chatml", "llama3", "qwen", "alpaca", "plain"}) {
    const auto pieces = plan::Render(*plan::ChatTemplateFromName(name), *conversation);
    plan::EncodedSample sample;
    if (pieces.ok() && plan::EncodePieces(*pieces, encoder, &sample).ok()) {
      DT_CHECK_EQ(sample.ids.size(), sample.mask.size());
      DT_CHECK(plan::HasNoCompletion(*conversation) || sample.trained() > 0) << name;
    }
  }
  return 0;
}
