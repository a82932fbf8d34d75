// The meaning of one line of a JSONL file: a text, or a conversation to learn from. Pure; any input
// is safe, and each error is one line that says what is wrong with the record, without its place.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::plan {

// The string at `key` of the record's object. InvalidArgument: no JSON, no object, no such key, no
// string there. Other members may be anything; of a key that appears twice the last one counts.
absl::StatusOr<std::string> ParseTextRecord(absl::string_view line, const std::string& key);

enum class Role { kSystem, kUser, kAssistant, kTool };
const char* RoleName(Role role);

struct Turn {
  Role role = Role::kUser;
  std::string content;
  bool operator==(const Turn&) const = default;
};

// The answers of a model; the turns of the assistant are what it learns.
struct Conversation {
  std::vector<Turn> turns;
  std::string input;  // Alpaca's context of the one instruction; mostly empty.
};

struct InstructionKeys {
  std::string prompt = "prompt";
  std::string completion = "completion";
};

// {"messages": [{"role", "content"}, ...]}, {"prompt", "completion"} (by the names of `keys`) or
// Alpaca's {"instruction", "input", "output"}; a "system" text may stand beside the latter two.
absl::StatusOr<Conversation> ParseConversation(absl::string_view line, const InstructionKeys& keys);

// Whether no turn of the assistant says anything.
bool HasNoCompletion(const Conversation& conversation);

}  // namespace dtrain::plan
