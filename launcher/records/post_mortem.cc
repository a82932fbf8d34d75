#include "launcher/records/post_mortem.h"

#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr int kSchemaVersion = 1;
constexpr size_t kStderrLinesShown = 15;

const char* FailureKind(const PostMortemFacts& facts) {
  if (facts.cause == nullptr) {
    return "error";
  }
  if (!facts.cause->hang.empty()) {
    return "hang";
  }
  return !WhyKilled(facts).empty() ? "out_of_memory" : facts.cause->signal != 0 ? "signal" : "exit";
}

// One sentence about the whole.
std::string SentenceOf(const PostMortemFacts& facts) {
  if (facts.cause == nullptr) {
    return std::string(facts.error.message());
  }
  const std::string text = DescribeFailure(*facts.cause);
  const std::string why = WhyKilled(facts);
  return why.empty() ? text : absl::StrCat(text, "; ", why);
}

// How the end of a rank follows from the first one.
const char* RoleOf(const RankEnd& end, const PostMortemFacts& facts) {
  if (&end == facts.cause) {
    return "first";
  }
  if (!FailedByItself(end)) {
    return end.stopped ? "stopped" : "done";
  }
  // A rank that lost a peer fails because of the first.
  return facts.cause != nullptr && (MayBeVictim(end) || end.order < facts.cause->order)
             ? "follower"
             : "failed_too";
}

Json EndJson(const RankEnd& end, const char* role) {
  Json json = {{"rank", end.rank},       {"role", role},
               {"node", end.node},       {"host", end.host},
               {"pid", end.pid},         {"exit_code", CodeOf(end)},
               {"step", end.step},       {"phase", end.phase},
               {"stopped", end.stopped}, {"end", end.hang.empty() ? DescribeEnd(end) : "hangs"}};
  if (end.signal != 0) {
    json["signal"] = SignalName(end.signal);
  }
  if (!end.hang.empty()) {
    json["hang"] = end.hang;
  }
  if (!end.error.empty()) {
    json["error"] = end.error;
  }
  if (!end.log.empty()) {
    json["log"] = end.log;
  }
  return json;
}

Json RemainsJson(const RankRemains& remains) {
  Json json = {{"rank", remains.rank},
               {"stderr", remains.stderr_lines},
               {"stack", remains.stack},
               {"collectives", remains.collectives},
               {"metrics", remains.metrics}};
  Json threads = Json::array();
  for (const ThreadPlace& place : remains.threads) {
    threads.push_back({{"thread", place.thread},
                       {"name", place.name},
                       {"state", std::string(1, place.state)},
                       {"waits_in", place.waits_in}});
  }
  json["threads"] = std::move(threads);
  Json progress = Json::array();
  for (const GroupProgress& group : remains.progress) {
    progress.push_back({{"group", group.group},
                        {"entered", group.entered},
                        {"left", group.left},
                        {"call", group.call}});
  }
  json["progress"] = std::move(progress);
  return json;
}

Json KernelJson(const PostMortemFacts& facts) {
  Json messages = Json::array();
  for (const KernelMessage& message : facts.kernel) {
    Json row = {{"kind", message.kind}, {"text", message.text}};
    if (message.pid != 0) {
      row["pid"] = message.pid;
    }
    if (!message.device.empty()) {
      row["device"] = message.device;
      row["code"] = message.code;
    }
    messages.push_back(std::move(row));
  }
  return {{"readable", facts.kernel_unreadable.empty()},
          {"why_not", facts.kernel_unreadable},
          {"oom_kills", facts.oom_kills},
          {"messages", std::move(messages)}};
}

