// The report of a comparison as text and as JSON.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/progress_line.h"
#include "checkpoint/tools/diff.h"
#include "checkpoint/tools/table.h"
#include "checkpoint/tools/tensor_values.h"

namespace dtrain::checkpoint {
namespace {

constexpr size_t kValueColumns = 40;  // Values of records are cut behind it.

std::string Number(uint64_t number) { return WithThousands(static_cast<int64_t>(number)); }

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// A value of a record for people; "-": there is none.
std::string ValueText(const Json& value) {
  std::string text = value.is_null()     ? "-"
                     : value.is_string() ? value.get<std::string>()
                                         : DumpJson(value);
  if (text.size() > kValueColumns) {
    text.resize(kValueColumns - 3);
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0U) == 0x80U) {
      text.pop_back();  // Rests of a character that was cut.
    }
    text += "...";
  }
  return text;
}

std::string NameText(const TensorDifference& tensor) {
  return tensor.rank < 0 ? tensor.name : absl::StrCat(tensor.name, " of rank ", tensor.rank);
}

const char* VerdictName(TensorVerdict verdict) {
  switch (verdict) {
    case TensorVerdict::kEqual:
      return "equal";
    case TensorVerdict::kWithin:
      return "within";
    case TensorVerdict::kValues:
      return "values";
    case TensorVerdict::kType:
      return "type";
    case TensorVerdict::kShape:
      return "shape";
    case TensorVerdict::kOnlyA:
      return "only_a";
    case TensorVerdict::kOnlyB:
      return "only_b";
    case TensorVerdict::kOtherLayout:
      return "other_layout";
  }
  return "";
}

std::string VerdictText(const TensorDifference& tensor) {
  switch (tensor.verdict) {
    case TensorVerdict::kEqual:
      return "equal";
    case TensorVerdict::kWithin:
      return "within the tolerance";
    case TensorVerdict::kValues:
      return "values differ";
    case TensorVerdict::kType:
      return absl::StrCat("type ", tensor.a.dtype, " in A, ", tensor.b.dtype, " in B");
    case TensorVerdict::kShape:
      return tensor.a.shape == tensor.b.shape
                 ? "other parts of the layout"
                 : absl::StrCat("shape ", ShapeText(tensor.a.shape), " in A, ",
                                ShapeText(tensor.b.shape), " in B");
    case TensorVerdict::kOnlyA:
      return "only in A";
    case TensorVerdict::kOnlyB:
      return "only in B";
    case TensorVerdict::kOtherLayout:
      return "not compared: another layout";
  }
  return "";
}

bool IsEqual(const TensorDifference& tensor) {
  return tensor.verdict == TensorVerdict::kEqual || tensor.verdict == TensorVerdict::kWithin;
}

std::string RecordsText(const DiffReport& report) {
  Table table({"record", "A", "B"});
  for (const RecordDifference& record : report.records) {
    table.Add({record.name, ValueText(record.a), ValueText(record.b)});
  }
  return table.has_rows() ? absl::StrCat("\nRecords that differ\n", table.Text({})) : "";
}

std::string TensorsText(const DiffReport& report, bool with_equal) {
  Table table({"difference", "largest", "elements that differ", "tensor"});
  for (const TensorDifference& tensor : report.tensors) {
    if (IsEqual(tensor) && !with_equal) {
      continue;
    }
    const bool compared = !tensor.a.xxh3_128.empty();
    table.Add({VerdictText(tensor),
               compared && tensor.largest > 0 ? absl::StrFormat("%.6g", tensor.largest) : "",
               compared && tensor.differing > 0
                   ? absl::StrCat(Number(tensor.differing), " of ", Number(tensor.elements))
                   : "",
               NameText(tensor)});
  }
  return table.has_rows() ? absl::StrCat(with_equal ? "\nTensors\n" : "\nTensors that differ\n",
                                         table.Text({1, 2}))
                          : "";
}

Json FactsJson(const TensorFacts& facts) {
  if (facts.dtype.empty()) {
    return nullptr;
  }
  return {{"dtype", facts.dtype},
          {"shape", facts.shape},
          {"xxh3_128", facts.xxh3_128.empty() ? Json(nullptr) : Json(facts.xxh3_128)}};
}

}  // namespace

std::string DiffText(const DiffReport& report, bool with_equal) {
  std::string text = absl::StrCat("A  ", report.path_a, "\nB  ", report.path_b, "\n",
                                  RecordsText(report), TensorsText(report, with_equal));
  const size_t all = report.tensors.size();
  const size_t equal = report.equal_tensors();
  if (report.equal()) {
    absl::StrAppend(
        &text, "\nNothing differs: the records are equal, and so ",
        all == 1 ? "is the one tensor.\n" : absl::StrCat("are all ", Number(all), " tensors.\n"));
  } else {
    absl::StrAppend(&text, "\n", equal == all ? "All " : absl::StrCat(Number(equal), " of "),
                    Number(all), " tensors are equal; ", report.records.size(),
                    report.records.size() == 1 ? " record differs.\n" : " records differ.\n");
  }
  return text;
}

Json DiffJson(const DiffReport& report) {
  Json json = {{"a", report.path_a},
               {"b", report.path_b},
               {"equal", report.equal()},
               {"tensors_equal", report.equal_tensors() == report.tensors.size()}};
  json["records"] = Json::array();
  for (const RecordDifference& record : report.records) {
    json["records"].push_back({{"name", record.name}, {"a", record.a}, {"b", record.b}});
  }
  json["tensors"] = Json::array();
  for (const TensorDifference& tensor : report.tensors) {
    const bool compared = !tensor.a.xxh3_128.empty();
    json["tensors"].push_back(
        {{"name", tensor.name},
         {"part", tensor.of_model ? "model" : "state"},
         {"rank", tensor.rank < 0 ? Json(nullptr) : Json(tensor.rank)},
         {"difference", VerdictName(tensor.verdict)},
         {"a", FactsJson(tensor.a)},
         {"b", FactsJson(tensor.b)},
         {"elements", compared ? Json(tensor.elements) : Json(nullptr)},
         {"elements_that_differ", compared ? Json(tensor.differing) : Json(nullptr)},
         {"largest_difference", compared ? Json(tensor.largest) : Json(nullptr)}});
  }
  return json;
}

}  // namespace dtrain::checkpoint
