#include "runtime/plan/data/text/records.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

constexpr size_t kKeysShown = 8;

// A parser's message without the text that it had read, which may be as long as the line.
std::string WithoutText(const std::string& message) {
  constexpr size_t kBytesMax = 200;
  return message.substr(0, std::min(message.find("; last read"), kBytesMax));
}

// Takes one string of the outermost object as the text is read, and builds nothing of the rest.
class TextOfKey final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TextOfKey(const std::string& key) : key_(key) {}

  bool null() override { return Value("null"); }
  bool boolean(bool /*value*/) override { return Value("a truth value"); }
  bool number_integer(number_integer_t /*value*/) override { return Value("a number"); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return Value("a number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return Value("a number");
  }
  bool string(string_t& value) override {
    if (depth_ == 1 && is_wanted_) {
      text_ = std::move(value);
      other_ = nullptr;
      return true;
    }
    return Value("a string");
  }
  bool binary(binary_t& /*value*/) override { return Value("binary"); }
  bool start_object(size_t /*elements*/) override { return Open("an object"); }
  bool start_array(size_t /*elements*/) override { return Open("a list"); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& value) override {
    if (depth_ == 1) {
      is_wanted_ = value == key_;
      if (keys_seen_++ < kKeysShown) {
        absl::StrAppend(&keys_, keys_.empty() ? "" : ", ", value.substr(0, 40));
      }
    }
    return true;
  }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ..."
    std::string what = error.what();
    const size_t colon = what.find(": ");
    error_ =
        absl::StrFormat("it is no JSON at byte %d: %s", position,
                        WithoutText(colon == std::string::npos ? what : what.substr(colon + 2)));
    return false;
  }

  absl::StatusOr<std::string> Result() {
    if (!error_.empty()) {
      return absl::InvalidArgumentError(error_);
    }
    if (outermost_ != std::string("an object")) {
      return absl::InvalidArgumentError(
          absl::StrFormat("it is %s; want an object, {...}", outermost_));
    }
    if (other_ != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("its member \"%s\" is %s; want a string", key_, other_));
    }
    if (!text_.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("it has no member \"%s\" (it has: %s)%s; --text-key names another", key_,
                          keys_.empty() ? "none" : keys_,
                          keys_.empty() ? ": in a table, the value of this row is null" : ""));
    }
    return *std::move(text_);
  }

 private:
  bool Value(const char* what) {
    if (depth_ == 0) {
      outermost_ = what;
    } else if (depth_ == 1 && is_wanted_) {
      other_ = what;
      text_.reset();
    }
    return true;
  }
  bool Open(const char* what) {
    Value(what);
    is_wanted_ = is_wanted_ && depth_ != 1;
    ++depth_;
    return true;
  }
  bool Close() {
    --depth_;
    return true;
  }

  const std::string& key_;
  int depth_ = 0;
  bool is_wanted_ = false;  // The member that is being read, of the outermost object.
  const char* outermost_ = "nothing";
  const char* other_ = nullptr;  // What the wanted member is, if it is no string.
  std::optional<std::string> text_;
  std::string keys_;
  size_t keys_seen_ = 0;
  std::string error_;
};

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

// Helps with files that hold one list of objects, of which a line is the list or its beginning.
const char* ListAdvice(absl::string_view line) {
  return absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "[")
             ? "; of a file that is one list of objects, jq -c '.[]' FILE makes lines"
             : "";
}

std::string KeysOf(const Json& object) {
  std::string keys;
  size_t seen = 0;
  for (const auto& [name, value] : object.items()) {
    if (seen++ < kKeysShown) {
      absl::StrAppend(&keys, keys.empty() ? "" : ", ", name.substr(0, 40));
    }
  }
  return keys;
}

absl::StatusOr<std::string> TextMember(const Json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) {
    return Bad(absl::StrFormat("it has no member \"%s\" (it has: %s)", name, KeysOf(object)));
  }
  if (!found->is_string()) {
    return Bad(absl::StrFormat("its member \"%s\" is of the type %s; want a string", name,
                               found->type_name()));
  }
  return found->get<std::string>();
}

// Empty if there is none.
absl::StatusOr<std::string> OptionalText(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? absl::StatusOr<std::string>("")
                                                   : TextMember(object, name);
}

absl::StatusOr<Role> RoleFromName(const std::string& name) {
  for (const Role role : {Role::kSystem, Role::kUser, Role::kAssistant, Role::kTool}) {
    if (name == RoleName(role)) {
      return role;
    }
  }
  return Bad(absl::StrFormat("a message has the role \"%s\"; want system, user, assistant or tool",
                             name.substr(0, 40)));
}

