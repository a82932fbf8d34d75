#include "launcher/jobs/job_status.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/console/progress_line.h"
#include "base/status.h"
#include "base/text/text.h"

namespace dtrain::launcher {
namespace {

// A rank that has said nothing for so long may hang.
constexpr double kSilentSeconds = 60;
// A list with more ranks than any job has is malformed.
constexpr int kListedRanksMax = 1 << 20;

bool IsRank(const Json& row) {
  const auto has = [&row](const char* key, bool (*is)(const Json&)) {
    const auto found = row.find(key);
    return found != row.end() && is(*found);
  };
  const auto is_integer = [](const Json& value) { return value.is_number_integer(); };
  return row.is_object() && has("rank", is_integer) && has("step", is_integer) &&
         has("alive", [](const Json& value) { return value.is_boolean(); }) &&
         has("phase", [](const Json& value) { return value.is_string(); }) &&
         (!row.contains("beat_age_s") || row["beat_age_s"].is_number());
}

// The ranks under `key` of an agent's answer.
std::vector<Json> RanksIn(const Json& answer, const char* key) {
  std::vector<Json> rows;
  if (const auto found = answer.find(key); found != answer.end() && found->is_array()) {
    std::copy_if(found->begin(), found->end(), std::back_inserter(rows), IsRank);
  }
  return rows;
}

// The answer of a node's agent; null if it has none.
Json ParsedAnswer(const NodeAnswer& node) {
  const absl::StatusOr<Json> answer =
      node.text.has_value() ? ParseJson(*node.text, "the answer of a node")
                            : absl::StatusOr<Json>(absl::UnavailableError("no answer"));
  return answer.ok() && answer->is_object() ? *answer : Json();
}

// A rank of a node that does not answer, as another node has last heard of it.
Json SilentRank(int rank, const std::map<int, Json>& heard) {
  Json row = {{"rank", rank}, {"alive", nullptr}, {"step", -1}, {"phase", ""}};
  if (const auto last = heard.find(rank); last != heard.end()) {
    row["step"] = last->second["step"];
    row["phase"] = last->second["phase"];
    if (last->second.contains("beat_age_s")) {
      row["beat_age_s"] = last->second["beat_age_s"];
    }
  }
  return row;
}

// A rank of a node that answers; one that it does not name was not started.
Json RankOf(int rank, const std::map<int, Json>& said) {
  const auto found = said.find(rank);
  return found == said.end() ? Json{{"rank", rank}, {"alive", false}, {"step", -1}, {"phase", ""}}
                             : found->second;
}

// The most advanced phase that an agent names, because all follow to it.
std::string PhaseOf(const std::vector<Json>& answers) {
  constexpr std::array<const char*, 3> kPhases = {"running", "stopping", "ending"};
  int furthest = -1;
  for (const Json& answer : answers) {
    for (size_t i = 0; i < kPhases.size(); ++i) {
      const bool is_it = answer.is_object() && answer.value("phase", Json()) == kPhases.at(i);
      furthest = is_it ? std::max(furthest, static_cast<int>(i)) : furthest;
    }
  }
  return furthest < 0 ? "silent" : kPhases.at(static_cast<size_t>(furthest));
}

std::string LastWord(const Json& rank) {
  const double age = rank.value("beat_age_s", -1.0);
  const std::string word = age < 0 ? "none yet" : absl::StrCat(FormatAge(age), " ago");
  if (rank["alive"].is_null()) {
    return absl::StrCat("its node does not answer",
                        age < 0 ? "" : absl::StrCat("; last word ", word));
  }
  const bool is_suspect = age > kSilentSeconds && rank["alive"].get<bool>();
  return absl::StrCat(word, is_suspect ? "; does it hang? See its log" : "");
}

std::string PhaseOfRank(const Json& rank) {
  if (rank["alive"].is_null()) {
    return "?";
  }
  return rank["alive"].get<bool>() ? Printable(rank["phase"].get<std::string>()) : "has ended";
}

// The columns that tell of a node; "" in a job of one.
std::string NodeColumns(bool has_nodes, const std::string& number, const std::string& host) {
  return has_nodes ? absl::StrFormat("%5s  %-16s ", number, Printable(host)) : "";
}

std::string HostText(const Json& row) {
  const std::string host = row["host"];
  return host.empty() ? "?" : host;
}

}  // namespace

std::string JobNodes::Encode() const {
  Json rows = Json::array();
  for (const NodeAnswer& answer : nodes) {
    rows.push_back({{"number", answer.node.number},
                    {"host", answer.node.host},
                    {"ranks", answer.node.ranks},
                    {"has_ranks", answer.has_ranks},
                    {"state", answer.state},
                    {"why", answer.why},
                    {"text", answer.text.has_value() ? Json(*answer.text) : Json()}});
  }
  return DumpJson(Json{{"attempt", attempt},
                       {"nodes", std::move(rows)},
                       {"note", note},
                       {"started_at", started_at}});
}

absl::StatusOr<JobNodes> JobNodes::Parse(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "the agent's list of nodes"));
  try {
    JobNodes job;
    job.attempt = json.at("attempt");
    job.note = json.at("note");
    job.started_at = json.value("started_at", 0.0);  // A launcher of before does not tell it.
    int ranks_left = kListedRanksMax;
    for (const Json& row : json.at("nodes")) {
      NodeAnswer answer;
      answer.node = {.number = row.at("number"), .host = row.at("host"), .ranks = row.at("ranks")};
      if (answer.node.ranks < 0 || answer.node.ranks > ranks_left) {
        return absl::InvalidArgumentError(
            absl::StrFormat("the agent's list of nodes has a node of %d ranks; allowed: 0 to %d",
                            answer.node.ranks, ranks_left));
      }
      ranks_left -= answer.node.ranks;
      answer.has_ranks = row.at("has_ranks");
      answer.state = row.at("state");
      answer.why = row.at("why");
      if (const Json& said = row.at("text"); !said.is_null()) {
        answer.text = said.get<std::string>();
      }
      job.nodes.push_back(std::move(answer));
    }
    return job;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the agent's list of nodes is malformed: ", error.what()));
  }
}

