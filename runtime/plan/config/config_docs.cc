#include "runtime/plan/config/config_docs.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/markdown.h"
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

constexpr const char* kIntroduction =
    R"(# Configuration

A run reads one JSON file. A key has DeepSpeed's name if DeepSpeed has the same setting. You must
give `train_batch_size` or `train_micro_batch_size_per_gpu`; you may leave out all other keys. This
is a small complete file for the example model:

```json
{
  "train_batch_size": 8,
  "train_steps": 300,
  "optimizer": {"params": {"lr": 3e-3}},
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 1},
  "data": {"train": ["data/train.bin"], "sequence_length": 256},
  "checkpoint": {"interval": 100},
  "model": {
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 256
  }
}
```

- `dtrain config check run.json --world-size 8` checks a file and prints every
  value that differs from its default.
- `--set optimizer.params.lr=1e-4` changes a value on the command line. The value is read as JSON;
  if it is not valid JSON, it is taken as text.
- `dtrain config schema > dtrain.schema.json` writes a JSON Schema, with which an editor completes
  and checks keys.
- `// comments` and `/* comments */` are allowed. `null` means that a key is not set. A whole
  number such as `5e8` is an integer. Bucket sizes count elements, not bytes.
- An unknown key is an error that names the nearest known key. A key that is given in an older and
  in today's spelling with different values is an error too.
- `"auto"` takes the value that the table says. In `optimizer.params`, `scheduler`,
  `zero_optimization`, `fp16`, `bf16`, `activation_checkpointing` and `aio`, and for every key
  without effect, it is allowed even where the table does not mention it, and takes the default.
  `dtrain config check` and the log name the value that each `"auto"` took.
- A key marked **R** must keep its value when a run is resumed. All others may change, and so may
  the number of ranks. Where `bf16.enabled` or `fp16.enabled` changes, so may the marked settings of
  that section ([another precision](CHECKPOINT_FORMAT.md#another-precision)). A program's option
  `--accept-change KEY`, which may be repeated, accepts another value of `optimizer.params.*`,
  `optimizer.no_weight_decay`, `optimizer.param_groups`, `engines`, `scheduler.*`,
  `gradient_clipping`, `gradient_clipping_value`, `train_batch_size`, `deterministic`,
  `data.document_token`, `data.document_token_place`, of `fp16`'s loss scale but for its first
  value, of `fp8.*`, `bf16.stochastic_rounding`, `zero_quantized_weights` and
  `zero_quantized_gradients`, of shares of dropout inside `model` and `finetune` (names that end
  with `dropout` or `pdrop`), or, for files that have moved, of `data.train` and `data.format`. KEY
  may be a section, such as `scheduler`, but not `model` or `finetune`. The error of any other key
  says why it must stay. Each change is recorded in `run.json` and in the manifests of later
  checkpoints. With another batch size the data goes on after the samples that the run has read;
  less than one batch may be left out.

`dtrain config docs` writes this page from the table in `runtime/plan/config/config_keys*.cc`.

)";

constexpr const char* kBatch =
    R"(`train_batch_size` = `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps`
x world size. Give one of the first two keys; dtrain computes the others. If you give only one of
the three, `gradient_accumulation_steps` is 1. If the numbers do not fit, the error shows all four
of them and the nearest sizes that fit.

)";

constexpr const char* kOptimizers =
    R"(| type | parameters and defaults | state per element | update rule |
|---|---|---|---|
| AdamW, Adam | lr 1e-3, betas [0.9, 0.999], eps 1e-8, weight_decay 0, bias_correction true | exp_avg, exp_avg_sq | torch.optim.AdamW; Adam with `adam_w_mode` false is torch.optim.Adam |
| SGD | lr 1e-3, momentum 0, dampening 0, nesterov false, weight_decay 0 | momentum_buffer, if momentum is above 0 | torch.optim.SGD |
| Lion | lr 1e-3, betas [0.9, 0.999], weight_decay 0 | exp_avg | the paper (arXiv 2302.06675) |
| Lamb | lr 1e-3, betas [0.9, 0.999], eps 1e-8, weight_decay 0, max_coeff 10, min_coeff 0.01, bias_correction true | exp_avg, exp_avg_sq | FusedLamb of DeepSpeed, with one trust ratio for each whole parameter |
| Adagrad | lr 1e-2, lr_decay 0, eps 1e-10, weight_decay 0, initial_accumulator_value 0 | sum | torch.optim.Adagrad |
| Muon | muon_lr 0.02, adam_lr 3e-4 (both take lr if it is given), momentum 0.95, weight_decay 0, betas [0.9, 0.95], eps 1e-10 | exp_avg, exp_avg_sq | Muon of DeepSpeed: Newton-Schulz in fp32 for matrices; AdamW for vectors and for parameters with embed or lm_head in their name |