// A call is a part of what the assistant says; an answer without it would be a wrong one.
absl::Status ExpectNoCalls(const Json& message) {
  for (const char* const name : {"tool_calls", "function_call"}) {
    const auto found = message.find(name);
    if (found != message.end() && !found->is_null() && !found->empty() && *found != "") {
      return Bad(absl::StrFormat(
          "it has \"%s\", which no template of dtrain writes; put the text of the call, as the "
          "model is to write it, into \"content\"",
          name));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Conversation> FromMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) {
    return Bad("its member \"messages\" is no list of messages");
  }
  Conversation conversation;
  for (const Json& message : messages) {
    const std::string where = absl::StrFormat("message %d: ", conversation.turns.size());
    if (!message.is_object()) {
      return Bad(where + "it is no object");
    }
    DT_RETURN_IF_ERROR(Annotate(ExpectNoCalls(message), where.substr(0, where.size() - 2)));
    auto role = TextMember(message, "role");
    DT_RETURN_IF_ERROR(Annotate(role.status(), where.substr(0, where.size() - 2)));
    DT_ASSIGN_OR_RETURN(const Role known, RoleFromName(*role));
    auto content = TextMember(message, "content");
    DT_RETURN_IF_ERROR(Annotate(content.status(), where.substr(0, where.size() - 2)));
    conversation.turns.push_back({known, *std::move(content)});
  }
  return conversation;
}

absl::StatusOr<Conversation> FromPair(const Json& record, const std::string& prompt_key,
                                      const std::string& completion_key) {
  Conversation conversation;
  DT_ASSIGN_OR_RETURN(std::string system, OptionalText(record, "system"));
  DT_ASSIGN_OR_RETURN(std::string prompt, TextMember(record, prompt_key));
  DT_ASSIGN_OR_RETURN(std::string completion, TextMember(record, completion_key));
  if (!system.empty()) {
    conversation.turns.push_back({Role::kSystem, std::move(system)});
  }
  conversation.turns.push_back({Role::kUser, std::move(prompt)});
  conversation.turns.push_back({Role::kAssistant, std::move(completion)});
  return conversation;
}

}  // namespace

const char* RoleName(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      return "tool";
  }
  return "";
}

absl::StatusOr<std::string> ParseTextRecord(absl::string_view line, const std::string& key) {
  TextOfKey handler(key);
  nlohmann::json::sax_parse(line.begin(), line.end(), &handler);
  absl::StatusOr<std::string> text = handler.Result();
  if (!text.ok()) {
    return Bad(absl::StrCat(text.status().message(), ListAdvice(line)));
  }
  return text;
}

absl::StatusOr<Conversation> ParseConversation(absl::string_view line,
                                               const InstructionKeys& keys) {
  const absl::StatusOr<Json> parsed = ParseJson(line, "");
  if (!parsed.ok()) {
    return Bad(absl::StrCat("it is no JSON", WithoutText(std::string(parsed.status().message())),
                            ListAdvice(line)));
  }
  const Json& record = *parsed;
  if (!record.is_object()) {
    return Bad(absl::StrFormat("it is of the type %s; want an object, {...}%s", record.type_name(),
                               ListAdvice(line)));
  }
  if (const auto messages = record.find("messages"); messages != record.end()) {
    return FromMessages(*messages);
  }
  if (record.contains("instruction") && !record.contains(keys.prompt)) {
    DT_ASSIGN_OR_RETURN(Conversation conversation, FromPair(record, "instruction", "output"));
    DT_ASSIGN_OR_RETURN(conversation.input, OptionalText(record, "input"));
    return conversation;
  }
  if (!record.contains(keys.prompt) && !record.contains(keys.completion)) {
    return Bad(absl::StrFormat(
        "it has neither \"messages\" nor \"%s\" and \"%s\" nor \"instruction\" and \"output\" (it "
        "has: %s); --prompt-key and --completion-key name others",
        keys.prompt, keys.completion, KeysOf(record)));
  }
  return FromPair(record, keys.prompt, keys.completion);
}

bool HasNoCompletion(const Conversation& conversation) {
  return std::none_of(conversation.turns.begin(), conversation.turns.end(), [](const Turn& turn) {
    return turn.role == Role::kAssistant && !absl::StripAsciiWhitespace(turn.content).empty();
  });
}

}  // namespace dtrain::plan
