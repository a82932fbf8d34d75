// Turns the metrics records of a run into TensorBoard files in RUN_DIR/report/tensorboard: every
// number as a curve, the program's own included, the hyperparameters and the configuration.
//
// Each attempt of a run has one file, with a mark at its first step: from there on it replaces the
// values of earlier files. Fed by the process that reads or writes the records of rank 0: the agent
// of `dtrain launch`, or rank 0 itself without an agent. Not thread-safe; each record is written
// when Add returns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/json.h"
#include "base/tensorboard/events.h"

namespace dtrain {

// The numbers of a metrics record's "m" (strings "NaN", "Infinity" and "-Infinity" count). Pure.
std::vector<Scalar> ScalarsOf(const Json& record);

class TensorBoardExport {
 public:
  explicit TensorBoardExport(std::string run_dir) : run_dir_(std::move(run_dir)) {}

  // Writes the numbers of a record; records of other kinds without numbers are ignored. At a
  // "config" record, which begins an attempt, RUN_DIR/config.json and run.json are read:
  // hyperparameters and configuration come from there, and metrics.tensorboard false switches the
  // export off for the attempt. After an error the export stays off.
  absl::Status Add(const Json& record);

 private:
  absl::Status BeginAttempt(const Json& record);
  absl::Status AddScalars(const Json& record, const std::vector<Scalar>& scalars);
  absl::Status OpenFor(int64_t attempt, double wall_time);

  const std::string run_dir_;
  std::vector<TensorBoardWriter> writer_;  // Empty or one.
  int64_t attempt_ = -1;
  int64_t last_step_ = 0;  // Last step of the run, by the "config" record; 0: unknown.
  bool marked_ = false;    // This attempt's first step has been seen.
  bool off_ = false;       // The configuration switches the export off for this attempt.
  bool failed_ = false;
};

}  // namespace dtrain
