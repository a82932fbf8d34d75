// The members of a Job; private to runtime/job.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/agent_channel.h"
#include "base/job_env.h"
#include "comm/flight_dumper.h"
#include "comm/group.h"
#include "comm/nccl/device_group.h"
#include "comm/net/store.h"
#include "dtrain/job.h"
#include "runtime/device/device.h"
#include "runtime/job/heartbeat.h"
#include "runtime/job/micro_batch_seed.h"
#include "runtime/job/rendezvous.h"
#include "runtime/job/slow_products.h"

namespace dtrain {

class ModelMemory;  // runtime/model/model_memory.h.

struct Job::State {
  JobEnv env;
  std::optional<Config> config;  // Set before anything else uses it.
  // The one before SetEpoch, kept so that references into its values stay good.
  std::optional<Config> config_before_length;
  int64_t saved_steps = 0;  // Rank 0: train_steps of the run that is gone on with; 0: none.
  std::string run_dir;
  std::string run_id;
  bool fresh = false;                     // Start at step 0 whatever checkpoint.dir holds.
  Json accepted_changes = Json::array();  // RunDirectory::accepted_changes, on all ranks.

  bool accepts(absl::string_view key) const;  // Whether one of them is of `key`.
  AgentChannel agent;
  std::unique_ptr<Heartbeat> heartbeat;        // Null in a test's job.
  std::unique_ptr<Rendezvous> rendezvous;      // Null when alone.
  std::unique_ptr<comm::FlightDumper> flight;  // Outlives the group, whose calls it writes down.
  std::unique_ptr<comm::Group> group;
  // The device on which this rank trains; never null. `group` is of the hosts in any case.
  std::unique_ptr<Device> device = std::make_unique<Device>();
  std::unique_ptr<comm::DeviceGroup> device_group;  // On a GPU; else null. Before its device.
  comm::Store* store = nullptr;  // The store by which the group was made; null when alone.
  std::unique_ptr<Metrics> metrics;
  // The size of the training data that a TokenLoader reads, for the banner; 0: the program has
  // data of its own.
  int64_t train_tokens = 0;
  int64_t train_files = 0;
  bool announced = false;
  std::function<ProductRates(const Config&)> measure_products = MeasureProducts;  // Or a test's.
  bool products_checked = false;
  struct EngineFacts {
    std::string name;                          // EngineOptions::name.
    std::vector<std::string> unmatched_decay;  // UpdateGroups::unmatched_decay.
    std::vector<std::string> parameters;       // Their names.
    std::weak_ptr<const ModelMemory> memory;   // Expires with the engine.
  };
  std::vector<EngineFacts> engines;  // In the order of Create.
  bool groups_checked = false;
  StepsOfEngines steps;
  std::atomic<int> stop_signal{0};  // Agreed by all ranks.
  std::string stop_reason;          // The text that this rank's program gave Job::Stop, or "".
  std::atomic<bool> cpu_time_ended{false};  // The signal was some rank's SIGXCPU.
  // Names what that signal has cut short, "an evaluation" or "a step"; null: nothing.
  std::atomic<const char*> ended_by_stop{nullptr};
  bool saved_at_stop = false;  // Checkpointer::MaybeSave has saved the step behind which it stops.
};

// Says how the program ended: to stderr, to the agent, to torchrun's error file.
void ReportEnd(Job::State* state, const absl::Status& status, int exit_code);

}  // namespace dtrain
