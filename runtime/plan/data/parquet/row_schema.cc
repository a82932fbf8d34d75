#include "runtime/plan/data/parquet/row_schema.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "runtime/plan/data/parquet/values.h"

namespace dtrain::plan::parquet {
namespace {

constexpr size_t kNamesShown = 12;
// A page of each column is in memory, so that a small file could ask for any amount of it.
constexpr size_t kColumnsMax = 256;

std::string NamesOf(const std::vector<SchemaNode>& nodes) {
  std::string names;
  for (size_t i = 0; i < std::min(nodes.size(), kNamesShown); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", nodes[i].name.substr(0, 40));
  }
  return nodes.size() > kNamesShown ? absl::StrCat(names, ", ...") : names;
}

bool HasChild(const SchemaNode& node, const std::string& name) {
  return std::any_of(node.children.begin(), node.children.end(),
                     [&](const SchemaNode& child) { return child.name == name; });
}

// Whether a table has enough of the wanted columns: those of a form, or any one.
bool HasWanted(const SchemaNode& root, const RowColumns& wanted) {
  const auto has = [&](const std::string& name) { return HasChild(root, name); };
  if (wanted.forms.empty()) {
    return std::any_of(wanted.columns.begin(), wanted.columns.end(),
                       [&](const RowColumn& column) { return has(column.name); });
  }
  return std::any_of(wanted.forms.begin(), wanted.forms.end(),
                     [&](const std::vector<std::string>& form) {
                       return std::all_of(form.begin(), form.end(), has);
                     });
}

// What a table may have, for people: "messages", nor "prompt" and "completion".
std::string WantedText(const RowColumns& wanted) {
  if (!wanted.forms.empty()) {
    return absl::StrJoin(wanted.forms, ", nor ",
                         [](std::string* text, const std::vector<std::string>& form) {
                           absl::StrAppend(text, "\"", absl::StrJoin(form, "\" and \""), "\"");
                         });
  }
  const auto quoted = [](std::string* text, const RowColumn& column) {
    absl::StrAppend(text, "\"", column.name, "\"");
  };
  return absl::StrCat(wanted.columns.size() > 1 ? "of the names " : "",
                      absl::StrJoin(wanted.columns, ", ", quoted));
}

// Whether the repeated node of a list is its element, and not a group around it: the rules for
// files of older writers, LogicalTypes.md of apache/parquet-format.
bool IsElement(const SchemaNode& list, const SchemaNode& repeated) {
  return repeated.children.size() != 1 || repeated.name == "array" ||
         repeated.name == list.name + "_tuple" ||
         repeated.children[0].repetition == Repetition::kRepeated;
}

bool IsWantedMember(const RowColumn& column, const std::string& name) {
  const auto has = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return column.members.empty() || has(column.members) || has(column.members_if_there);
}

class Selection {
 public:
  absl::Status Add(const SchemaNode& node, const RowColumn& wanted) {
    RowValue value;
    DT_RETURN_IF_ERROR(Convert(node, node.name, wanted, &value));
    schema_.members.push_back(std::move(value));
    return absl::OkStatus();
  }
  RowSchema Take() { return std::move(schema_); }

 private:
  absl::Status Convert(const SchemaNode& node, const std::string& path, const RowColumn& wanted,
                       RowValue* value) {
    value->columns_begin = schema_.columns.size();
    value->name = node.name;
    value->present = node.definition_max;
    if (node.repetition == Repetition::kRepeated) {
      value->present = node.definition_max - 1;  // It has no way to be null.
      DT_RETURN_IF_ERROR(ConvertList(node, node, path, wanted, value));
    } else if (node.meaning == Meaning::kList && node.children.size() == 1 &&
               node.children[0].repetition == Repetition::kRepeated) {
      const SchemaNode& repeated = node.children[0];
      const std::string below = absl::StrCat(path, ".", repeated.name);
      if (IsElement(node, repeated)) {
        DT_RETURN_IF_ERROR(ConvertList(repeated, repeated, below, wanted, value));
      } else {
        const SchemaNode& element = repeated.children[0];
        DT_RETURN_IF_ERROR(
            ConvertList(repeated, element, absl::StrCat(below, ".", element.name), wanted, value));
      }
    } else {
      DT_RETURN_IF_ERROR(ConvertSingle(node, path, wanted, value));
    }
    value->columns_end = schema_.columns.size();
    return absl::OkStatus();
  }

