// The one table of configuration keys. Fixed defaults, unknown-key, type and range errors,
// docs/CONFIG.md and the JSON schema are made from it. Defaults that follow from other keys are in
// config_fill.cc and config_optimizer.cc. Thread-safe; never changes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/json.h"

namespace dtrain::plan {

enum class KeyType {
  kBool,
  kInteger,
  kNumber,
  kString,
  kStringList,  // A string stands for a list of one.
  kNumberPair,
  kIntegerList,
  kObjectList,
  kDataSources,  // Token files, or parts of a mixture (data_sources.h).
  kFree,         // Any object; its content is the user's.
};

// How dtrain treats a key.
enum class KeyUse {
  kUsed,
  // Accepted for DeepSpeed's sake and without effect: one warning when it is not the default.
  kIgnored,
  // Asks for something that dtrain does not do: any value but those in `accepted` is an error,
  // because training without it would give other results or might not fit into memory.
  kRefused,
};

struct ConfigKey {
  const char* path;           // "zero_optimization.stage".
  KeyType type;               //
  const char* default_value;  // JSON; "null": absent unless a rule fills it.
  // Numbers: an interval, "[0, 1)" or "(0, inf)". Strings: "a|b|c". "": anything.
  const char* range;
  KeyUse use;
  const char* accepted;  // kRefused: a JSON list of the values that are supported.
  unsigned flags;        // kAutoAllowed, kIdentity.
  // The key's effect, in full sentences with the verb first. kIgnored and kRefused: why the key is
  // not needed, or what to set instead, worded so that it can follow the key's name in a message.
  const char* doc;
};

inline constexpr unsigned kAutoAllowed = 1;  // "auto" is filled by the rule in `doc`; TakesAuto.
inline constexpr unsigned kIdentity = 2;     // Must not change when a run is resumed.
inline constexpr unsigned kContinuousAllowed = 8;  // "continuous" stands beside the numbers.
// An object that is as absent when it is empty, its "enabled" is false or "auto", or it holds only
// such objects.
inline constexpr unsigned kOffWhenDisabled = 4;

absl::Span<const ConfigKey> ConfigKeys();
// The parts of it in files config_keys_*.cc of their own.
absl::Span<const ConfigKey> CommConfigKeys();
absl::Span<const ConfigKey> DeepSpeedConfigKeys();
absl::Span<const ConfigKey> OtherConfigKeys();
absl::Span<const ConfigKey> ZeroConfigKeys();
// Null when there is none.
const ConfigKey* FindConfigKey(absl::string_view path);
// Whether keys stand below `path` ("zero_optimization").
bool IsConfigSection(absl::string_view path);
// Whether `path` is below a key whose content is the user's ("model.layers").
bool IsInsideFreeKey(absl::string_view path);

// The key or section closest to `path` by edit distance, with the words of a name in any order: one
// of its own section if that has a near one, else of all. A misplaced key ("stage" at the top)
// finds its home.
std::string NearestConfigKey(absl::string_view path);

// An older spelling and today's name; null when `path` is none.
const char* TodaysName(absl::string_view path);
struct OlderName {
  const char* older;
  const char* today;
};
absl::Span<const OlderName> OlderNames();
// Translates the value of an older key: some were switches of what is now a choice.
Json TodaysValue(absl::string_view older, const Json& value);

// Whether "auto" is a value of the key: where its doc says so (kAutoAllowed), and as a word for the
// default in the sections that the Hugging Face integrations of DeepSpeed fill in.
bool TakesAuto(const ConfigKey& key);

// `value` as the table wants it (5e8 becomes an integer, a string a list of one), or an error that
// starts with the key and names the value, the type and the range. "auto" passes where TakesAuto.
absl::StatusOr<Json> CheckValue(const ConfigKey& key, const Json& value);

// `value` in a message of one line: at most 80 characters.
std::string ShortJson(const Json& value);

// "an integer", "true or false"...
absl::string_view KeyTypeName(KeyType type);
// The values that a string key may have, but for those that are always refused; empty: any text.
std::vector<std::string> Choices(const ConfigKey& key);
// The allowed values of a key, for messages and documents: "an integer from 0 to 3", "one of auto,
// cpu, cuda", "a number, 0 or more, or "auto"".
std::string AllowedText(const ConfigKey& key);

}  // namespace dtrain::plan
