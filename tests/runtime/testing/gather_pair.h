// Two ranks whose weights are gathered behind the step, of which one may be late: for tests of
// zero_optimization.overlap_param_gather.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/job/job_state.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/testing/cluster.h"
#include "tests/testing/passing_group.h"

namespace dtrain::testing {

inline constexpr char kOverlap[] = "zero_optimization.overlap_param_gather=true";

inline ChainWay Overlapping(ChainWay way) {
  way.more.emplace_back(kOverlap);
  return way;
}

// SGD with a hook before each part.
class Hooked final : public Optimizer {
 public:
  using Hook = std::function<void(const ParameterPart& part)>;
  explicit Hooked(Hook hook) : hook_(std::move(hook)) {}
  std::string name() const override { return "Hooked"; }
  std::vector<std::string> states() const override { return {}; }
  void Update(const ParameterPart& part) const override {
    hook_(part);
    for (size_t i = 0; i < part.weights.size(); ++i) {
      part.weights[i] -= 0.01F * part.gradient[i];
    }
  }

 private:
  const Hook hook_;
};

// What is called before a rank's part of an update reaches the others.
using Late = std::function<void(int64_t update, const std::string& name)>;

// Calls it before each gather of a bucket's gradients: at stage 0 a program has no other place.
class LateGathers final : public PassingGroup {
 public:
  LateGathers(std::unique_ptr<comm::Group> under, Late late)
      : PassingGroup(*under), owned_(std::move(under)), late_(std::move(late)) {}
  void SetStep(int64_t step) override {
    step_ = step;
    PassingGroup::SetStep(step);
  }
  absl::StatusOr<comm::Work> AllGather(comm::Buffer input, comm::Buffer output,
                                       const comm::CollectiveOptions& options) override {
    if (absl::StartsWith(options.name, "gradients of bucket")) {
      late_(step_, options.name);
    }
    return PassingGroup::AllGather(input, output, options);
  }

 private:
  const std::unique_ptr<comm::Group> owned_;
  const Late late_;
  int64_t step_ = 0;
};

// Two ranks, of which rank 1 may do something in the middle of its update; the job's own folder.
struct Pair {
  TempFolder folder;
  std::unique_ptr<Job> job;
  Chain model = [] {
    at::manual_seed(3);
    return Chain();
  }();
  std::unique_ptr<Engine> engine;
  Tokens source;

  absl::Status Make(RankContext& context, const ChainWay& way, const Late& of_rank_one) {
    at::set_num_threads(1);
    DT_ASSIGN_OR_RETURN(job, MakeChainJob(&context, folder.path(), Overlapping(way)));
    source = {.rank = context.rank, .size = context.size};
    const Late late = context.rank == 1 ? of_rank_one : [](int64_t, const std::string&) {};
    EngineOptions options;
    if (way.stage == 0) {
      std::unique_ptr<comm::Group>& group = job->state().group;
      group = std::make_unique<LateGathers>(std::move(group), late);
    } else {
      options.optimizer = std::make_shared<Hooked>(
          [late](const ParameterPart& part) { late(part.update, std::string(part.name)); });
    }
    DT_ASSIGN_OR_RETURN(engine, Engine::Create(*job, model, std::move(options)));
    return absl::OkStatus();
  }
  absl::StatusOr<StepReport> Step(const std::function<void()>& at_forward = [] {}) {
    return engine->Step(source, [&](const at::Tensor& tokens) {
      at_forward();
      return Loss(model.Loss(tokens), tokens.size(0));
    });
  }
  // The names of gathers of the last step that this rank has called, in order; those alone that go
  // on.
  std::vector<std::string> Gathers(bool pending) const {
    std::vector<std::string> names;
    const auto record = ParseJson(job->group().FlightRecord(), "flight record");
    for (const Json& entry : record->at("entries")) {
      const Json& ours = entry.at("dtrain");
      const auto name = ours.at("name").get<std::string>();
      if ((absl::StartsWith(name, "values of bucket") ||
           absl::StartsWith(name, "gradients of bucket")) &&
          ours.at("step") == engine->step() && !(pending && entry.at("retired") == true)) {
        names.push_back(name);
      }
    }
    return names;
  }
  // Whether a bucket before the last that is gathered is not.
  bool GathersSkipSome() const {
    const std::vector<std::string> names = Gathers(/*pending=*/false);
    for (size_t bucket = 0; bucket < names.size(); ++bucket) {
      const std::string prefix = absl::StrCat("gradients of bucket ", bucket, " ");
      if (std::none_of(names.begin(), names.end(),
                       [&](const std::string& name) { return absl::StartsWith(name, prefix); })) {
        return true;
      }
    }
    return false;
  }
};

// Waits for rank 0 to announce it.
inline void Await(RankContext& context, const std::string& key) {
  context.store->Get("announce/" + key, Deadline::After(absl::Seconds(40))).IgnoreError();
}

using RankNumbers = std::function<absl::Status(RankContext&, std::vector<double>&)>;

// What rank 0 puts into its list; empty when a rank failed.
inline std::vector<double> NumbersOf(int size, const RankNumbers& body) {
  auto cluster = Cluster::Start({.size = size}, [&](RankContext& context) -> absl::Status {
    std::vector<double> numbers;
    DT_RETURN_IF_ERROR(body(context, numbers));
    return context.store->Set("numbers/" + std::to_string(context.rank), DumpJson(Json(numbers)),
                              Deadline::After(absl::Seconds(10)));
  });
  const auto text = (*cluster)->store().Get("numbers/0", Deadline::After(absl::Seconds(50)));
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return ParseJson(text.value_or("[]"), "numbers")->get<std::vector<double>>();
}

}  // namespace dtrain::testing
