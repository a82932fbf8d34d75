#include "runtime/plan/data/text/records.h"

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::records_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TextRecordTest, TheKeysStringIsTheText) {
  EXPECT_EQ(*ParseTextRecord(R"({"id": 3, "text": "a\u00e4\n\ud83d\ude00", "meta": {"text": 5}})",
                             "text"),
            "a\u00e4\n\U0001F600");
  EXPECT_EQ(*ParseTextRecord(R"({"meta": {"text": "inner"}, "content": ""})", "content"), "");
  EXPECT_EQ(*ParseTextRecord(R"({"text": "one", "text": "two"})", "text"), "two");
}

TEST(TextRecordTest, WhatIsMissingOrWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"txt": "a", "id": 1})", "no member \"text\" (it has: txt, id)"},
      {R"({"meta": {"text": "inner"}})", "no member \"text\" (it has: meta)"},
      {R"({"text": 5})", "its member \"text\" is a number; want a string"},
      {R"({"text": ["a"]})", "its member \"text\" is a list"},
      {R"({"text": {"a": "b"}})", "its member \"text\" is an object"},
      {R"({"text": null})", "its member \"text\" is null"},
      {R"(["text"])",
       "it is a list; want an object, {...}; of a file that is one list of objects, "
       "jq -c '.[]' FILE makes lines"},
      {" [", "it is no JSON at byte"},
      {" [", "; of a file that is one list of objects, jq"},
      {R"("text")", "it is a string; want an object"},
      {R"({"text": "a")", "it is no JSON at byte"},
      {R"({"text": "a"} {)", "it is no JSON at byte"},
      {"plain text", "it is no JSON at byte 1"},
      {"{\"text\": \"\xff\"}", "it is no JSON at byte"},
      {"\x89PNG\r", "it is no JSON at byte 1"}};
  for (const auto& [line, says] : cases) {
    EXPECT_THAT(ParseTextRecord(line, "text").status().message(), HasSubstr(says)) << line;
  }
}

TEST(TextRecordTest, AnErrorIsShortHoweverLongTheLine) {
  const std::string line = "{\"text\": \"" + std::string(100000, 'a');
  for (const absl::Status& status :
       {ParseTextRecord(line, "text").status(), ParseConversation(line, {}).status()}) {
    EXPECT_THAT(status.message(), HasSubstr("missing closing quote"));
    EXPECT_LT(status.message().size(), 300U);
  }
}

TEST(ConversationTest, ThreeFormsAreKnown) {
  const InstructionKeys keys;
  const auto messages = ParseConversation(
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                       {"role": "assistant", "content": "a"}]})",
      keys);
  ASSERT_TRUE(messages.ok()) << messages.status();
  EXPECT_THAT(messages->turns, ElementsAre(Turn{Role::kSystem, "s"}, Turn{Role::kUser, "u"},
                                           Turn{Role::kAssistant, "a"}));
  const auto pair = ParseConversation(R"({"prompt": "p", "completion": "c"})", keys);
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_THAT(pair->turns, ElementsAre(Turn{Role::kUser, "p"}, Turn{Role::kAssistant, "c"}));
  const auto alpaca =
      ParseConversation(R"({"instruction": "i", "input": "x", "output": "o"})", keys);
  ASSERT_TRUE(alpaca.ok()) << alpaca.status();
  EXPECT_THAT(alpaca->turns, ElementsAre(Turn{Role::kUser, "i"}, Turn{Role::kAssistant, "o"}));
  EXPECT_EQ(alpaca->input, "x");
  const auto named = ParseConversation(R"({"q": "p", "a": "c"})", {"q", "a"});
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->turns[1].content, "c");
}

TEST(ConversationTest, WhatIsMissingOrWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"text": "a"})", "neither \"messages\" nor \"prompt\" and \"completion\""},
      {R"({"prompt": "a"})", "it has no member \"completion\" (it has: prompt)"},
      {R"({"prompt": "a", "completion": 4})", "its member \"completion\" is of the type number"},
      {R"({"messages": []})", "is no list of messages"},
      {R"({"messages": [{"role": "bot", "content": "x"}]})", "the role \"bot\""},
      {R"({"messages": [{"role": "user"}]})", "message 0: it has no member \"content\""},
      {R"({"messages": [{"role": "user", "content": "a"}, 3]})", "message 1: it is no object"},
      {R"({"messages": [{"role": "user", "content": "a"},
                        {"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]}]})",
       "message 1: it has \"tool_calls\", which no template of dtrain writes"},
      {R"({"messages": [{"role": "assistant", "content": "", "function_call": {"name": "f"}}]})",
       "message 0: it has \"function_call\""},
      {R"([1])", "it is of the type array; want an object, {...}; of a file that is one list"},
      {"[", "; of a file that is one list of objects, jq -c '.[]' FILE makes lines"},
      {R"({"prompt")", "it is no JSON"}};
  for (const auto& [line, says] : cases) {
    EXPECT_THAT(ParseConversation(line, {}).status().message(), HasSubstr(says)) << line;
  }
}

TEST(ConversationTest, AMemberForCallsThatHoldsNoneIsNoCall) {
  for (const char* const none : {"null", "[]", "{}", "\"\""}) {
    const auto messages = ParseConversation(
        absl::StrFormat(R"({"messages": [{"role": "user", "content": "u", "tool_calls": %s}]})",
                        none),
        {});
    ASSERT_TRUE(messages.ok()) << messages.status();
    EXPECT_THAT(messages->turns, ElementsAre(Turn{Role::kUser, "u"}));
  }
}

TEST(ConversationTest, AnAnswerOfBlanksIsNone) {
  EXPECT_TRUE(HasNoCompletion(*ParseConversation(R"({"prompt": "p", "completion": " \n"})", {})));
  EXPECT_FALSE(HasNoCompletion(*ParseConversation(R"({"prompt": "p", "completion": "x"})", {})));
}

}  // namespace
}  // namespace dtrain::plan::records_test
