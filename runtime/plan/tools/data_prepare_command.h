// `dtrain data prepare`: its options and its run.
#pragma once

#include <memory>

#include "absl/status/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dtrain::plan {

class PrepareCommand {
 public:
  // Adds the subcommand to `app`, which must not outlive this.
  explicit PrepareCommand(CLI::App* app);
  ~PrepareCommand();

  // Whether the command line named it.
  bool parsed() const;
  absl::Status Run() const;

 private:
  struct Arguments;
  void AddLimits();

  std::unique_ptr<Arguments> arguments_;
  CLI::App* app_;
};

}  // namespace dtrain::plan
