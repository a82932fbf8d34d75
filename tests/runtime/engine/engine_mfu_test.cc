// MFU in the records of a training: against the datasheet's peak where the GPU has one, else not at
// all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/status/statusor.h"
#include "base/console/progress_line.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_mfu_test {
namespace {

using testing::FakeGpu;
using ::testing::HasSubstr;
using testing::Net;
using ::testing::Not;

constexpr int kSteps = 4;
constexpr double kFlopsPerSample = 1e3;  // Few enough for a fraction below 1 on any machine.
constexpr int64_t kSamples = 24;         // In a step.

// The last step's record of rank 0. `gpu`: its name; null: the host.
absl::StatusOr<Json> LastRecord(const char* gpu_name, std::vector<std::string> settings) {
  at::set_num_threads(1);
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  const testing::TempFolder folder;
  settings.push_back("train_batch_size=1");
  DT_ASSIGN_OR_RETURN(auto job,
                      testing::MakeTestJob({.run_dir = folder.path(), .overrides = settings}));
  if (gpu_name != nullptr) {
    gpu.cuda.SetName(gpu_name);
    DT_RETURN_IF_ERROR(gpu.Attach(job->state(), /*staged=*/false, comm::GroupOptions{}));
    job->state().measure_products = [](const Config&) {
      ADD_FAILURE() << "the host's products do not matter to a GPU";
      return ProductRates{};
    };
  }
  {
    Net net;
    DT_ASSIGN_OR_RETURN(auto engine,
                        Engine::Create(*job, net, {.flops_per_sample = kFlopsPerSample}));
    testing::Source source{/*rank=*/0, /*size=*/1, /*accumulation=*/1};
    for (int step = 0; step < kSteps; ++step) {
      DT_ASSIGN_OR_RETURN(const StepReport report, engine->Step(source, [&](const at::Tensor& x) {
        return Loss(net.Loss(x), x.size(0));
      }));
      job->metrics().Log(report);
    }
    job->metrics().Flush();
  }
  job.reset();
  std::ifstream file(folder.path() + "/metrics/rank-0.jsonl");
  std::string last;
  for (std::string line; std::getline(file, line);) {
    last = line;
  }
  return ParseJson(last, "the last record");
}

Json Record(const char* gpu_name, std::vector<std::string> settings = {}) {
  const auto record = LastRecord(gpu_name, std::move(settings));
  EXPECT_TRUE(record.ok()) << record.status();
  return record.value_or(Json::object());
}

TEST(EngineMfuTest, AGpuOfTheTableHasMfuAgainstThePeakOfItsType) {
  const struct {
    std::vector<std::string> settings;
    double peak;
  } ways[] = {{{"bf16.enabled=false"}, 66.9e12},
              {{"bf16.enabled=true"}, 989.4e12},
              {{"fp16.enabled=true"}, 989.4e12},
              {{"bf16.enabled=true", "fp8.enabled=true"}, 1978.9e12}};
  for (const auto& [settings, peak] : ways) {
    SCOPED_TRACE(settings.back());
    const Json record = Record("NVIDIA H100 80GB HBM3", settings);
    const Json& metrics = record.at("m");
    const double seconds = metrics.at("time/step_s").get<double>();
    const double mfu = kFlopsPerSample * kSamples / seconds / peak;
    ASSERT_TRUE(metrics.contains("perf/mfu")) << record;
    EXPECT_NEAR(metrics.at("perf/mfu").get<double>(), mfu, 1e-3 * mfu);
    EXPECT_TRUE(metrics.contains("perf/gemm_fraction")) << "the other fraction stays in the record";
    EXPECT_THAT(FormatProgress(record, {}), HasSubstr("  MFU "));
    EXPECT_THAT(FormatProgress(record, {}), Not(HasSubstr("GEMM fraction")));
  }
}

TEST(EngineMfuTest, ACpuAndAnUnknownGpuHaveTheGemmFractionAlone) {
  for (const char* const gpu_name : {static_cast<const char*>(nullptr), "NVIDIA X9000"}) {
    SCOPED_TRACE(gpu_name == nullptr ? "cpu" : gpu_name);
    const Json record = Record(gpu_name);
    EXPECT_FALSE(record.at("m").contains("perf/mfu")) << record;
    EXPECT_TRUE(record.at("m").contains("perf/gemm_fraction")) << record;
    EXPECT_THAT(FormatProgress(record, {}), HasSubstr("GEMM fraction"));
  }
}

}  // namespace
}  // namespace dtrain::engine_mfu_test
