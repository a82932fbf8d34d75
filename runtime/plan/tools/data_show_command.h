// `dtrain data show`: its options and its run.
#pragma once

#include <memory>

#include "absl/status/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dtrain::plan {

class ShowCommand {
 public:
  // Adds the subcommand to `app`, which must not outlive this.
  explicit ShowCommand(CLI::App* app);
  ~ShowCommand();

  // Whether the command line named it.
  bool parsed() const;
  absl::Status Run() const;

 private:
  struct Arguments;
  std::unique_ptr<Arguments> arguments_;
  CLI::App* app_;
};

}  // namespace dtrain::plan