A program may bring its own optimizer (`dtrain/optimizer.h`).

`optimizer.param_groups` gives some parameters their own settings. It is a list of
`{"params": [patterns], "lr": ..., "weight_decay": ..., "betas": ..., "eps": ...}`. A parameter
takes each setting from the first group that matches its name and has this setting. If there is no
such group, it takes the setting from `optimizer.no_weight_decay`, and then from `optimizer.params`.
Each pattern has to match a parameter of every engine in the program. In a program with several
engines, `"engine": "NAME"` restricts a group to the parameters of the engine with this name
(`EngineOptions::name`).

`engines` gives single engines of such a program their own settings, for example a GAN's two:
`{"generator": {"lr": 2e-4, "betas": [0.5, 0.999]}, "discriminator": {"gradient_clipping": 0}}`.
They hold before `EngineOptions::settings` of the program, which holds before `optimizer.params`,
`gradient_clipping` and `gradient_accumulation_steps`. An engine with a
`gradient_accumulation_steps` of its own takes that many micro-batches a step, whatever
`train_batch_size` is. Its `param_groups` come before `optimizer.param_groups`.

Schedules change the learning rate of a group too. WarmupCosineLR and WSD compute it from the
group's lr. The other schedules multiply their own rate by the group's lr and divide it by the
optimizer's lr.

)";

constexpr const char* kSchedules =
    R"(The formulas use these names:

- n counts the steps of the scheduler from 0. The scheduler steps after the optimizer, as in
  DeepSpeed: the first optimizer step uses the value before n = 0 (the minimum, or 0 for the
  cosine), the second one uses n = 0.
- N = max(2, `warmup_num_steps`). During warm-up (n < N), g = ln(n + 1) / ln(N) if `warmup_type` is
  log, and g = n / N if it is linear.
- min and max are `warmup_min_lr` and `warmup_max_lr` (OneCycle: `cycle_min_lr` and `cycle_max_lr`).
- r0, c and d are `warmup_min_ratio`, `cos_min_ratio` and `decay_min_ratio`.
- first, rate and size are `lr_range_test_min_lr`, `lr_range_test_step_rate` and
  `lr_range_test_step_size`; staircase is `lr_range_test_staircase`.
- total is `total_num_steps`, and lr is the optimizer's lr.

| type | during warm-up | afterwards |
|---|---|---|
| WarmupLR | min + g (max - min) | max |
| WarmupDecayLR | min + g (max - min) | min + q (max - min), q = max(0, (total - n) / max(1, total - N)) |
| WarmupCosineLR | lr (r0 + g (1 - r0)) | lr (c + (1 - c)(1 + cos(pi p)) / 2), p = min(1, (n - N + 1) / max(1, total - N)) |
| LRRangeTest | first (1 + rate (n + 1) / size); with staircase, (n + 1) / size is rounded down | the same |
| OneCycle | rises from min to max in `cycle_first_step_size` steps and falls back in `cycle_second_step_size`, in a straight line or in stairs | min / (1 + `decay_lr_rate` i), where i counts intervals of `decay_step_size` steps |
| WSD | lr (r0 + (1 - r0) (s + 1) / N), where s is the optimizer's step | lr; over the last `decay_num_steps` steps lr (d + (1 - d)(1 - sqrt(p))), where p rises from 0 to 1 |

)";

constexpr const char* kZero =
    R"(ZeRO divides the training state among the ranks, so that each rank needs less memory.
`dtrain plan` shows how much memory a configuration takes at each stage.

)";

constexpr const char* kProgram =
    R"(dtrain hands these objects to your program as they are.

)";

constexpr const char* kRefusedText =
    R"(dtrain does not support these settings. Training without them would give other results
or might not fit into memory, so a value other than the accepted ones is an error (exit code 64).

)";

constexpr const char* kIgnoredText =
    R"(dtrain accepts these keys and ignores them, because they only observe or tune DeepSpeed. A
value other than the default gives one note at the start of the run.

)";

constexpr const char* kOlderText =
    R"(dtrain accepts these older names of DeepSpeed and gives one note at the start of the run.

)";

struct Group {
  const char* heading;
  std::vector<absl::string_view> members;  // Keys, or sections with all that is below them.
  const char* prose = "";
};

