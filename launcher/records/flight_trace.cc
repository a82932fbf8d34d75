#include "launcher/records/flight_trace.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

// Further common collectives hardly improve the estimate.
constexpr int kEnoughInCommon = 100;

// Group and sequence number: the same collective on every rank.
using Key = std::pair<std::string, uint64_t>;

std::string TextOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t NumberOf(const Json& object, const char* key, int64_t otherwise = 0) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
}

absl::StatusOr<FlightEntry> ParseEntry(const Json& json, const std::string& path, size_t index) {
  const bool whole = json.is_object() && json.contains("dtrain") && json["dtrain"].is_object() &&
                     json.contains("process_group") && json["process_group"].is_array() &&
                     !json["process_group"].empty() && json["process_group"][0].is_string();
  if (!whole) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: entry %d has no process_group or no dtrain part; was the file written by dtrain?",
        path, index));
  }
  const Json& own = json["dtrain"];
  FlightEntry entry;
  entry.group = json["process_group"][0].get<std::string>();
  entry.sequence = static_cast<uint64_t>(NumberOf(json, "collective_seq_id"));
  entry.kind = TextOf(own, "kind");
  entry.name = TextOf(own, "name");
  entry.call = TextOf(own, "call");
  entry.error = TextOf(own, "error");
  entry.bytes = static_cast<uint64_t>(NumberOf(own, "bytes"));
  entry.step = NumberOf(own, "step", -1);
  entry.queued = NumberOf(json, "time_created_ns");
  entry.started = NumberOf(json, "time_discovered_started_ns");
  entry.completed = NumberOf(json, "time_discovered_completed_ns");
  entry.failed = NumberOf(own, "time_failed_ns");
  return entry;
}

// Start and end of the collectives that a rank finished.
std::map<Key, std::pair<int64_t, int64_t>> Finished(const FlightFile& file) {
  std::map<Key, std::pair<int64_t, int64_t>> spans;
  for (const FlightEntry& entry : file.entries) {
    if (entry.sequence != 0 && entry.started != 0 && entry.completed != 0) {
      spans[{entry.group, entry.sequence}] = {entry.started, entry.completed};
    }
  }
  return spans;
}

// The interval in which the difference of two ranks' clocks lies, by their common collectives.
struct Bounds {
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
  int common = 0;
};

Bounds Compare(const std::map<Key, std::pair<int64_t, int64_t>>& a,
               const std::map<Key, std::pair<int64_t, int64_t>>& b) {
  Bounds bounds;
  for (const auto& [key, mine] : a) {
    if (const auto found = b.find(key); found != b.end()) {
      const auto& [start, end] = found->second;
      bounds.low = std::max(bounds.low, mine.first - end);
      bounds.high = std::min(bounds.high, mine.second - start);
      ++bounds.common;
    }
  }
  return bounds;
}

// The middle of the interval. With clocks that drift the interval may be empty; its middle is the
// best guess then too.
ClockOffset Between(const Bounds& bounds, bool same_host) {
  const bool zero_fits = bounds.low <= 0 && bounds.high >= 0;
  if (same_host && zero_fits) {
    return {0, 0, true};
  }
  const int64_t half = (bounds.high - bounds.low) / 2;
  return {bounds.low + half, std::abs(half), true};
}

double Micros(int64_t nanos) { return static_cast<double>(nanos) * 1e-3; }

// The rank that entered a collective last, and how long after the first.
struct Arrival {
  int last_rank = -1;
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t last = std::numeric_limits<int64_t>::min();
};

std::map<Key, Arrival> Arrivals(absl::Span<const FlightFile> files,
                                absl::Span<const ClockOffset> offsets) {
  std::map<Key, Arrival> arrivals;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const FlightEntry& entry : files[i].entries) {
      if (entry.sequence == 0 || entry.started == 0) {
        continue;
      }
      Arrival& arrival = arrivals[{entry.group, entry.sequence}];
      const int64_t start = entry.started - offsets[i].nanos;
      arrival.first = std::min(arrival.first, start);
      if (start > arrival.last) {
        arrival.last = start;
        arrival.last_rank = files[i].rank;
      }
    }
  }
  return arrivals;
}

Json Metadata(const char* what, int rank, int track, const Json& arguments) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", track}, {"args", arguments}};
}

Json ArgumentsOf(const FlightEntry& entry, const std::map<Key, Arrival>& arrivals) {
  Json arguments = {{"call", entry.call}, {"bytes", entry.bytes}, {"sequence", entry.sequence}};
  if (entry.step >= 0) {
    arguments["step"] = entry.step;
  }
  if (!entry.error.empty()) {
    arguments["error"] = entry.error;
  }
  if (const auto found = arrivals.find({entry.group, entry.sequence}); found != arrivals.end()) {
    arguments["last_to_enter"] = found->second.last_rank;
    arguments["waited_for_last_us"] = Micros(found->second.last - found->second.first);
  }
  return arguments;
}

}  // namespace