// The ranks of one role, as "1, 2, 5".
std::string RanksOf(const Json& report, const std::string& role) {
  std::vector<int> ranks;
  const Json& first = report["first"];
  for (const Json& end : report["ends"]) {
    // A rank that hangs is stopped too.
    const bool is_first = first.is_object() && first["rank"] == end["rank"];
    if (end["role"] == role && !is_first) {
      ranks.push_back(end["rank"].get<int>());
    }
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return absl::StrJoin(ranks, ", ");
}

void AppendLines(const Json& lines, const char* title, size_t lines_max, std::string& text) {
  if (lines.empty()) {
    return;
  }
  absl::StrAppend(&text, "  ", title, ":\n");
  const size_t first = lines.size() > lines_max ? lines.size() - lines_max : 0;
  for (size_t i = first; i < lines.size(); ++i) {
    absl::StrAppend(&text, "    ", lines[i].get<std::string>(), "\n");
  }
}

void AppendRemains(const Json& remains, bool is_first, std::string& text) {
  absl::StrAppendFormat(&text, "\nrank %d\n", remains["rank"].get<int>());
  for (const Json& group : remains["progress"]) {
    absl::StrAppendFormat(&text, "  group \"%s\": entered collective %d, left %d, last %s\n",
                          group["group"].get<std::string>(), group["entered"].get<uint64_t>(),
                          group["left"].get<uint64_t>(), group["call"].get<std::string>());
  }
  for (const Json& call : remains["collectives"]) {
    absl::StrAppendFormat(&text, "  collective %d %s: %s\n", call["sequence"].get<uint64_t>(),
                          call["state"].get<std::string>(), call["call"].get<std::string>());
  }
  if (!remains["metrics"].empty()) {
    absl::StrAppend(&text, "  last metrics: ", DumpJson(remains["metrics"]), "\n");
  }
  for (const Json& thread : remains["threads"]) {
    absl::StrAppendFormat(&text, "  thread %d %s: state %s %s\n", thread["thread"].get<int>(),
                          thread["name"].get<std::string>(), thread["state"].get<std::string>(),
                          thread["waits_in"].get<std::string>());
  }
  AppendLines(remains["stack"], "stack", remains["stack"].size(), text);
  if (is_first) {
    AppendLines(remains["stderr"], "last lines of stderr", kStderrLinesShown, text);
  }
}

}  // namespace

std::string WhyKilled(const PostMortemFacts& facts) {
  const RankEnd* const cause = facts.cause;
  if (cause == nullptr || cause->signal != SIGKILL || cause->node != facts.node) {
    return "";
  }
  const bool is_named =
      std::any_of(facts.kernel.begin(), facts.kernel.end(), [cause](const KernelMessage& message) {
        return std::string(message.kind) == "out_of_memory" && message.pid == cause->pid;
      });
  if (is_named) {
    return "the kernel killed it because memory ran out";
  }
  // The count names no process. A rank that was killed in the same attempt was hardly another one.
  return facts.oom_kills > 0
             ? absl::StrFormat(
                   "the kernel killed %d process%s of its memory cgroup because memory "
                   "ran out there",
                   facts.oom_kills, facts.oom_kills == 1 ? "" : "es")
             : "";
}

Json PostMortemJson(const PostMortemFacts& facts) {
  Json ends = Json::array();
  for (const RankEnd& end : facts.ends) {
    ends.push_back(EndJson(end, RoleOf(end, facts)));
  }
  Json ranks = Json::array();
  for (const RankRemains& remains : facts.ranks) {
    ranks.push_back(RemainsJson(remains));
  }
  return {{"v", kSchemaVersion},
          {"run", facts.run_id},
          {"attempt", facts.attempt},
          {"node", facts.node},
          {"world_size", facts.world_size},
          {"time", absl::ToDoubleSeconds(facts.time - absl::UnixEpoch())},
          {"exit_code", facts.exit_code},
          {"exit_meaning", std::string(ExitCodeMeaning(facts.exit_code))},
          {"kind", FailureKind(facts)},
          {"what", SentenceOf(facts)},
          {"first", facts.cause == nullptr ? Json(nullptr) : EndJson(*facts.cause, "first")},
          {"ends", std::move(ends)},
          {"ranks", std::move(ranks)},
          {"kernel", KernelJson(facts)}};
}

std::string PostMortemText(const Json& report) {
  std::string text =
      absl::StrFormat("%s\nexit code %d (%s), attempt %d of run %s, %d ranks\n",
                      report["what"].get<std::string>(), report["exit_code"].get<int>(),
                      report["exit_meaning"].get<std::string>(), report["attempt"].get<int>(),
                      report["run"].get<std::string>(), report["world_size"].get<int>());
  const Json& first = report["first"];
  if (first.is_object() && first.contains("error") && !first.contains("hang")) {
    absl::StrAppend(&text, "it said: ", first["error"].get<std::string>(), "\n");
  }
  for (const auto& [role, meaning] :
       {std::pair("follower", "failed because of it"),
        std::pair("stopped", "were stopped after it"),
        std::pair("failed_too", "failed for a reason of their own")}) {
    if (const std::string ranks = RanksOf(report, role); !ranks.empty()) {
      absl::StrAppend(&text, "ranks that ", meaning, ": ", ranks, "\n");
    }
  }
  const Json& kernel = report["kernel"];
  for (const Json& message : kernel["messages"]) {
    absl::StrAppend(&text, "kernel (", message["kind"].get<std::string>(),
                    "): ", message["text"].get<std::string>(), "\n");
  }
  if (!kernel["readable"].get<bool>()) {
    absl::StrAppend(&text, "kernel messages are not known: ", kernel["why_not"].get<std::string>(),
                    "\n");
  }
  for (const Json& remains : report["ranks"]) {
    AppendRemains(remains, first.is_object() && first["rank"] == remains["rank"], text);
  }
  return text;
}

}  // namespace dtrain::launcher
