#include "runtime/plan/config/reference_docs.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/markdown.h"
#include "runtime/plan/config/environment_table.h"
#include "runtime/plan/config/metric_table.h"

namespace dtrain::plan {
namespace {

constexpr const char* kMetricsIntroduction =
    R"(# Metrics

Rank R writes its metrics into `metrics/rank-R.jsonl` in the run directory. Every line is one JSON
object. This example is shown on two lines:

```json
{"v": 1, "ts": 1763.5, "run": "r", "attempt": 0, "rank": 0, "node": "n1", "kind": "step",
 "step": 12, "samples": 384, "m": {"train/loss": 2.31, "time/step_s": 0.25}}
```

| field | meaning |
|---|---|
| `v` | Version of the format, which is 1. |
| `ts` | Time at which the line was written, in seconds since 1970. |
| `run`, `attempt`, `rank`, `node` | Name of the run, number of restarts so far, number of the rank, and name of its node. |
| `kind` | `step`, `eval`, `ckpt`, `event` (something that happened once) or `config` (the start of the run). |
| `step`, `samples` | Number of optimizer steps done, and number of samples that they read on all ranks together. |
| `m` | Metrics. A number that is not finite is written as the text "NaN", "Infinity" or "-Infinity". |

`dtrain launch` writes all metrics of rank 0 to TensorBoard under the same names, unless
`metrics.tensorboard` is false. A program adds its own metrics with
`job.metrics().Log("eval/accuracy", value)`. A metric whose name starts with `eval/` is
written to a line of kind `eval`, any other metric to a line of kind `step`. `metrics.console`
chooses the metrics in the progress line, your own included.

)";

constexpr const char* kEnvironmentIntroduction =
    R"(# Environment variables

`dtrain env` prints the variables that say which rank a process is. The settings of a training are
not environment variables; they are in the [configuration](CONFIG.md).

)";

constexpr struct {
  VariableGroup group;
  const char* text;
} kGroups[] = {
    {VariableGroup::kUser, "## Variables that you may set\n\n"},
    {VariableGroup::kRank,
     "## Variables that launchers set\n\nThese variables tell a program which rank it is. `dtrain "
     "launch` and torchrun set RANK and the\nvariables below it. Those that start with OMPI, PMI, "
     "MPI or SLURM come from Open MPI, MPICH or\nSlurm, those that start with LWS or JOB from "
     "Kubernetes. Set them by hand only if you start\nranks without a launcher.\n\n"},
    {VariableGroup::kLibrary,
     "## Variables that dtrain sets for other libraries\n\nThe default is the value that dtrain "
     "sets.\n\n"},
    {VariableGroup::kDeveloper, "## Variables for building, testing and measuring dtrain\n\n"},
};

// The last line of a page says how to change it.
std::string Source(const char* page, const char* table) {
  return absl::StrFormat(
      "\n`dtrain config docs %s` writes this page from `runtime/plan/config/%s.cc`.\n", page,
      table);
}

}  // namespace

std::string MetricsMarkdown() {
  std::string text = kMetricsIntroduction;
  absl::StrAppend(&text, "| metric | unit | meaning | ranks | written | also shown in |\n",
                  "|---|---|---|---|---|---|\n");
  for (const MetricName& metric : MetricNames()) {
    absl::StrAppendFormat(&text, "| `%s` | %s | %s | %s | %s | %s |\n", metric.name, metric.unit,
                          MarkdownCell(metric.meaning), metric.ranks, MarkdownCell(metric.when),
                          metric.shown);
  }
  return text + Source("metrics", "metric_table");
}

std::string EnvironmentMarkdown() {
  std::string text = kEnvironmentIntroduction;
  for (const auto& [group, heading] : kGroups) {
    absl::StrAppend(&text, group == VariableGroup::kUser ? "" : "\n", heading,
                    "| variable | used by | values | default | meaning |\n",
                    "|---|---|---|---|---|\n");
    for (const EnvironmentVariable& variable : EnvironmentVariables()) {
      if (variable.group == group) {
        absl::StrAppendFormat(&text, "| `%s` | %s | %s | %s | %s |\n", variable.name,
                              MarkdownCell(variable.user), MarkdownCell(variable.allowed),
                              MarkdownCell(variable.default_value), MarkdownCell(variable.meaning));
      }
    }
  }
  return text + Source("environment", "environment_table");
}

}  // namespace dtrain::plan