absl::StatusOr<FlightFile> ParseFlightFile(const Json& json, const std::string& path) {
  const bool whole = json.is_object() && json.contains("entries") && json["entries"].is_array() &&
                     json.contains("dtrain") && json["dtrain"].is_object() &&
                     json["dtrain"].contains("rank") && json["dtrain"]["rank"].is_number_integer();
  if (!whole) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no entries or no dtrain.rank; was it written by dtrain?"));
  }
  FlightFile file;
  file.rank = json["dtrain"]["rank"].get<int>();
  file.host = TextOf(json["dtrain"], "host_name");
  file.written = NumberOf(json["dtrain"], "time_ns");
  for (const Json& entry : json["entries"]) {
    DT_ASSIGN_OR_RETURN(FlightEntry parsed, ParseEntry(entry, path, file.entries.size()));
    file.entries.push_back(std::move(parsed));
  }
  return file;
}

std::vector<ClockOffset> AlignClocks(absl::Span<const FlightFile> files) {
  std::vector<ClockOffset> offsets(files.size());
  std::vector<std::map<Key, std::pair<int64_t, int64_t>>> spans;
  for (const FlightFile& file : files) {
    spans.push_back(Finished(file));
  }
  // For each file that is not aligned yet, the bounds from the aligned file with which it shares
  // most collectives.
  std::vector<Bounds> best(files.size());
  std::vector<size_t> reference(files.size(), 0);
  std::vector<bool> aligned(files.size(), false);
  for (size_t round = 0; round < files.size(); ++round) {
    size_t next = files.size();
    for (size_t i = 0; i < files.size(); ++i) {
      if (!aligned[i] && (next == files.size() || best[i].common > best[next].common)) {
        next = i;
      }
    }
    ClockOffset& offset = offsets[next];
    // The first file, or one without common collectives: its clock becomes a new reference.
    if (best[next].common == 0) {
      offset.known = round == 0;
    } else {
      const ClockOffset& from = offsets[reference[next]];
      offset = Between(best[next], files[next].host == files[reference[next]].host);
      offset.nanos += from.nanos;
      offset.error_nanos += from.error_nanos;
      offset.known = from.known;
    }
    aligned[next] = true;
    for (size_t i = 0; i < files.size(); ++i) {
      if (aligned[i] || best[i].common >= kEnoughInCommon) {
        continue;
      }
      const Bounds bounds = Compare(spans[i], spans[next]);
      if (bounds.common > best[i].common) {
        best[i] = bounds;
        reference[i] = next;
      }
    }
  }
  return offsets;
}

Json ChromeTrace(absl::Span<const FlightFile> files, absl::Span<const ClockOffset> offsets) {
  const std::map<Key, Arrival> arrivals = Arrivals(files, offsets);
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < files.size(); ++i) {
    for (const FlightEntry& entry : files[i].entries) {
      origin = entry.started != 0 ? std::min(origin, entry.started - offsets[i].nanos) : origin;
    }
  }
  std::map<std::string, int> tracks;  // A number for each group, the same on all ranks.
  Json events = Json::array();
  for (size_t i = 0; i < files.size(); ++i) {
    const FlightFile& file = files[i];
    events.push_back(Metadata("process_name", file.rank, 0,
                              {{"name", absl::StrFormat("rank %d (%s)", file.rank, file.host)}}));
    events.push_back(Metadata("process_sort_index", file.rank, 0, {{"sort_index", file.rank}}));
    std::map<int, std::string> named;
    for (const FlightEntry& entry : file.entries) {
      if (entry.started == 0) {
        continue;
      }
      const int track = tracks.emplace(entry.group, static_cast<int>(tracks.size())).first->second;
      named[track] = entry.group;
      const int64_t end = entry.completed != 0 ? entry.completed
                          : entry.failed != 0  ? entry.failed
                                               : std::max(file.written, entry.started);
      std::string name = entry.name.empty() ? entry.kind : entry.name;
      if (entry.completed == 0) {
        absl::StrAppend(&name, entry.error.empty() ? " (not finished)" : " (failed)");
      }
      events.push_back({{"name", name},
                        {"cat", entry.kind},
                        {"ph", "X"},
                        {"pid", file.rank},
                        {"tid", track},
                        {"ts", Micros(entry.started - offsets[i].nanos - origin)},
                        {"dur", Micros(end - entry.started)},
                        {"args", ArgumentsOf(entry, arrivals)}});
    }
    for (const auto& [track, group] : named) {
      events.push_back(Metadata("thread_name", file.rank, track, {{"name", group}}));
    }
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

}  // namespace dtrain::launcher
