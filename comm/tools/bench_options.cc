#include "comm/tools/bench_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "base/console/command_line.h"
#include "base/status.h"

namespace dtrain::comm {
namespace {

constexpr int kIterations = 20;
constexpr int kIterationsMin = 3;
// Sizes from here on have fewer iterations.
constexpr size_t kLargeBytes = size_t{16} << 20;
constexpr size_t kMiB = size_t{1} << 20;

const std::map<std::string, DType>& Types() {
  static const auto* const types = new std::map<std::string, DType>{
      {"float", DType::kFloat32},  {"fp32", DType::kFloat32},      {"half", DType::kFloat16},
      {"fp16", DType::kFloat16},   {"bfloat16", DType::kBFloat16}, {"bf16", DType::kBFloat16},
      {"double", DType::kFloat64}, {"fp64", DType::kFloat64},      {"int32", DType::kInt32},
      {"int64", DType::kInt64}};
  return *types;
}

const std::map<std::string, ReduceOp>& Ops() {
  static const auto* const ops = new std::map<std::string, ReduceOp>{{"sum", ReduceOp::kSum},
                                                                     {"avg", ReduceOp::kAverage},
                                                                     {"max", ReduceOp::kMax},
                                                                     {"min", ReduceOp::kMin}};
  return *ops;
}

template <typename Value>
std::vector<std::string> KeysOf(const std::map<std::string, Value>& map) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map) {
    keys.push_back(key);
  }
  return keys;
}

std::vector<std::string> CollectiveNames() {
  std::vector<std::string> names;
  for (const BenchKind kind : AllBenchKinds()) {
    names.emplace_back(BenchName(kind));
  }
  return names;
}

void AddWhatIsMeasured(CLI::App& app, BenchPlan& plan) {
  app.add_option("--ranks", plan.ranks, "Number of ranks, all on this machine")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--backend", plan.backends,
                 "Backends to measure, separated by commas. nccl and staged need a GPU")
      ->delimiter(',')
      ->type_name("NAMES")
      ->check(CLI::IsMember({"shm", "tcp", "shm+tcp", "rdma", "nccl", "staged"}))
      ->capture_default_str();
  app.add_option("--nodes", plan.nodes,
                 "With shm+tcp: divide the ranks into N pretended nodes, with TCP between them")
      ->check(CLI::Range(2, 32))
      ->capture_default_str();
  app.add_option("--collective", plan.collectives,
                 "Collectives to measure, separated by commas. Default: all")
      ->delimiter(',')
      ->type_name("NAMES")
      ->check(CLI::IsMember(CollectiveNames()));
  app.add_flag("--registered", plan.registered,
               "Use registered buffers, which other ranks reach without a copy, as the engine's "
               "are. Default: plain memory");
  app.add_option_function<std::string>(
         "--dtype,-d", [&plan](const std::string& name) { plan.dtype = Types().at(name); },
         "Type of the elements")
      ->type_name("TYPE")
      ->check(CLI::IsMember(KeysOf(Types())))
      ->default_str("float");
  app.add_option_function<std::string>(
         "--op,-o", [&plan](const std::string& name) { plan.op = Ops().at(name); },
         "Operation of the reductions")
      ->type_name("OP")
      ->check(CLI::IsMember(KeysOf(Ops())))
      ->default_str("sum");
  app.add_option("--root,-r", plan.root, "Root rank of broadcast")->capture_default_str();
}

void AddHowOften(CLI::App& app, BenchPlan& plan) {
  const auto add_size = [&app](const char* name, size_t& value, const char* text,
                               const char* default_text) {
    app.add_option(name, value, text)
        ->transform(CLI::AsSizeValue(false))
        ->option_text("BYTES")
        ->default_str(default_text);
  };
  add_size("--minbytes,-b", plan.min_bytes, "Smallest message, for example 8 or 64K", "8");
  add_size("--maxbytes,-e", plan.max_bytes, "Largest message, for example 64M", "1G");
  app.add_option("--stepfactor,-f", plan.factor, "Each size is this many times the one before")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  app.add_option("--iters,-n", plan.iterations,
                 "Measured calls of each size, whose median is shown. Default: 20, fewer above 16M")
      ->check(CLI::Range(1, 100000));
  app.add_option("--json", plan.json,
                 "Also write the results to FILE. Without a name, or with -, print them; the table "
                 "goes to standard error then. Default: no file")
      ->expected(0, 1)
      ->option_text("[FILE]")
      ->default_str("-");
}

