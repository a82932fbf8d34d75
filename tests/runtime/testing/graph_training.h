// Trains device_net.h's model on the fake GPU with or without CUDA graphs: what tests of them
// compare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/device_net.h"

namespace dtrain::testing {

constexpr int kGraphSteps = 8;

struct GraphWay {
  std::vector<std::string> settings = {};
  int64_t accumulation = 1;
  // Rows of the batch of a step: the shape.
  std::function<int64_t(int64_t call)> rows = [](int64_t /*call*/) { return 12; };
  // In place of Net::Loss.
  std::function<at::Tensor(Net&, const at::Tensor&)> loss = [](Net& net, const at::Tensor& x) {
    return net.Loss(x);
  };
  std::function<double(int64_t step)> lr_factor = {};  // EngineOptions::lr_factor.
  int64_t failing_call = -1;                           // This call of the data source fails, once.
  bool evaluates = false;                              // After each step.
  bool fused = false;          // dtrain's operations take the fake's kernels.
  bool layers = false;         // The model has Net::layers and Net::frozen.
  int64_t infinite_call = -1;  // The batch of this call is not finite.
  // The program's own work before a batch, and after a step.
  std::function<void(Net&, int64_t call)> before_batch = [](Net& /*net*/, int64_t /*call*/) {};
  std::function<void(Net&, Engine&)> after_step = [](Net& /*net*/, Engine& /*engine*/) {};
  absl::Status no_graphs = absl::OkStatus();  // An error: the device's reason to make no graphs.
  bool fits_one_pass = false;                 // FakePool::fits_one_pass.
};

struct GraphOutcome {
  std::vector<double> numbers;  // Losses, norms, evaluations, weights and buffers.
  std::vector<int64_t> operations;
  // In each step: how many kernels that the device ran made FP8 codes of a weight of Net::layers.
  std::vector<int> code_kernels;
  int closure_calls = 0;
  int graph_launches = 0;
  int waits_inside_graphs = 0;
  int waits = 0;  // After the second step.
  std::string log;
};

// To the bit the same with graphs as without, where these are right.
GraphOutcome OutcomeOf(const GraphWay& way, bool graphs);

// How often `part` stands in `text`.
size_t Times(const std::string& text, const std::string& part);

// Some micro-batch cannot be captured: one line with the reason, and the numbers of eager steps.
void ExpectEager(const GraphWay& way, const std::string& reason);

}  // namespace dtrain::testing
