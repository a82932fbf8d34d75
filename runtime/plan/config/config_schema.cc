// The JSON Schema of a configuration, for editors: made from the table of keys.
#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/plan/config/config_docs.h"
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

Json NumberSchema(const ConfigKey& key, const char* type) {
  Json schema{{"type", type}};
  const std::string range = key.range;
  if (range.empty()) {
    return schema;
  }
  const std::vector<std::string> bounds = absl::StrSplit(range.substr(1, range.size() - 2), ", ");
  schema[range.front() == '(' ? "exclusiveMinimum" : "minimum"] = Json::parse(bounds[0]);
  if (bounds[1] != "inf") {
    schema[range.back() == ')' ? "exclusiveMaximum" : "maximum"] = Json::parse(bounds[1]);
  }
  return schema;
}

// Case does not matter to a configuration, but a schema has no other way to say so.
Json Spellings(absl::string_view range) {
  Json all = Json::array();
  for (const absl::string_view choice : absl::StrSplit(range, '|')) {
    for (const std::string& spelling :
         {std::string(choice), absl::AsciiStrToLower(choice), absl::AsciiStrToUpper(choice)}) {
      if (std::find(all.begin(), all.end(), spelling) == all.end()) {
        all.push_back(spelling);
      }
    }
  }
  return all;
}

// A list of strings, for which a string may stand.
Json StringsSchema() {
  return Json{
      {"anyOf", Json::array({Json{{"type", "string"}},
                             Json{{"type", "array"}, {"items", Json{{"type", "string"}}}}})}};
}

Json TypeSchema(const ConfigKey& key) {
  switch (key.type) {
    case KeyType::kBool:
      return Json{{"type", "boolean"}};
    case KeyType::kInteger:
      return NumberSchema(key, "integer");
    case KeyType::kNumber:
      return NumberSchema(key, "number");
    case KeyType::kString: {
      Json schema{{"type", "string"}};
      if (*key.range != '\0') {
        schema["enum"] = Spellings(key.range);
      }
      return schema;
    }
    case KeyType::kStringList:
      return StringsSchema();
    case KeyType::kNumberPair:
      return Json{{"type", "array"},
                  {"items", NumberSchema(key, "number")},
                  {"minItems", 2},
                  {"maxItems", 2}};
    case KeyType::kIntegerList:
      return Json{{"type", "array"}, {"items", Json{{"type", "integer"}}}};
    case KeyType::kDataSources: {
      const Json names = StringsSchema();
      const Json part{{"type", "object"},
                      {"required", Json::array({"files"})},
                      {"properties", Json{{"files", names},
                                          {"weight", Json{{"type", "number"}, {"minimum", 0}}}}},
                      {"additionalProperties", false}};
      return Json{{"anyOf", Json::array({names, Json{{"type", "array"}, {"items", part}}})}};
    }
    case KeyType::kObjectList:
      return Json{{"type", "array"}, {"items", Json{{"type", "object"}}}};
    case KeyType::kFree:
      return Json{{"type", "object"}};
  }
  return Json::object();
}

Json KeySchema(const ConfigKey& key) {
  Json choices = Json::array({TypeSchema(key), Json{{"type", "null"}}});
  if (TakesAuto(key)) {
    choices.push_back(Json{{"const", "auto"}});
  }
  if ((key.flags & kContinuousAllowed) != 0) {
    choices.push_back(Json{{"const", "continuous"}});
  }
  return Json{{"description", key.doc},
              {"default", Json::parse(key.default_value)},
              {"anyOf", std::move(choices)}};
}

// The place of `path` in the schema `root`. Makes the sections above it where they are missing.
Json& Place(Json& root, absl::string_view path) {
  Json* node = &root;
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    Json& child = (*node)["properties"][parts[i]];
    if (child.is_null()) {
      const Json types = parts[i] == "zero_optimization"
                             ? Json::array({"object", "boolean", "null"})
                             : Json::array({"object", "null"});
      child =
          Json{{"type", types}, {"additionalProperties", false}, {"properties", Json::object()}};
    }
    node = &child;
  }
  return (*node)["properties"][parts.back()];
}

}  // namespace

Json ConfigSchema() {
  Json root{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
            {"title", "dtrain configuration"},
            {"type", "object"},
            {"additionalProperties", false},
            {"properties", Json::object()}};
  for (const ConfigKey& key : ConfigKeys()) {
    Place(root, key.path) = KeySchema(key);
  }
  for (const OlderName& name : OlderNames()) {
    const Json today = KeySchema(*FindConfigKey(name.today));
    Json choices = today["anyOf"];
    choices.push_back(Json{{"type", "boolean"}});  // Some were switches.
    Place(root, name.older) = Json{{"description", absl::StrCat("Older spelling of ", name.today)},
                                   {"deprecated", true},
                                   {"anyOf", std::move(choices)}};
  }
  return root;
}

}  // namespace dtrain::plan
