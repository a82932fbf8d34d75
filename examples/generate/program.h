// The common part of the programs that read a model without training it. Called by the main
// thread.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace CLI {
class App;
}  // namespace CLI

struct ReadingOptions {
  std::string folder;
  std::string type = "float32";
  std::string tokenizer;
  int threads = 0;  // 0: as many as this process may use cores.
};

// Adds the folder of the model, its tokenizer and the options of how it is computed.
void AddReadingOptions(CLI::App& app, ReadingOptions& options);

// Puts the model's folder in place of a run directory or checkpoint (dtrain::FindModelFolder), and
// says on stderr which one it is, behind the name `program`. NotFound: it is no whole model.
absl::Status FindModel(const char* program, ReadingOptions& options);

// Before the first operation: how many threads LibTorch computes with, and what this CPU lacks.
void PrepareToCompute(const ReadingOptions& options);

// The exit code of `run`; its error, or the exception that leaves it, goes to stderr behind the
// name `program`.
int EndOfProgram(const char* program, absl::FunctionRef<absl::Status()> run);
