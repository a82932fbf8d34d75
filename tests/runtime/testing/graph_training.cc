#include "tests/runtime/testing/graph_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/record_function.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "runtime/ops/device_kernels.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/fake_op_kernels.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Operations of LibTorch that this thread calls itself, and of what is queued beside them.
class HostOperations {
 public:
  explicit HostOperations(const comm::FakeCuda& cuda) : cuda_(cuda), before_(cuda.queued()) {
    Count() = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& /*function*/) -> std::unique_ptr<at::ObserverContext> {
          ++Count();
          return nullptr;
        }));
  }
  ~HostOperations() { at::removeCallback(handle_); }
  int64_t count() const { return Count() + cuda_.queued() - before_; }

 private:
  static int64_t& Count() {
    static int64_t count = 0;
    return count;
  }
  const comm::FakeCuda& cuda_;
  const int64_t before_;
  at::CallbackHandle handle_;
};

// Kernels that make FP8 codes of what lies at `weights`, counted when the device runs them, in
// launches of graphs too.
struct CodeKernels {
  static const kernels::CudaKernelTable* Table(comm::FakeCuda* cuda) {
    fakes = FakeKernelTable(cuda);
    static kernels::CudaKernelTable table;
    table = *fakes;
    table.cast_to_fp8 = [](const kernels::CastToFp8Args& args, const float* scale,
                           CudaStream stream) {
      DT_RETURN_IF_ERROR(Count(args.src.data, stream));
      return fakes->cast_to_fp8(args, scale, stream);
    };
    table.transpose_to_fp8 = [](const kernels::TransposeToFp8Args& args, const float* scale,
                                CudaStream stream) {
      DT_RETURN_IF_ERROR(Count(args.src.data, stream));
      return fakes->transpose_to_fp8(args, scale, stream);
    };
    table.rows_to_fp8 = [](const kernels::RowsToFp8Args& args, CudaStream stream) {
      DT_RETURN_IF_ERROR(Count(args.src.data, stream));
      return fakes->rows_to_fp8(args, stream);
    };
    return &table;
  }
  static absl::Status Count(const void* src, CudaStream stream) {
    return weights.count(src) == 0 ? absl::OkStatus() : QueueFakeKernel(stream, [] { ++run; });
  }
  static inline const kernels::CudaKernelTable* fakes = nullptr;
  static inline std::set<const void*> weights;
  static inline int run = 0;
};

struct RowsOfWay {
  const GraphWay& way;
  Net& net;
  int64_t call = 0;
  bool failed = false;
  absl::StatusOr<at::Tensor> Next() {
    if (call == way.failing_call && !failed) {
      failed = true;
      return absl::UnavailableError("no data, on purpose");
    }
    way.before_batch(net, call);
    const int64_t rows = way.rows(call);
    const double factor = call == way.infinite_call ? INFINITY : 1;
    ++call;
    return Rows(call, 0, rows) * factor;
  }
};

double FiniteOr(double number, double otherwise) {  // A NaN equals none.
  return std::isfinite(number) ? number : otherwise;
}

void Append(const at::Tensor& tensor, std::vector<double>& to) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous().view({-1});
  to.insert(to.end(), flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
}

