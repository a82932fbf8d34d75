// Builds a Config from text and overrides: read, override, check, fill. Used once; not thread-safe.
// Private to the room.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/config/config_keys.h"
#include "runtime/plan/config/config_values.h"

namespace dtrain {

class ConfigBuilder {
 public:
  ConfigBuilder(absl::string_view text, absl::string_view file_name, int world_size);

  // The calls of Config::Parse, in this order.
  absl::Status ReadFileText();
  absl::Status Override(const std::string& assignment);
  // Only where the size of the data is known: train_epochs becomes train_steps.
  void SetStepsPerEpoch(double steps) { steps_per_epoch_ = steps; }
  absl::StatusOr<Config> Finish();

 private:
  absl::Status Walk(const Json& json, const std::string& prefix, ConfigOrigin origin,
                    const std::string& where);
  // `spelt`: the older spelling by which `path` was given; "": today's.
  absl::Status Take(const std::string& path, const Json& value, ConfigOrigin origin,
                    const std::string& where, const std::string& spelt = "");
  absl::Status TakeKnown(const plan::ConfigKey& key, const Json& value, ConfigOrigin origin,
                         const std::string& where, const std::string& spelt);
  absl::Status OverrideFree(const std::string& path, Json value, const std::string& where);
  // "FILE:LINE", the line only when the key's last part stands once in the text.
  std::string Where(const std::string& path) const;
  std::string WhereGiven(absl::string_view path) const;

  absl::Status CheckSupport();
  void DropWhatIsOff();
  void DropReplacedLength(const std::string& path);
  bool IsOff(absl::string_view path) const;  // A key of fp16 or bf16 while that is not enabled.
  absl::StatusOr<int64_t> HiddenSize() const;
  void SayAutos();
  void SayClipping();
  void SetWhy(absl::string_view key, const std::string& why);  // Only of keys that are "auto".
  absl::Status CheckPrecision() const;
  absl::Status CheckSharding() const;
  absl::Status CheckActivations();
  absl::Status CheckReplicas() const;
  void CheckIdleKeys();
  absl::Status CheckFolders() const;
  absl::Status CheckAddresses() const;
  void CheckConsole();
  absl::Status FillRun();
  absl::Status FillRunOfEpochs();
  absl::Status FillBatch();
  absl::Status FillOptimizer();
  absl::Status CheckOptimizer();
  absl::Status CheckOffload() const;
  void FillTypedOptimizer();
  absl::Status FillScheduler();
  absl::Status FillScheduleOf(const std::string& type, int64_t steps);
  void LeaveScheduleOpen(const std::string& type);
  absl::Status FillStableDecay();
  absl::Status FillOneCycle();
  absl::Status FillReduction();
  absl::Status FillComm();
  void FillDefaults();
  void FillTyped();
  void FillTypedPrecision();
  void FillTypedScheduler();
  void FillTypedComm();
  bool Given(absl::string_view key) const;   // Set, and not "auto".
  bool IsAuto(absl::string_view key) const;  // Set to "auto".
  const Json& Value(absl::string_view key) const { return values_->at(key); }
  bool IsDefault(const std::string& path) const;
  void Derive(const std::string& key, Json value);

  // A value that was chosen for "auto", for the note about it.
  struct Auto {
    std::string where;
    std::string why;
  };

  std::string text_;
  std::map<std::string, std::string> spellings_;  // Spelling of each key in one document or --set.
  std::map<std::string, Auto, std::less<>> autos_;
  std::optional<double> steps_per_epoch_;
  bool is_deepspeeds_ = false;  // Something in the document is only there for DeepSpeed.
  std::shared_ptr<Config::Values> values_ = std::make_shared<Config::Values>();
};

}  // namespace dtrain