// Bytes of both buffers of every rank, and about as much for the transport's own memory.
size_t BytesNeeded(const BenchPlan& plan, size_t bytes) {
  const bool on_device = std::all_of(plan.backends.begin(), plan.backends.end(), IsOfDevice);
  return static_cast<size_t>(plan.ranks) * ((on_device ? 2 : 3) * bytes + 64 * kMiB);
}

}  // namespace

const char* OpName(ReduceOp op) {
  for (const auto& [name, known] : Ops()) {
    if (known == op) {
      return name.c_str();
    }
  }
  return "unknown";
}

bool IsOfDevice(const std::string& backend) { return backend == "nccl" || backend == "staged"; }

bool BenchPlan::Wants(BenchKind kind) const {
  return collectives.empty() ||
         std::find(collectives.begin(), collectives.end(), BenchName(kind)) != collectives.end();
}

std::vector<size_t> BenchPlan::Sizes() const {
  std::vector<size_t> sizes;
  for (size_t bytes = min_bytes; bytes < max_bytes; bytes *= factor) {
    sizes.push_back(bytes);
  }
  sizes.push_back(max_bytes);
  return sizes;
}

int BenchPlan::IterationsFor(size_t bytes) const {
  const auto fewer = static_cast<int>(kIterations * kLargeBytes / std::max(bytes, kLargeBytes));
  return iterations != 0 ? iterations : std::max(kIterationsMin, fewer);
}

int BenchPlan::WarmUpsFor(size_t bytes) { return bytes > kLargeBytes ? 1 : 2; }

int ParseBenchOptions(int argc, char** argv, BenchPlan& plan) {
  CLI::App app(
      "Measures collectives between ranks of this machine and checks their results. The columns "
      "are those of nccl-tests. %limit compares busbw with a rate measured in the same run: how "
      "fast all ranks at once copy memory, or how fast one rank sends to another.",
      "dtrain bench comm");
  app.footer(
      "Examples:\n"
      "  dtrain bench comm --registered --collective all_reduce\n"
      "  dtrain bench comm --backend shm,tcp -e 64M --json results.json");
  AddWhatIsMeasured(app, plan);
  AddHowOften(app, plan);
  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  return -1;
}

absl::Status CheckPlan(const BenchPlan& plan) {
  const size_t width = DTypeBytes(plan.dtype);
  if (plan.min_bytes < width || plan.max_bytes < plan.min_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--minbytes is %d and --maxbytes %d; allowed: %d (one element) or more, and "
        "--maxbytes not below --minbytes",
        plan.min_bytes, plan.max_bytes, width));
  }
  if (plan.root < 0 || plan.root >= plan.ranks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--root is %d; with %d ranks, allowed: 0 to %d", plan.root, plan.ranks, plan.ranks - 1));
  }
  if (plan.op == ReduceOp::kAverage &&
      (plan.dtype == DType::kInt32 || plan.dtype == DType::kInt64)) {
    return absl::InvalidArgumentError(
        "--op avg does not work with integers; use --dtype float, half, bfloat16 or double");
  }
  for (const std::string& backend : plan.backends) {
    if (plan.ranks == 1 && !IsOfDevice(backend)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--backend %s needs --ranks 2 or more; only nccl and staged work with 1", backend));
    }
    if (backend == "shm+tcp" && plan.ranks <= plan.nodes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--backend shm+tcp needs more ranks than nodes, not %d ranks on %d nodes; use for "
          "example --ranks %d",
          plan.ranks, plan.nodes, 2 * plan.nodes));
    }
  }
  return absl::OkStatus();
}

absl::Status FitIntoMemory(const AvailableMemory& memory, BenchPlan& plan) {
  const auto available = static_cast<size_t>(memory.bytes());
  const std::vector<size_t> sizes = plan.Sizes();
  const auto fits = std::partition_point(sizes.begin(), sizes.end(), [&](size_t bytes) {
    return BytesNeeded(plan, bytes) <= available;
  });
  if (fits == sizes.begin()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d ranks with buffers of %d bytes need about %d bytes of memory, %d are available: use "
        "fewer --ranks or a smaller --minbytes",
        plan.ranks, sizes.front(), BytesNeeded(plan, sizes.front()), available));
  }
  if (fits != sizes.end()) {
    plan.max_bytes = *(fits - 1);
    plan.left_out_above = plan.max_bytes;
  }
  return absl::OkStatus();
}

}  // namespace dtrain::comm
