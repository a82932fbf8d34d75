#include "launcher/commands/catalog.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace dtrain::launcher {
namespace {

enum class Section { kTrain, kUse, kPrepare, kRun, kMachine, kPrograms, kOther };

struct Known {
  Section section;
  const char* name;
  const char* summary;
  bool is_own;  // Part of `dtrain` itself, not a program beside it.
};

constexpr std::array kKnown = {
    Known{Section::kTrain, "train", "train the default GPT on 2 ranks of this machine", true},
    Known{Section::kTrain, "launch", "start a program as N ranks, on this node or on several",
          true},
    Known{Section::kTrain, "finetune", "tune a model folder on JSONL files; write a model folder",
          true},
    Known{Section::kUse, "generate", "write text with a model folder", false},
    Known{Section::kUse, "eval", "print the loss of a model folder on a corpus", false},
    Known{Section::kPrepare, "data", "write token files from text, and show what is in them",
          false},
    Known{Section::kPrepare, "config", "check a configuration; print schema and reference pages",
          false},
    Known{Section::kPrepare, "plan", "compute the memory that a training needs on each rank",
          false},
    Known{Section::kPrepare, "completion", "print what makes bash or zsh complete these commands",
          true},
    Known{Section::kRun, "ps", "list the jobs that run on this host", true},
    Known{Section::kRun, "status", "show what each rank of a running job does", true},
    Known{Section::kRun, "stop", "let a running job save and stop", true},
    Known{Section::kRun, "drain", "take a node out of a running job, which goes on", true},
    Known{Section::kRun, "logs", "show or follow the output and the metrics of a run", true},
    Known{Section::kRun, "checkpoint", "list, verify, compare, convert, copy and prune checkpoints",
          false},
    Known{Section::kRun, "trace", "write the last collectives of all ranks as one timeline", true},
    Known{Section::kMachine, "doctor", "check this node and say what to mend before training",
          true},
    Known{Section::kMachine, "topo", "show cores, GPUs, NICs, distances, and where ranks run",
          true},
    Known{Section::kMachine, "env", "show which launcher started this process and as which rank",
          true},
    Known{Section::kMachine, "exit-codes", "list the exit codes of ranks and jobs", true},
    Known{Section::kMachine, "bench comm", "measure collectives between ranks of this machine",
          false},
    Known{Section::kMachine, "bench kernels", "measure the CPU kernels against the memory's speed",
          false},
    Known{Section::kMachine, "bench kernels-cuda",
          "measure the CUDA kernels against the memory's speed", false},
    Known{Section::kMachine, "bench mfu",
          "train on random tokens; print the FLOPs utilization (MFU)", false},
    Known{Section::kPrograms, "gpt", "train a GPT, Llama or Qwen on token files", false},
    Known{Section::kPrograms, "minimal", "train a small model: the shortest program with dtrain",
          false},
};

constexpr std::array kGroups = {"bench"};

const char* TitleOf(Section section) {
  switch (section) {
    case Section::kTrain:
      return "Train";
    case Section::kUse:
      return "Use a trained model";
    case Section::kPrepare:
      return "Prepare";
    case Section::kRun:
      return "Look at a run";
    case Section::kMachine:
      return "Look at the machine";
    case Section::kPrograms:
      return "Programs to launch (dtrain launch ... -- dtrain-gpt config.json)";
    case Section::kOther:
      break;
  }
  return "Other programs in the folder of dtrain";
}

// The row of the command `name` in the catalog; null: not known.
const Known* Find(const std::string& name) {
  const auto* const found = std::find_if(kKnown.begin(), kKnown.end(),
                                         [&](const Known& known) { return name == known.name; });
  return found == kKnown.end() ? nullptr : found;
}

Section SectionOf(const std::string& name) {
  const Known* const known = Find(name);
  return known == nullptr ? Section::kOther : known->section;
}

void AppendRow(std::string* text, const CommandEntry& command) {
  absl::StrAppendFormat(text, "  %-18s  %s\n", command.name, command.summary);
}

}  // namespace

std::string CommandOf(const std::string& sibling) {
  for (const absl::string_view group : kGroups) {
    if (absl::StartsWith(sibling, absl::StrCat(group, "-"))) {
      return absl::StrCat(group, " ", sibling.substr(group.size() + 1));
    }
  }
  return sibling;
}

std::vector<CommandEntry> AllCommands(const std::vector<std::string>& siblings) {
  std::vector<std::string> names;
  for (const std::string& sibling : siblings) {
    names.push_back(CommandOf(sibling));
  }
  std::vector<CommandEntry> commands;
  for (const Known& known : kKnown) {
    if (known.is_own || std::count(names.begin(), names.end(), known.name) > 0) {
      commands.push_back({known.name, known.summary});
    }
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (Find(names[i]) == nullptr) {
      commands.push_back({names[i], absl::StrCat("run the program dtrain-", siblings[i])});
    }
  }
  return commands;
}

std::vector<std::string> MembersOf(const std::string& group,
                                   const std::vector<CommandEntry>& commands) {
  std::vector<std::string> members;
  for (const CommandEntry& command : commands) {
    if (absl::StartsWith(command.name, group + " ")) {
      members.push_back(command.name.substr(group.size() + 1));
    }
  }
  return members;
}

std::vector<std::string> FirstWords(const std::vector<CommandEntry>& commands) {
  std::vector<std::string> words;
  for (const CommandEntry& command : commands) {
    std::string word = command.name.substr(0, command.name.find(' '));
    if (std::count(words.begin(), words.end(), word) == 0) {
      words.push_back(std::move(word));
    }
  }
  return words;
}

std::string OverviewText(const std::vector<std::string>& siblings) {
  std::string text =
      "Usage: dtrain COMMAND [arguments]\n"
      "Trains models on many ranks in native C++: starts jobs, watches them and shows\n"
      "their results.\n";
  const std::vector<CommandEntry> commands = AllCommands(siblings);
  for (const Section section : {Section::kTrain, Section::kUse, Section::kPrepare, Section::kRun,
                                Section::kMachine, Section::kPrograms, Section::kOther}) {
    std::string rows;
    for (const CommandEntry& command : commands) {
      if (SectionOf(command.name) == section) {
        AppendRow(&rows, command);
      }
    }
    if (!rows.empty()) {
      absl::StrAppend(&text, "\n", TitleOf(section), ":\n", rows);
    }
  }
  return absl::StrCat(text,
                      "\n`dtrain COMMAND --help` explains a command.\n"
                      "`dtrain --version` prints the version.\n"
                      "Examples:\n"
                      "  dtrain train\n"
                      "  dtrain launch --nproc-per-node 2 -- ./my_program config.json\n");
}

std::string GroupText(const std::string& group, const std::vector<CommandEntry>& commands) {
  const std::vector<std::string> members = MembersOf(group, commands);
  std::string text = absl::StrFormat("Usage: dtrain %s COMMAND [arguments]\n\nCommands:\n", group);
  for (const CommandEntry& command : commands) {
    if (absl::StartsWith(command.name, group + " ")) {
      AppendRow(&text, command);
    }
  }
  return absl::StrFormat(
      "%s\n`dtrain %s COMMAND --help` explains a command.\nExample: dtrain %s %s\n", text, group,
      group, members.front());
}

}  // namespace dtrain::launcher