void AddMembers(const LobbyNodes& members, JobNodes& job) {
  job.started_at = members.started_at;
  std::map<int, size_t> known;  // Places of those with ranks, by their numbers.
  for (size_t place = 0; place < job.nodes.size(); ++place) {
    if (job.nodes[place].has_ranks) {
      known.emplace(job.nodes[place].node.number, place);
    }
  }
  for (const LobbyNodes::Row& row : members.rows) {
    const auto found = known.find(row.node.number);
    if (found == known.end()) {
      job.nodes.push_back({row.node, false, row.state, row.why});
      continue;
    }
    NodeAnswer& answer = job.nodes[found->second];
    if (row.place >= 0 || !answer.text.has_value()) {
      answer.state = row.state;
      answer.why = row.why;
    }
  }
}

Json StatusJson(const JobNodes& job) {
  std::vector<Json> answers;
  std::map<int, Json> heard;  // Ranks of other nodes, as an agent has last heard of them.
  for (const NodeAnswer& node : job.nodes) {
    answers.push_back(ParsedAnswer(node));
    for (Json& row : RanksIn(answers.back(), "others")) {
      const int rank = row["rank"];
      heard[rank] = std::move(row);
    }
  }
  Json ranks = Json::array();
  Json states = Json::array();
  int next_rank = 0;
  for (size_t i = 0; i < job.nodes.size(); ++i) {
    const NodeAnswer& node = job.nodes[i];
    const bool is_answered = answers[i].is_object();
    std::map<int, Json> said;
    for (Json& row : RanksIn(answers[i], "ranks")) {
      const int rank = row["rank"];
      said[rank] = std::move(row);
    }
    for (const int end = next_rank + (node.has_ranks ? node.node.ranks : 0); next_rank < end;
         ++next_rank) {
      Json row = is_answered ? RankOf(next_rank, said) : SilentRank(next_rank, heard);
      row["node"] = node.node.number;
      row["host"] = node.node.host;
      ranks.push_back(std::move(row));
    }
    states.push_back({{"node", node.node.number},
                      {"host", node.node.host},
                      {"ranks", node.has_ranks ? node.node.ranks : 0},
                      {"state", node.state},
                      {"why", node.why},
                      {"answers", node.has_ranks ? Json(is_answered) : Json()}});
  }
  Json status = {{"attempt", job.attempt},
                 {"world_size", next_rank},
                 {"phase", next_rank == 0 ? "waiting" : PhaseOf(answers)},
                 {"ranks", std::move(ranks)},
                 {"node_states", std::move(states)}};
  if (!job.note.empty()) {
    status["note"] = job.note;
  }
  if (job.started_at > 0) {
    status["job_started_at"] = job.started_at;
  }
  return status;
}

JobSummary Summarize(const Json& status, bool has_nodes) {
  JobSummary summary{.nodes = has_nodes ? -1 : 1,
                     .started_at = status.value("job_started_at", 0.0)};
  for (const Json& rank : status["ranks"]) {
    summary.step = std::max(summary.step, rank["step"].get<int64_t>());
  }
  if (const auto nodes = status.find("node_states"); nodes != status.end()) {
    summary.nodes = static_cast<int>(std::count_if(
        nodes->begin(), nodes->end(), [](const Json& node) { return node["ranks"] != 0; }));
    // Without an attempt no node has ranks, if the note does not say that this is not known.
    summary.nodes = summary.nodes == 0 && status.contains("note") ? -1 : summary.nodes;
  }
  return summary;
}

std::string StatusTable(const Json& status) {
  const bool has_nodes = status.contains("node_states");
  std::string table =
      absl::StrFormat("%s%6s %10s  %-10s %s\n", NodeColumns(has_nodes, "node", "host"), "rank",
                      "step", "phase", "last word");
  for (const Json& rank : status["ranks"]) {
    const std::string node =
        has_nodes ? NodeColumns(true, absl::StrCat(rank["node"].get<int>()), HostText(rank)) : "";
    const int64_t step = rank["step"];
    absl::StrAppendFormat(&table, "%s%6d %10s  %-10s %s\n", node, rank["rank"].get<int>(),
                          step < 0 ? "-" : WithThousands(step), PhaseOfRank(rank), LastWord(rank));
  }
  for (const Json& node : status.value("node_states", Json::array())) {
    if (node["ranks"] == 0) {
      absl::StrAppendFormat(
          &table, "%s%6s %10s  %-10s %s\n",
          NodeColumns(true, absl::StrCat(node["node"].get<int>()), HostText(node)), "-", "-",
          Printable(node["state"].get<std::string>()), Printable(node["why"].get<std::string>()));
    }
  }
  return table;
}

std::string CountNodes(const Json& status) {
  int nodes = 0;
  int silent = 0;
  for (const Json& node : status["node_states"]) {
    nodes += node["ranks"] == 0 ? 0 : 1;
    silent += node["answers"] == false ? 1 : 0;
  }
  const int ranks = status["world_size"];
  return absl::StrFormat(
      "%d rank%s on %d node%s%s", ranks, ranks == 1 ? "" : "s", nodes, nodes == 1 ? "" : "s",
      silent == 0
          ? ""
          : absl::StrFormat(", of which %d do%s not answer", silent, silent == 1 ? "es" : ""));
}

}  // namespace dtrain::launcher
