#include "runtime/plan/config_docs.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "runtime/plan/config_keys.h"

namespace dtrain::plan {
namespace {

constexpr const char* kIntroduction =
    R"(# Configuration

This page is made by `dtrain config docs` from the table in `runtime/plan/config_keys*.cc`; a test
fails when the two differ. `dtrain config schema` prints a JSON Schema for editors, and
`dtrain config check FILE --world-size N` prints the values in force.

A run reads one JSON file (`//` and `/* */` comments are allowed) with DeepSpeed's names and
meanings; keys that DeepSpeed does not have are dtrain's own. `--set a.b.c=value` overrides: the
value is JSON, else a string. `null` means absent. Sizes of buckets count elements, not bytes, and
`5e8` is an integer.

- An unknown key is an error that names the nearest known one.
- A key marked *refused* would change numbers or whether the job fits: any value but the supported
  ones ends with exit code 64.
- A key marked *no effect* only observes or tunes in DeepSpeed: another value than the default is
  noted once.
- `"auto"` is filled by the rule in the last column where that column states one, and is an error
  elsewhere.
- Keys marked **R** must be the same when a run is resumed (`train_steps`, intervals, metrics and
  comm may change, and so may the split of the batch over ranks).

## The batch

`train_batch_size` = `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps` x world size.
One of the first two must be given; what is absent follows, with an accumulation of 1 when only one
is given. Numbers that do not fit are an error that shows all four and the nearest sizes that do.

## Optimizers

| type | parameters | keeps of each element | rule |
|---|---|---|---|
| AdamW, Adam | lr 1e-3, betas [0.9, 0.999], eps 1e-8, weight_decay 0 | exp_avg, exp_avg_sq | torch.optim.AdamW's; Adam with `adam_w_mode` false: torch.optim.Adam's |
| SGD | lr 1e-3, momentum 0, dampening 0, nesterov false, weight_decay 0 | momentum_buffer, with momentum | torch.optim.SGD's |
| Lion | lr 1e-3, betas [0.9, 0.999], weight_decay 0 | exp_avg | the paper's (arXiv 2302.06675) |
| Lamb | lr 1e-3, betas [0.9, 0.999], eps 1e-8, weight_decay 0, max_coeff 10, min_coeff 0.01 | exp_avg, exp_avg_sq | DeepSpeed's FusedLamb; the trust ratio is of whole parameters |
| Adagrad | lr 1e-2, lr_decay 0, eps 1e-10, weight_decay 0, initial_accumulator_value 0 | sum | torch.optim.Adagrad's |
| Muon | muon_lr 0.02, adam_lr 3e-4 (both: lr, if given), momentum 0.95, weight_decay 0; betas [0.9, 0.95], eps 1e-10 | exp_avg, exp_avg_sq | DeepSpeed's: matrices by Newton-Schulz, in fp32; AdamW for vectors and what is called embed or lm_head |

A program may bring an optimizer of its own (`dtrain/optimizer.h`). In `optimizer.param_groups`,
a list of `{"params": [patterns], "lr": ..., "weight_decay": ..., "betas": ..., "eps": ...}`, each
parameter takes each setting from the first group that names it and gives that setting, then from
`no_weight_decay`, then from `optimizer.params`. Schedules that scale the optimizer's lr
(WarmupCosineLR, WSD, none) scale a group's lr alike; with those that state rates of their own a
group's lr counts as its ratio to the optimizer's.

## Learning rate

n counts the scheduler's steps from 0 and N = max(2, `warmup_num_steps`). The scheduler steps after
the optimizer: the first optimizer step uses the value from before n = 0 (the minimum; 0 for the
cosine), the second one n = 0. While n < N, g = ln(n + 1) / ln(N) with `warmup_type` "log" and
g = n / N with "linear".

| type | warm-up | afterwards |
|---|---|---|
| WarmupLR | min + g (max - min) | max |
| WarmupDecayLR | min + g (max - min) | min + d (max - min), d = max(0, (total - n) / max(1, total - N)) |
| WarmupCosineLR | lr (r0 + g (1 - r0)) | lr (c + (1 - c)(1 + cos(pi p)) / 2), p = min(1, (n - N + 1) / max(1, total - N)) |
| LRRangeTest | first (1 + rate (n + 1) / size), the quotient rounded down with staircase | |
| OneCycle | min to max in `cycle_first_step_size` steps, back in `cycle_second_step_size`, linear or in stairs | min / (1 + `decay_lr_rate` i), i intervals of `decay_step_size` steps |
| WSD | lr (r0 + (1 - r0) (s + 1) / N), s the optimizer's step | lr, then over the last `decay_num_steps` lr (d + (1 - d)(1 - sqrt(p))), d `decay_min_ratio` |

min, max: `warmup_min_lr`, `warmup_max_lr`; r0, c: `warmup_min_ratio`, `cos_min_ratio`; total:
`total_num_steps`; lr: the optimizer's.

)";

// The heading that a key stands under: its first part, when that is a section.
std::string Group(const ConfigKey& key) {
  const std::string path = key.path;
  const size_t dot = path.find('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string Cell(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"*", "\\*"}});
}

std::string Code(absl::string_view text) {
  return text.empty() ? "" : absl::StrCat("`", absl::StrReplaceAll(text, {{"|", "\\|"}}), "`");
}

std::string DefaultText(const ConfigKey& key) {
  return absl::string_view(key.default_value) == "null" ? "-" : Code(key.default_value);
}

std::string UseText(const ConfigKey& key) {
  switch (key.use) {
    case KeyUse::kUsed:
      return "";
    case KeyUse::kIgnored:
      return "*no effect.* ";
    case KeyUse::kRefused: {
      const Json accepted = Json::parse(key.accepted);
      std::string values;
      for (const Json& value : accepted) {
        absl::StrAppend(&values, values.empty() ? "" : ", ", Code(value.dump()));
      }
      return values.empty() ? "*refused.* " : absl::StrCat("*refused* but for ", values, ". ");
    }
  }
  return "";
}

void AppendTable(const std::string& group, std::string* text) {
  absl::StrAppend(text,
                  "| key | type | range | default | | meaning |\n|---|---|---|---|---|---|\n");
  for (const ConfigKey& key : ConfigKeys()) {
    if (Group(key) == group) {
      absl::StrAppendFormat(text, "| `%s` | %s | %s | %s | %s | %s%s |\n", key.path,
                            KeyTypeName(key.type), Code(key.range), DefaultText(key),
                            (key.flags & kIdentity) != 0 ? "**R**" : "", UseText(key),
                            Cell(key.doc));
    }
  }
}

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
      return Json{
          {"anyOf", Json::array({Json{{"type", "string"}},
                                 Json{{"type", "array"}, {"items", Json{{"type", "string"}}}}})}};
    case KeyType::kNumberPair:
      return Json{{"type", "array"},
                  {"items", NumberSchema(key, "number")},
                  {"minItems", 2},
                  {"maxItems", 2}};
    case KeyType::kIntegerList:
      return Json{{"type", "array"}, {"items", Json{{"type", "integer"}}}};
    case KeyType::kObjectList:
      return Json{{"type", "array"}, {"items", Json{{"type", "object"}}}};
    case KeyType::kFree:
      return Json{{"type", "object"}};
  }
  return Json::object();
}

Json KeySchema(const ConfigKey& key) {
  Json choices = Json::array({TypeSchema(key), Json{{"type", "null"}}});
  if ((key.flags & kAutoAllowed) != 0) {
    choices.push_back(Json{{"const", "auto"}});
  }
  return Json{{"description", key.doc},
              {"default", Json::parse(key.default_value)},
              {"anyOf", std::move(choices)}};
}

// Where the schema of `path` belongs below `root`; sections on the way are made.
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

std::string ConfigMarkdown() {
  std::string text = kIntroduction;
  std::vector<std::string> groups;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string group = Group(key);
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) {
      groups.push_back(group);
    }
  }
  for (const std::string& group : groups) {
    absl::StrAppend(&text, "## ", group.empty() ? "Top level" : absl::StrCat("`", group, "`"),
                    "\n\n");
    AppendTable(group, &text);
    absl::StrAppend(&text, "\n");
  }
  text.pop_back();
  return text;
}

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
