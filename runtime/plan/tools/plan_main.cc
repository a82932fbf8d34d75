// dtrain-plan: computes the memory that a training needs on each rank, before it is started.
// `dtrain plan ...` runs it.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/console/command_line.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/config.h"
#include "runtime/plan/layout/bucket_plan.h"
#include "runtime/plan/memory/memory_plan.h"

namespace dtrain::plan {
namespace {

constexpr int kStages = 4;

struct Arguments {
  std::string file;
  std::vector<std::string> overrides;
  int world_size = 1;
  std::string count;
  double parameters = 0;  // `count`, read; 0: not given.
  std::string gpu_memory;
  double reserve = 0.25;
  std::string dtype = "bf16";
};

std::string Size(double bytes) {
  return bytes >= 1e9 ? absl::StrFormat("%.2f GB", bytes * 1e-9)
                      : absl::StrFormat("%.1f MB", bytes * 1e-6);
}

std::string Count(double parameters) {
  return parameters >= 1e9 ? absl::StrFormat("%.4gB", parameters * 1e-9)
                           : absl::StrFormat("%.4gM", parameters * 1e-6);
}

PrecisionConfig::Kind KindOf(const std::string& dtype) {
  return dtype == "bf16"   ? PrecisionConfig::Kind::kBFloat16
         : dtype == "fp16" ? PrecisionConfig::Kind::kFloat16
                           : PrecisionConfig::Kind::kFloat32;
}

const char* PrecisionText(PrecisionConfig::Kind kind) {
  switch (kind) {
    case PrecisionConfig::Kind::kBFloat16:
      return "bf16 with fp32 masters";
    case PrecisionConfig::Kind::kFloat16:
      return "fp16 with fp32 masters";
    case PrecisionConfig::Kind::kFloat32:
      return "fp32";
  }
  return "";
}

void PrintPlan(const MemoryRequest& request) {
  const MemoryPlan plan = PlanMemory(request);
  const int world = static_cast<int>(request.world_size);
  std::printf("memory of each rank, with %d rank%s at ZeRO stage %d:\n", world,
              world == 1 ? "" : "s", request.zero_stage);
  const struct {
    const char* name;
    double bytes;
  } rows[] = {{"weights", plan.values},  {"gradients", plan.gradients},
              {"masters", plan.master},  {"moments", plan.moments},
              {"buckets", plan.buckets}, {"gathered", plan.live},
              {"FP8 codes", plan.codes}, {"activations", plan.activations},
              {"logits", plan.logits},   {"rounding", plan.rounding}};
  for (const auto& row : rows) {
    if (row.bytes > 0) {
      std::printf("  %-13s %12s\n", row.name, Size(row.bytes).c_str());
    }
  }
  std::printf("  %-13s %12s\n", "total", Size(plan.total()).c_str());
  const auto far = [](double bytes, const char* what) {
    if (bytes > 0) {
      std::printf("  %-13s %12s  (%s, outside the memory above)\n", "offloaded",
                  Size(bytes).c_str(), what);
    }
  };
  far(plan.offloaded, "optimizer states and fp32 masters");
  far(plan.far_activations, "activations");
  if (plan.host > 0) {
    std::printf("  %-13s %12s  (offloaded states and their buffers)\n", "host memory",
                Size(plan.host).c_str());
  }
  if (plan.replicas > 0) {
    std::printf("  %-13s %12s  (checkpoint.replicas, host memory outside the total)\n", "replicas",
                Size(plan.replicas).c_str());
  }
  if (plan.journal > 0) {
    std::printf("  %-13s %12s  (checkpoint.journal, host memory outside the total)\n", "journal",
                Size(plan.journal).c_str());
  }
}

// Bytes of weights, gradients, masters and moments a parameter when nothing is divided.
double BytesOfAParameter(MemoryRequest request) {
  request.zero_stage = 0;
  request.world_size = 1;
  request.offload_buffers = 0;
  return PlanMemory(request).states() / request.model.parameters;
}

// Prints a line for each stage and one for inference, then the smallest number of ranks.
void PrintWorlds(MemoryRequest request, double rank_bytes, double reserve) {
  std::printf("\nnumber of ranks needed if each has %s of memory (%g %% is added to the plan):\n",
              Size(rank_bytes).c_str(), reserve * 100);
  std::optional<int64_t> smallest;
  int smallest_stage = 0;
  const auto line = [&](const std::string& name) {
    const auto world = SmallestWorld(request, rank_bytes, reserve);
    if (!world.has_value()) {
      std::printf("  %-14s does not fit on any number of ranks\n", name.c_str());
      return;
    }
    if (request.training && (!smallest.has_value() || *world < *smallest)) {
      smallest = world;
      smallest_stage = request.zero_stage;
    }
    request.world_size = *world;
    std::printf("  %-14s %7d  (%s on each rank)\n", name.c_str(), static_cast<int>(*world),
                Size(PlanMemory(request).total()).c_str());
  };
  for (int stage = 0; stage < kStages; ++stage) {
    request.zero_stage = stage;
    line(absl::StrCat("ZeRO stage ", stage));
  }
  request.training = false;
  line("inference");
  if (smallest.has_value()) {
    std::printf("\nTraining needs at least %d rank%s, with zero_optimization.stage %d.\n",
                static_cast<int>(*smallest), *smallest == 1 ? "" : "s", smallest_stage);
  } else {
    std::printf(
        "\nTraining does not fit on any number of ranks. Use GPUs with more memory, smaller "
        "micro-batches, or zero_optimization.offload_optimizer.\n");
  }
}

// The example's "model" may name a config.json, or a folder that holds one. Keys of "model" itself
// win over those of that file.
absl::StatusOr<Json> ModelOf(const Config& config) {
  Json model = config.user("model");
  for (const char* const key : {"config", "pretrained"}) {
    const auto named = model.find(key);
    if (named == model.end() || !named->is_string()) {
      continue;
    }
    auto path = named->get<std::string>();
    if (std::filesystem::is_directory(path)) {
      path += "/config.json";
    }
    DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    DT_ASSIGN_OR_RETURN(Json shape, ParseJson(text, path));
    if (!shape.is_object()) {
      return absl::InvalidArgumentError(path +
                                        " does not hold a JSON object; give a model's config.json");
    }
    shape.update(model);
    return shape;
  }
  return model;
}

// Fills `request` from a configuration. --params replaces the model's shape. A model's own
// config.json may stand in the place of --params.
absl::Status ReadConfig(const Arguments& arguments, MemoryRequest& request) {
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(arguments.file));
  if (const auto json = ParseJson(text, arguments.file);
      json.ok() && json->is_object() && json->contains("model_type")) {
    if (!arguments.overrides.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--set cannot change %s, which is a model's config.json; write a run's "
                          "configuration with "
                          "\"model\": {\"config\": \"%s\"} instead",
                          arguments.file, arguments.file));
    }
    DT_ASSIGN_OR_RETURN(request.model, ModelShapeFrom(*json));
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const Config config,
                      Config::Load(arguments.file, arguments.overrides, arguments.world_size));
  if (arguments.parameters == 0) {
    DT_ASSIGN_OR_RETURN(const Json model, ModelOf(config));
    DT_ASSIGN_OR_RETURN(request.model, ModelShapeFrom(model));
    request.micro_batch = config.micro_batch();
    request.sequence_length = config.sequence_length();
  }
  ReadInto(config, request);
  const Json& device = *config.Find("device");
  request.states_on_host = device == "cuda" || (device == "auto" && !arguments.gpu_memory.empty());
  return absl::OkStatus();
}