absl::Status Train(const GraphWay& way, bool graphs, GraphOutcome& outcome) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  gpu.graphs = way.no_graphs;
  gpu.pool.fits_one_pass = way.fits_one_pass;
  const TempFolder folder;
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      "zero_optimization.reduce_bucket_size=2500",
      "gradient_clipping=0.05",
      "eval_batches=1",
      R"(optimizer={"type":"AdamW","params":{"lr":0.01,"weight_decay":0.1}})",
      absl::StrCat("cuda_graphs=", graphs ? "true" : "false")};
  overrides.insert(overrides.end(), way.settings.begin(), way.settings.end());
  DT_ASSIGN_OR_RETURN(auto job, MakeTestJob({.run_dir = folder.path(), .overrides = overrides}));
  DT_RETURN_IF_ERROR(gpu.Attach(job->state(), /*staged=*/false, comm::GroupOptions{}));
  if (way.fused) {
    ops::SetGpuForTesting(CodeKernels::Table(&gpu.cuda),
                          Device::KernelStream(gpu.cuda.host_stream()), &gpu.cuda);
  }
  const absl::Cleanup not_fused = [] { ops::SetGpuForTesting(nullptr, nullptr); };
  at::manual_seed(5);
  auto owned_net = std::make_unique<Net>(/*segments=*/way.layers);
  Net& net = *owned_net;
  if (way.layers) {
    net.AddFrozen();
  }
  EngineOptions options;
  options.lr_factor = way.lr_factor;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net, options));
  CodeKernels::weights.clear();
  for (const at::Tensor& layer : net.layers) {
    CodeKernels::weights.insert(layer.const_data_ptr());
  }
  RowsOfWay source{.way = way, .net = net};
  RowsOfWay held_out{.way = way, .net = net, .failed = true};
  const auto loss = [&](const at::Tensor& x) {
    ++outcome.closure_calls;
    return Loss(way.loss(net, x), x.size(0));
  };
  std::vector<StepReport> reports;
  int failures = 0;
  while (engine->step() < kGraphSteps) {
    const int waits = gpu.cuda.synchronizations();
    HostOperations operations(gpu.cuda);
    CodeKernels::run = 0;
    auto report = engine->Step(source, loss);
    outcome.operations.push_back(operations.count());
    outcome.code_kernels.push_back(CodeKernels::run);
    if (!report.ok() && source.failed && failures++ == 0) {
      continue;
    }
    DT_RETURN_IF_ERROR(report.status());
    outcome.waits += engine->step() > 2 ? gpu.cuda.synchronizations() - waits : 0;
    reports.push_back(*std::move(report));
    way.after_step(net, *engine);
    if (way.evaluates) {
      DT_ASSIGN_OR_RETURN(const double value, engine->Evaluate(held_out, loss));
      outcome.numbers.push_back(FiniteOr(value, -1));
    }
  }
  for (const StepReport& report : reports) {
    for (const double number : {double{report.loss}, double{report.grad_norm}}) {
      outcome.numbers.push_back(FiniteOr(number, -1));
    }
  }
  DT_RETURN_IF_ERROR(engine->WithParameters([&] {  // At stage 3 weights are elsewhere.
    for (const at::Tensor& tensor : {net.a, net.b, net.c, net.unused, net.mean}) {
      Append(tensor, outcome.numbers);
    }
  }));
  outcome.graph_launches = gpu.cuda.graph_launches();
  outcome.waits_inside_graphs = gpu.cuda.waits_inside_graphs();
  engine.reset();
  owned_net.reset();  // Its weights are the engine's memory.
  job.reset();
  EXPECT_THAT(gpu.cuda.violations(), IsEmpty());
  EXPECT_EQ(gpu.cuda.live_handles(), 0);
  return absl::OkStatus();
}

}  // namespace

GraphOutcome OutcomeOf(const GraphWay& way, bool graphs) {
  at::set_num_threads(1);
  GraphOutcome outcome;
  ::testing::internal::CaptureStderr();
  const absl::Status trained = Train(way, graphs, outcome);
  outcome.log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(trained.ok()) << trained;
  return outcome;
}

size_t Times(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++times;
  }
  return times;
}

void ExpectEager(const GraphWay& way, const std::string& reason) {
  const GraphOutcome graphs = OutcomeOf(way, true);
  EXPECT_EQ(graphs.numbers, OutcomeOf(way, false).numbers) << reason;
  EXPECT_EQ(Times(graphs.log, "run eagerly"), 1) << graphs.log;
  EXPECT_THAT(graphs.log, HasSubstr(reason));
}

}  // namespace dtrain::testing
