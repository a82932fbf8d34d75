#include "launcher/records/reporter.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/console/record_line.h"
#include "base/console/run_console.h"
#include "base/file.h"
#include "base/tensorboard/export.h"
#include "base/text/text.h"
#include "base/threads/worker.h"
#include "launcher/records/file_tail.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kQueueCapacity = 16384;

// The text that a terminal would show of a line with carriage returns: the part after the last one.
std::string AfterCarriageReturn(const std::string& line) {
  const size_t end = line.find_last_not_of('\r');
  const std::string text = line.substr(0, end == std::string::npos ? 0 : end + 1);
  const size_t at = text.rfind('\r');
  return at == std::string::npos ? text : text.substr(at + 1);
}

// Whether `record` says that a checkpoint was committed, and not that a save failed or a checkpoint
// was restored.
bool IsDurableSave(const Json& record) {
  const auto durable = record.find("durable");
  return RecordKind(record) == "ckpt" && durable != record.end() && *durable == true;
}

// How far `record` shows that the run is durable: a committed checkpoint, or steps that an attempt
// has replayed from its journal. -1: it shows nothing of it.
int64_t DurableStep(const Json& record) {
  const auto restored = record.find("restored");
  const bool is_replay = RecordKind(record) == "ckpt" && record.contains("replayed") &&
                         restored != record.end() && restored->is_number_integer();
  return IsDurableSave(record) ? RecordStep(record) : is_replay ? restored->get<int64_t>() : -1;
}

// For how long training stood still for a save.
double HeldUpSeconds(const Json& record) {
  const auto metrics = record.find("m");
  if (metrics == record.end() || !metrics->is_object()) {
    return 0;
  }
  const auto seconds = metrics->find("time/checkpoint_s");
  return seconds != metrics->end() && seconds->is_number() ? seconds->get<double>() : 0;
}

}  // namespace

struct Reporter::Shared {
  BoundedQueue<Command> commands{kQueueCapacity};
  BoundedQueue<bool> ended{1};
  std::atomic<int64_t> durable_step{-1};
  std::atomic<int64_t> saves{0};
  std::atomic<double> held_up_s{0};
};

// Everything the thread owns.
struct Reporter::Core {
  Core(const ReporterOptions& given, EventLog log, std::shared_ptr<Shared> with)
      : options(given),
        shared(std::move(with)),
        run_console({.console = given.console,
                     .style = {},
                     .log_dir = given.log_dir,
                     .folder = WorkingDirectory()}),
        console(run_console.console()),
        events(std::move(log)) {
    if (!options.tensorboard_run_dir.empty()) {
      tensorboard.emplace(options.tensorboard_run_dir);
    }
  }

  void Run() {
    PrepareThread("dtrain-report", false);
    while (true) {
      const Deadline tick = Deadline::After(options.poll_interval);
      std::optional<Command> command = shared->commands.Pop(tick);
      if (command.has_value() && *command == nullptr) {
        break;
      }
      if (command.has_value()) {
        (*command)(*this);
      } else {
        PollAll();
      }
    }
    DrainAll();
    shared->ended.TryPush(true);
  }

  void PollAll() {
    // Records come first, because a rank prints its last lines after its last step.
    if (metrics.has_value()) {
      TakeRecords(metrics->Poll());
    }
    for (auto& [file, tail] : shown) {
      ShowLines(file, tail.Poll());
    }
    console.Refresh();
  }

  void DrainAll() {
    if (metrics.has_value()) {
      TakeRecords(metrics->Drain());
    }
    run_console.LeaveProgress();
    for (auto& [file, tail] : shown) {
      ShowLines(file, tail.Drain());
      if (const uint64_t end = FileEnd(file.path); end > tail.offset()) {
        console.Err(absl::StrCat("dtrain: ", end - tail.offset(), " more bytes in ", file.path));
      }
    }
    shown.clear();
  }