// "80e9", "80B", "350M".
absl::StatusOr<double> ParseCount(absl::string_view text) {
  constexpr std::pair<char, double> kUnits[] = {{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}};
  absl::string_view digits = text;
  double unit = 1;
  for (const auto& [letter, size] : kUnits) {
    if (!text.empty() && absl::ascii_toupper(static_cast<unsigned char>(text.back())) == letter) {
      digits.remove_suffix(1);
      unit = size;
      break;
    }
  }
  double count = 0;
  if (!absl::SimpleAtod(digits, &count) || !(count * unit >= 1 && count * unit <= 1e15)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--params is \"%s\"; want a number from 1 to 1e15, for example 80e9, 80B or 350M", text));
  }
  return count * unit;
}

absl::Status Plan(Arguments arguments) {
  if (!arguments.count.empty()) {
    DT_ASSIGN_OR_RETURN(arguments.parameters, ParseCount(arguments.count));
  }
  if (arguments.file.empty() && arguments.parameters == 0) {
    return absl::InvalidArgumentError(
        "nothing to plan; give a configuration file, or --params N with --gpu-memory SIZE");
  }
  double rank_bytes = 0;
  if (!arguments.gpu_memory.empty()) {
    DT_ASSIGN_OR_RETURN(rank_bytes, ParseBytes(arguments.gpu_memory));
  }
  MemoryRequest request;
  request.world_size = arguments.world_size;
  request.model.parameters = arguments.parameters;
  request.precision = KindOf(arguments.dtype);
  request.bucket_elements = BucketOptions().bucket_elements;
  if (!arguments.file.empty()) {
    DT_RETURN_IF_ERROR(ReadConfig(arguments, request));
  }
  std::printf("%s parameters in %s: %.4g bytes each to train\n",
              Count(request.model.parameters).c_str(), PrecisionText(request.precision),
              BytesOfAParameter(request));
  if (!arguments.file.empty() || rank_bytes == 0) {
    PrintPlan(request);
  }
  if (rank_bytes > 0) {
    PrintWorlds(request, rank_bytes, arguments.reserve);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Shows how much memory a training needs on each rank and how many ranks it needs.",
               "dtrain plan");
  app.footer(
      "Examples:\n"
      "  dtrain plan run.json --world-size 8\n"
      "  dtrain plan run.json --gpu-memory 24GiB --set zero_optimization.stage=2\n"
      "  dtrain plan --params 80B --gpu-memory 80GB");
  Arguments arguments;
  app.add_option("FILE", arguments.file,
                 "Configuration file with the model under \"model\", or a model's config.json. "
                 "Default: none; give --params instead");
  app.add_option("--set", arguments.overrides,
                 "Change a value of the file. May be repeated. Default: no change")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--world-size", arguments.world_size, "Number of ranks")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--params", arguments.count,
                 "Number of parameters, for example 80e9, 80B or 350M. Default: counted from the "
                 "model in the file")
      ->option_text("N");
  app.add_option("--gpu-memory", arguments.gpu_memory,
                 "Memory of one rank, for example 80GB or 24GiB. Shows how many such ranks are "
                 "needed. Default: not shown")
      ->option_text("SIZE");
  app.add_option("--reserve", arguments.reserve,
                 "Extra memory for fragmentation and network buffers, as a share of the plan")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  app.add_option("--dtype", arguments.dtype, "Precision to assume without a configuration file")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  return EndOf("dtrain plan", Plan(arguments));
}

}  // namespace
}  // namespace dtrain::plan

int main(int argc, char** argv) { return dtrain::plan::Main(argc, argv); }
