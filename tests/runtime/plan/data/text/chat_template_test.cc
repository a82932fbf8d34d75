// The expected texts are what transformers' apply_chat_template gives for the models that the
// templates are named after, and Stanford Alpaca's train.py.
#include "runtime/plan/data/text/chat_template.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/token_mask.h"
#include "tests/runtime/plan/data/text/byte_chat_encoder.h"

namespace dtrain::plan::chat_template_test {
namespace {

using ::testing::HasSubstr;

// The whole text, with what is trained on in brackets.
std::string Marked(ChatTemplate chat, const Conversation& conversation) {
  const ByteChatEncoder encoder;
  EXPECT_TRUE(CheckTemplate(chat, encoder).ok());
  const absl::StatusOr<std::vector<Piece>> pieces = Render(chat, conversation);
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  EncodedSample sample;
  EXPECT_TRUE(EncodePieces(*pieces, encoder, &sample).ok());
  EXPECT_EQ(sample.ids.size(), sample.mask.size());
  EXPECT_EQ(sample.mask[0] & kMaskStart, kMaskStart);
  std::string text;
  bool inside = false;
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    EXPECT_EQ((sample.mask[i] & kMaskStart) != 0, i == 0);
    const bool trained = (sample.mask[i] & kMaskTrained) != 0;
    text += trained && !inside ? "[" : !trained && inside ? "]" : "";
    inside = trained;
    text += encoder.Decode({&sample.ids[i], 1});
  }
  return text + (inside ? "]" : "");
}

const Conversation kChat{{{Role::kSystem, "Be brief."},
                          {Role::kUser, "Hi"},
                          {Role::kAssistant, "Hello."},
                          {Role::kUser, "Bye"},
                          {Role::kAssistant, "See you."}},
                         ""};
const Conversation kPair{{{Role::kUser, "2+2?"}, {Role::kAssistant, "4"}}, ""};

TEST(ChatTemplateTest, ChatMlTrainsOnAnswersAndTheirEnds) {
  EXPECT_EQ(Marked(ChatTemplate::kChatMl, kChat),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n[Hello.<|im_end|>]\n<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n[See you.<|im_end|>]\n");
}

TEST(ChatTemplateTest, QwenAddsItsSystemTextWhereThereIsNone) {
  EXPECT_EQ(Marked(ChatTemplate::kQwen, kPair),
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
            "assistant.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
            "[4<|im_end|>]\n");
  EXPECT_EQ(Marked(ChatTemplate::kQwen, kChat), Marked(ChatTemplate::kChatMl, kChat));
}

TEST(ChatTemplateTest, QwensToolsAnswerInAUsersTurn) {
  const Conversation tools{{{Role::kSystem, "s"},
                            {Role::kUser, "u"},
                            {Role::kTool, "1"},
                            {Role::kTool, "2"},
                            {Role::kAssistant, "a"},
                            {Role::kTool, "3"}},
                           ""};
  EXPECT_EQ(Marked(ChatTemplate::kQwen, tools),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
            "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n"
            "</tool_response><|im_end|>\n<|im_start|>assistant\n[a<|im_end|>]\n"
            "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n");
  EXPECT_THAT(Marked(ChatTemplate::kChatMl, tools), HasSubstr("<|im_start|>tool\n1<|im_end|>\n"));
}

TEST(ChatTemplateTest, Llama3StripsTextsAndBeginsOnce) {
  // U+3000 begins paragraphs of Chinese; U+001F is a blank to Python.
  const Conversation padded{{{Role::kUser, " \u30002+2?\n\x1f"}, {Role::kAssistant, "4\u00a0"}},
                            ""};
  EXPECT_EQ(Marked(ChatTemplate::kLlama3, padded),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[4<|eot_id|>]");
  const Conversation blank{{{Role::kUser, " \u3000"}, {Role::kAssistant, "\u3000 a b\u00e9"}}, ""};
  EXPECT_THAT(Marked(ChatTemplate::kLlama3, blank),
              ::testing::AllOf(HasSubstr("user<|end_header_id|>\n\n<|eot_id|>"),
                               HasSubstr("\n\n[a b\u00e9<|eot_id|>]")));
}

TEST(ChatTemplateTest, LlamasToolsSpeakJson) {
  const Conversation tool{{{Role::kTool, " \"\u00e9\"\n"}, {Role::kAssistant, "a"}}, ""};
  EXPECT_THAT(Marked(ChatTemplate::kLlama3, tool),
              HasSubstr("<|start_header_id|>ipython<|end_header_id|>\n\n"
                        "\" \\\"\u00e9\\\"\\n\"<|eot_id|><|start_header_id|>assistant"));
}

TEST(ChatTemplateTest, AlpacaHasAPlaceForTheInput) {
  EXPECT_EQ(Marked(ChatTemplate::kAlpaca, kPair),
            "Below is an instruction that describes a task. Write a response that appropriately "
            "completes the request.\n\n### Instruction:\n2+2?\n\n### Response:\n[4<end>]");
  const Conversation with_input{kPair.turns, "in decimal"};
  EXPECT_EQ(Marked(ChatTemplate::kAlpaca, with_input),
            "Below is an instruction that describes a task, paired with an input that provides "
            "further context. Write a response that appropriately completes the request.\n\n"
            "### Instruction:\n2+2?\n\n### Input:\nin decimal\n\n### Response:\n[4<end>]");
  EXPECT_EQ(Marked(ChatTemplate::kPlain, with_input), "2+2?\nin decimal[4<end>]");
}

TEST(ChatTemplateTest, SpecialTokensInATextStayText) {
  const Conversation sly{{{Role::kUser, "<|im_end|>"}, {Role::kAssistant, "no"}}, ""};
  const absl::StatusOr<std::vector<Piece>> pieces = Render(ChatTemplate::kChatMl, sly);
  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ((*pieces)[1], (Piece{Piece::Kind::kText, "user\n<|im_end|>", false}));
}

TEST(ChatTemplateTest, NamesAndTokensAreChecked) {
  EXPECT_EQ(*ChatTemplateFromName("llama3"), ChatTemplate::kLlama3);
  EXPECT_THAT(ChatTemplateFromName("llama2").status().message(),
              HasSubstr("allowed: chatml, llama3, qwen, alpaca, plain"));
  EXPECT_THAT(CheckTemplate(ChatTemplate::kQwen, *TextEncoder::OfBytes()).message(),
              HasSubstr("the template qwen needs the token <|im_start|>"));
  EXPECT_TRUE(CheckTemplate(ChatTemplate::kAlpaca, *TextEncoder::OfBytes()).ok());
  const Conversation tool{{{Role::kTool, "x"}, {Role::kAssistant, "y"}}, ""};
  EXPECT_THAT(Render(ChatTemplate::kAlpaca, tool).status().message(), HasSubstr("turn of a tool"));
}

}  // namespace
}  // namespace dtrain::plan::chat_template_test
