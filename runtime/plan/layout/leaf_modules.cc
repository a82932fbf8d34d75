#include "runtime/plan/layout/leaf_modules.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "dtrain/optimizer_config.h"

namespace dtrain::plan {
namespace {

absl::string_view BehindLast(absl::string_view text, absl::string_view mark) {
  const size_t at = text.rfind(mark);
  return at == absl::string_view::npos ? text : text.substr(at + mark.size());
}

bool IsOfClass(const ModuleFacts& module, absl::string_view wanted) {
  const absl::string_view type = absl::StripSuffix(module.type, "Impl");
  if (absl::StrContains(wanted, "::")) {
    return type == absl::StripSuffix(wanted, "Impl");
  }
  return BehindLast(type, "::") == absl::StripSuffix(BehindLast(wanted, "."), "Impl");
}

// One kind of value of the key, and the modules that it fits.
struct Kind {
  const char* key;
  const char* fits_no;
  std::function<bool(const ModuleFacts&, absl::string_view)> fits;
  std::function<std::string(const ModuleFacts&)>
      text;  // Gives the text that a value is compared with.
};

absl::Status FitsNone(const Kind& kind, const std::string& value,
                      absl::Span<const ModuleFacts> modules) {
  std::vector<std::string> texts;
  for (const ModuleFacts& module : modules) {
    if (std::string text = kind.text(module);
        !text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end()) {
      texts.push_back(std::move(text));
    }
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "zero_optimization.leaf_module.%s: \"%s\" is %s of the model that has parameters; nearest: "
      "%s; remove it, or name one that is",
      kind.key, value, kind.fits_no, absl::StrJoin(NearestNames(value, texts), ", ")));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindLeafModules(absl::Span<const ModuleFacts> modules,
                                                         const LeafModuleConfig& wanted) {
  const auto name_of = [](const ModuleFacts& module) { return module.name; };
  const auto type_of = [](const ModuleFacts& module) { return module.type; };
  const Kind classes{"classes", "the class of no module", IsOfClass, type_of};
  const Kind names{
      "names", "the name of no module",
      [](const ModuleFacts& module, absl::string_view value) { return module.name == value; },
      name_of};
  const Kind suffixes{"name_suffixes", "the end of the name of no module",
                      [](const ModuleFacts& module, absl::string_view value) {
                        return absl::EndsWith(module.name, value);
                      },
                      name_of};
  std::vector<bool> is_leaf(modules.size(), false);
  const auto mark = [&](const Kind& kind, const std::vector<std::string>& values,
                        const std::vector<std::string>& may_fit_none) -> absl::Status {
    for (const std::string& value : values) {
      bool found = false;
      for (size_t i = 0; i < modules.size(); ++i) {
        if (kind.fits(modules[i], value)) {
          is_leaf[i] = found = true;
        }
      }
      if (!found &&
          std::find(may_fit_none.begin(), may_fit_none.end(), value) == may_fit_none.end()) {
        return FitsNone(kind, value, modules);
      }
    }
    return absl::OkStatus();
  };
  DT_RETURN_IF_ERROR(mark(classes, wanted.classes, wanted.default_classes));
  DT_RETURN_IF_ERROR(mark(names, wanted.names, {}));
  DT_RETURN_IF_ERROR(mark(suffixes, wanted.name_suffixes, {}));
  std::vector<std::string> leaves;
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string& name = modules[i].first_name;
    if (is_leaf[i] && std::find(leaves.begin(), leaves.end(), name) == leaves.end()) {
      leaves.push_back(name);
    }
  }
  return leaves;
}

}  // namespace dtrain::plan