const std::vector<Group>& Groups() {
  static const auto* const groups = new std::vector<Group>{
      {"Run",
       {"train_steps", "train_epochs", "eval_interval", "eval_batches", "seed", "deterministic",
        "device", "cuda_graphs", "module_buffers"}},
      {"Batch",
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"},
       kBatch},
      {"Data", {"data"}},
      {"Optimizer",
       {"optimizer", "engines", "gradient_clipping", "gradient_clipping_value"},
       kOptimizers},
      {"Learning rate", {"scheduler"}, kSchedules},
      {"Precision", {"bf16", "fp16", "fp8"}},
      {"ZeRO", {"zero_optimization"}, kZero},
      {"Offloading",
       {"zero_optimization.offload_optimizer", "zero_optimization.offload_param", "aio"}},
      {"Activation checkpointing", {"activation_checkpointing"}},
      {"Communication",
       {"comm", "communication_data_type", "prescale_gradients", "gradient_predivide_factor"}},
      {"Communication over RDMA", {"comm.rdma"}},
      {"Gradient compression", {"comm.compression"}},
      {"Checkpoints", {"checkpoint"}},
      {"Metrics", {"metrics"}},
      {"Sections for your program", {"model", "finetune", "sample", "origins"}, kProgram}};
  return *groups;
}

// The group whose member is the longest part of the path.
const Group* GroupOf(const ConfigKey& key) {
  const Group* best = nullptr;
  size_t longest = 0;
  for (const Group& group : Groups()) {
    for (const absl::string_view member : group.members) {
      const bool holds =
          key.path == member || absl::StartsWith(key.path, absl::StrCat(member, "."));
      if (holds && member.size() > longest) {
        best = &group;
        longest = member.size();
      }
    }
  }
  return best;
}

// Whether some values of a refused key are accepted, because dtrain has a part of its choices.
bool IsUsable(const ConfigKey& key) {
  return key.use == KeyUse::kUsed || (key.use == KeyUse::kRefused && Choices(key).size() > 1 &&
                                      Json::parse(key.accepted).size() > 1);
}

std::string DefaultText(const ConfigKey& key) {
  return absl::string_view(key.default_value) == "null" ? "not set"
                                                        : MarkdownCode(key.default_value);
}

std::string AllowedCell(const ConfigKey& key) {
  std::vector<std::string> choices = Choices(key);
  if (choices.empty()) {
    return MarkdownCell(AllowedText(key));
  }
  for (std::string& choice : choices) {
    choice = MarkdownCode(choice);
  }
  return absl::StrJoin(choices, ", ");
}

std::string AcceptedText(const ConfigKey& key) {
  std::vector<std::string> values;
  for (const Json& value : Json::parse(key.accepted)) {
    values.push_back(MarkdownCode(value.dump()));
  }
  return values.empty() ? "none" : absl::StrJoin(values, ", ");
}

template <typename Predicate>
std::string Rows(Predicate wanted, std::string (*row)(const ConfigKey&)) {
  std::string text;
  for (const ConfigKey& key : ConfigKeys()) {
    if (wanted(key)) {
      text += row(key);
    }
  }
  return text + "\n";
}

std::string UsableRow(const ConfigKey& key) {
  return absl::StrFormat("| `%s` | %s | %s | %s | %s |\n", key.path, AllowedCell(key),
                         DefaultText(key), (key.flags & kIdentity) != 0 ? "**R**" : "",
                         MarkdownCell(key.doc));
}

std::string RefusedRow(const ConfigKey& key) {
  return absl::StrFormat("| `%s` | %s | %s |\n", key.path, AcceptedText(key),
                         MarkdownCell(key.doc));
}

std::string IgnoredRow(const ConfigKey& key) {
  return absl::StrFormat("| `%s` | %s | %s |\n", key.path, DefaultText(key), MarkdownCell(key.doc));
}

std::string OlderNamesTable() {
  std::string text = "| older name | today's name |\n|---|---|\n";
  for (const OlderName& name : OlderNames()) {
    absl::StrAppend(&text, "| ", MarkdownCode(name.older), " | ", MarkdownCode(name.today), " |\n");
  }
  return text;
}

}  // namespace

std::string ConfigMarkdown() {
  std::string text = kIntroduction;
  for (const Group& group : Groups()) {
    absl::StrAppend(
        &text, "## ", group.heading, "\n\n", group.prose,
        "| key | allowed values | default | | meaning |\n|---|---|---|---|---|\n",
        Rows([&](const ConfigKey& key) { return IsUsable(key) && GroupOf(key) == &group; },
             UsableRow));
  }
  absl::StrAppend(
      &text, "## DeepSpeed keys that are refused\n\n", kRefusedText,
      "| key | accepted values | what to do instead |\n|---|---|---|\n",
      Rows([](const ConfigKey& key) { return key.use == KeyUse::kRefused && !IsUsable(key); },
           RefusedRow));
  absl::StrAppend(
      &text, "## DeepSpeed keys without effect\n\n", kIgnoredText,
      "| key | default | why it is not needed |\n|---|---|---|\n",
      Rows([](const ConfigKey& key) { return key.use == KeyUse::kIgnored; }, IgnoredRow));
  absl::StrAppend(&text, "## Older names\n\n", kOlderText, OlderNamesTable());
  return text;
}

}  // namespace dtrain::plan