  void ShowLines(const ShownFile& file, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      const std::string text = absl::StrCat(file.prefix, Printable(AfterCarriageReturn(line)));
      if (file.is_err) {
        console.Err(text);
      } else {
        console.Out(text);
      }
    }
  }

  void TakeRecords(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      const std::optional<Json> record = ParseRecord(line);
      if (!record.has_value()) {
        continue;
      }
      shared->durable_step = std::max(shared->durable_step.load(), DurableStep(*record));
      if (IsDurableSave(*record)) {  // This thread alone writes these.
        shared->saves = shared->saves + 1;
        shared->held_up_s = shared->held_up_s + HeldUpSeconds(*record);
      }
      if (options.show_records) {
        run_console.Take(*record);
      }
      Export(*record);
    }
    run_console.ShowProgress();
  }

  void Export(const Json& record) {
    if (tensorboard.has_value()) {
      if (const absl::Status status = tensorboard->Add(record); !status.ok()) {
        console.Err(absl::StrCat("dtrain: TensorBoard files are off: ", status.message()));
      }
    }
  }

  const ReporterOptions options;
  const std::shared_ptr<Shared> shared;
  RunConsole run_console;
  Console& console;  // Lines that are not records go through it.
  EventLog events;
  bool events_are_lost = false;
  std::vector<std::pair<ShownFile, FileTail>> shown;
  std::optional<FileTail> metrics;
  std::optional<TensorBoardExport> tensorboard;
};

absl::StatusOr<std::unique_ptr<Reporter>> Reporter::Start(const ReporterOptions& options) {
  DT_ASSIGN_OR_RETURN(EventLog events, EventLog::Open(options.events_path, options.identity));
  return std::unique_ptr<Reporter>(new Reporter(options, std::move(events)));
}

Reporter::Reporter(const ReporterOptions& options, EventLog events)
    : shared_(std::make_shared<Shared>()) {
  auto core = std::make_shared<Core>(options, std::move(events), shared_);
  thread_ = std::thread([core = std::move(core)] { core->Run(); });
}

Reporter::~Reporter() { Finish(absl::Seconds(1)); }

void Reporter::Queue(Command command) { shared_->commands.TryPush(std::move(command)); }

void Reporter::Say(const std::string& text) {
  // The progress line above then shows how far the run was.
  Queue([](Core& core) { core.console.StartLine(); });
  SayMore(absl::StrCat("dtrain: ", text));
}

void Reporter::SayMore(const std::string& text) {
  Queue([text = Printable(text)](Core& core) { core.console.Err(text); });
}

void Reporter::Event(const std::string& event, const Json& fields) {
  Queue([event, fields](Core& core) {
    const absl::Status status = core.events.Append(event, fields);
    if (!status.ok() && !core.events_are_lost) {  // A full disk is full for the next ones too.
      core.console.Err(absl::StrCat("dtrain: cannot write ", core.options.events_path, ": ",
                                    status.message(), "; events are lost until that is mended"));
    }
    core.events_are_lost = !status.ok();
  });
}

void Reporter::Show(const std::vector<ShownFile>& files) {
  Queue([files](Core& core) {
    core.DrainAll();
    for (const ShownFile& file : files) {
      core.shown.emplace_back(file, FileTail(file.path, file.from));
    }
  });
}

void Reporter::FollowMetrics(const std::string& path, uint64_t from) {
  Queue([path, from](Core& core) { core.metrics.emplace(path, from); });
}

int64_t Reporter::ReadDurableStep() {
  ReadRecords();
  return shared_->durable_step.load();
}

Reporter::Saves Reporter::ReadSaves() {
  ReadRecords();
  return {shared_->saves.load(), shared_->held_up_s.load()};
}

void Reporter::ReadRecords() {
  const auto drained = std::make_shared<BoundedQueue<bool>>(1);
  Queue([drained](Core& core) {
    if (core.metrics.has_value()) {
      core.TakeRecords(core.metrics->Drain());
    }
    drained->TryPush(true);
  });
  drained->Pop(Deadline::After(absl::Seconds(1)));
}

bool Reporter::Finish(absl::Duration timeout) {
  if (!thread_.joinable()) {
    return true;
  }
  const Deadline deadline = Deadline::After(timeout);
  shared_->commands.Push(nullptr, deadline);
  if (shared_->ended.Pop(deadline).has_value()) {
    thread_.join();
    return true;
  }
  thread_.detach();  // The thread is blocked in a write; the process ends without it.
  return false;
}

}  // namespace dtrain::launcher
