// The values in a Config. Its parts (builder, accessors, identity) share them; private to the room.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dtrain/config.h"

namespace dtrain {

struct Config::Values {
  std::string file_name;
  // The configuration was made of these, and is made anew of them by Config::WithStepsPerEpoch.
  std::string document;
  std::vector<std::string> overrides;
  // Every key of the table; null where it is absent.
  std::map<std::string, Json, std::less<>> by_key;
  std::map<std::string, ConfigOrigin, std::less<>> origins;
  std::vector<std::string> warnings;

  // The same, typed.
  int world_size = 1;
  int64_t train_steps = 0;  // 0: not known yet, because train_epochs decides it.
  int64_t global_batch = 0;
  int64_t micro_batch = 0;
  int64_t accumulation = 0;
  OptimizerConfig optimizer;
  std::map<std::string, EngineSettings, std::less<>> engines;
  SchedulerConfig scheduler;
  PrecisionConfig precision;
  std::vector<DataPart> data_parts;
  std::vector<std::string> data_train;  // The files of all parts.
  std::vector<std::string> data_validation;
  std::string data_format;
  std::string checkpoint_dir;
  std::vector<std::string> metrics_console;
  NetworkConfig network;
  std::string wire_dtype;
  CompressionConfig compression;

  const Json& at(absl::string_view key) const;  // REQUIRES: a key of the table.
  int64_t integer(absl::string_view key) const { return at(key).get<int64_t>(); }
  double number(absl::string_view key) const { return at(key).get<double>(); }
  bool boolean(absl::string_view key) const { return at(key).get<bool>(); }
  const std::string& text(absl::string_view key) const {
    return at(key).get_ref<const std::string&>();
  }
  bool has_remote_data() const;  // Some token files are at addresses.
};

}  // namespace dtrain