  absl::Status ConvertList(const SchemaNode& repeated, const SchemaNode& element,
                           const std::string& path, const RowColumn& wanted, RowValue* value) {
    value->kind = RowValue::Kind::kList;
    value->element = repeated.definition_max;
    value->repetition = repeated.repetition_max;
    RowValue child;
    if (&element != &repeated) {
      DT_RETURN_IF_ERROR(Convert(element, path, wanted, &child));
    } else {
      child.columns_begin = schema_.columns.size();
      child.present = repeated.definition_max;
      DT_RETURN_IF_ERROR(ConvertSingle(element, path, wanted, &child));
      child.columns_end = schema_.columns.size();
    }
    value->children.push_back(std::move(child));
    return absl::OkStatus();
  }

  // Converts a node that is no list.
  absl::Status ConvertSingle(const SchemaNode& node, const std::string& path,
                             const RowColumn& wanted, RowValue* value) {
    if (node.children.empty()) {
      return AddColumn(node, path);
    }
    value->kind = RowValue::Kind::kObject;
    for (const std::string& member : wanted.members) {
      if (!HasChild(node, member)) {
        return absl::InvalidArgumentError(
            absl::StrFormat("its column \"%s\" has no member \"%s\" (it has: %s)", path, member,
                            NamesOf(node.children)));
      }
    }
    for (const SchemaNode& member : node.children) {
      if (!IsWantedMember(wanted, member.name)) {
        continue;
      }
      RowValue child;
      DT_RETURN_IF_ERROR(Convert(member, absl::StrCat(path, ".", member.name), {}, &child));
      value->children.push_back(std::move(child));
    }
    return absl::OkStatus();
  }

  absl::Status AddColumn(const SchemaNode& node, const std::string& path) {
    const bool is_bytes = node.type == PhysicalType::kByteArray;
    if (node.type == PhysicalType::kInt96 || node.type == PhysicalType::kFixedLengthByteArray ||
        (is_bytes && node.meaning != Meaning::kText && node.meaning != Meaning::kNone)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("its column \"%s\" is of the type %s%s; want text, a number, a truth "
                          "value, or lists and structs of them",
                          path, TypeName(node.type), is_bytes ? " that is no text" : ""));
    }
    if (schema_.columns.size() == kColumnsMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the columns that are read hold more than %d columns in all, such as "
                          "\"%s\"; want text, or lists and structs of a few members",
                          kColumnsMax, path.substr(0, 80)));
    }
    schema_.columns.push_back(
        {node.column, path, node.type, node.definition_max, node.repetition_max});
    return absl::OkStatus();
  }

  RowSchema schema_;
};

}  // namespace

absl::StatusOr<RowSchema> SelectColumns(const SchemaNode& root, const RowColumns& wanted) {
  if (!HasWanted(root, wanted)) {
    return absl::InvalidArgumentError(absl::StrFormat("it has no column %s (it has: %s)%s",
                                                      WantedText(wanted), NamesOf(root.children),
                                                      wanted.advice));
  }
  Selection selection;
  std::vector<std::string> taken;
  for (const SchemaNode& node : root.children) {
    const auto want =
        std::find_if(wanted.columns.begin(), wanted.columns.end(),
                     [&](const RowColumn& column) { return column.name == node.name; });
    if (want == wanted.columns.end()) {
      continue;
    }
    if (std::find(taken.begin(), taken.end(), node.name) != taken.end()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("it has two columns \"%s\"", node.name.substr(0, 80)));
    }
    taken.push_back(node.name);
    DT_RETURN_IF_ERROR(selection.Add(node, *want));
  }
  return selection.Take();
}

}  // namespace dtrain::plan::parquet
