#include "launcher/watch/straggler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace dtrain::launcher {
namespace {

constexpr double kMadToSigma = 1.4826;   // Holds for a normal distribution.
constexpr double kMedianError = 1.2533;  // Standard error of a median, per sigma / sqrt(n).
constexpr double kNoiseFactor = 6;
// The share of the threshold for two windows together that each has to exceed alone.
constexpr double kOneWindowShare = 0.75;
constexpr double kOthersFactor = 3;
constexpr double kWindowSecondsLeast = 0.4;  // The scheduler's turns are below that.
constexpr double kBusyMachine = 0.2;
// A rank that waits so much for a CPU is not judged by blocks of short steps.
constexpr double kTakenCpu = 0.05;
constexpr int kWindows = 2;
constexpr double kSmallSample = 1.1;  // A deviation of ten values is smaller than that of many.
constexpr size_t kWindowsKept = 100;
// Before so many windows the noise between them is not known, and kEarlyNoise is assumed.
constexpr size_t kWindowsLeast = 10;
constexpr size_t kWindowsEnough = 30;
constexpr double kLeastShare = 0.5;  // Ranks' steps change together, so windows change less.
constexpr double kEarlyNoise = 0.15 / kNoiseFactor;
constexpr size_t kBlocksKept = 256;
constexpr int64_t kBlocksOfWindowMax = 64;
constexpr std::array<const char*, 4> kPartNames = {"data", "forward", "backward", "update"};

double MedianOf(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  const size_t half = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(half),
                   values.end());
  const double upper = values[half];
  if (values.size() % 2 != 0) {
    return upper;
  }
  return (upper +
          *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(half))) /
         2;
}

// The median absolute deviation from the median, as the sigma of a normal distribution.
double SpreadOf(const std::vector<double>& values) {
  const double middle = MedianOf(values);
  std::vector<double> distances;
  distances.reserve(values.size());
  for (const double value : values) {
    distances.push_back(std::abs(value - middle));
  }
  return kMadToSigma * MedianOf(std::move(distances));
}

// The same of the slower half alone: of two kinds of machine, the deviation would be 0.
double UpperSpreadOf(std::vector<double> values) {
  const double middle = MedianOf(values);
  const size_t at = (3 * values.size() + 3) / 4 - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return kMadToSigma * (values[at] - middle);
}

double BusySeconds(const StepTimes& times) {
  return times.data_s + times.forward_s + times.backward_s + times.update_s;
}

BlockTimes MediansOf(int64_t block, const std::vector<StepTimes>& steps, double cpu_wait) {
  std::array<std::vector<double>, 6> columns;
  for (const StepTimes& step : steps) {
    const std::array<double, 6> row = {step.whole_s,   BusySeconds(step), step.data_s,
                                       step.forward_s, step.backward_s,   step.update_s};
    for (size_t i = 0; i < row.size(); ++i) {
      columns.at(i).push_back(row.at(i));
    }
  }
  BlockTimes times{.block = block, .whole_s = MedianOf(columns[0]), .busy_s = MedianOf(columns[1])};
  times.spread = times.busy_s > 0 ? SpreadOf(columns[1]) / times.busy_s : 0;
  for (size_t part = 0; part < times.parts_s.size(); ++part) {
    times.parts_s.at(part) = MedianOf(columns.at(part + 2));
  }
  times.cpu_wait = cpu_wait;
  return times;
}

// The times of one rank in several blocks. Of its own work the median counts, so that a turn of
// another program counts for nothing if it is shorter than half of the window.
BlockTimes Joined(const std::vector<BlockTimes>& blocks) {
  BlockTimes joined = blocks.front();
  std::vector<double> busy = {joined.busy_s};
  for (size_t i = 1; i < blocks.size(); ++i) {
    const BlockTimes& block = blocks[i];
    joined.whole_s += block.whole_s;
    joined.spread += block.spread;
    joined.cpu_wait += block.cpu_wait;
    busy.push_back(block.busy_s);
    for (size_t part = 0; part < joined.parts_s.size(); ++part) {
      joined.parts_s.at(part) += block.parts_s.at(part);
    }
  }
  const auto count = static_cast<double>(blocks.size());
  joined.whole_s /= count;
  joined.busy_s = MedianOf(std::move(busy));
  joined.spread /= count * std::sqrt(count);  // Blocks have errors of their own.
  joined.cpu_wait /= count;
  for (double& part : joined.parts_s) {
    part /= count;
  }
  return joined;
}

template <typename Value>
std::vector<double> OfOthers(const std::map<int, BlockTimes>& ranks, int rank, Value value) {
  std::vector<double> values;
  for (const auto& [other, times] : ranks) {
    if (other != rank) {
      values.push_back(value(times));
    }
  }
  return values;
}

double BusyOf(const BlockTimes& times) { return times.busy_s; }

// By how much the rank is slower than the median of the others.
double ScoreOf(const std::map<int, BlockTimes>& ranks, int rank) {
  const double others = MedianOf(OfOthers(ranks, rank, BusyOf));
  return others > 0 ? ranks.at(rank).busy_s / others - 1 : 0;
}

const char* SlowestPart(const std::map<int, BlockTimes>& ranks, int rank) {
  size_t slowest = 0;
  double most = -1;
  for (size_t part = 0; part < kPartNames.size(); ++part) {
    const double others =
        MedianOf(OfOthers(ranks, rank, [part](const BlockTimes& t) { return t.parts_s.at(part); }));
    if (const double excess = ranks.at(rank).parts_s.at(part) - others; excess > most) {
      most = excess;
      slowest = part;
    }
  }
  return kPartNames.at(slowest);
}

bool IsMachineBusy(const std::map<int, BlockTimes>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [](const auto& entry) { return entry.second.cpu_wait > kBusyMachine; });
}

}  // namespace

void BlockCollector::Take(const StepTimes& times, double cpu_wait,
                          std::vector<BlockTimes>& blocks) {
  const int64_t block = times.step / kBlockSteps;
  if (times.step < 0 || block < block_ || BusySeconds(times) <= 0) {
    return;
  }
  if (block != block_) {
    block_ = block;
    steps_.clear();
  }
  steps_.push_back(times);
  if (static_cast<int64_t>(steps_.size()) == kBlockSteps) {
    blocks.push_back(MediansOf(block, steps_, cpu_wait));
  }
}

Json BlockJson(int rank, const BlockTimes& block) {
  const auto rounded = [](double value) { return std::round(value * 1e7) / 1e7; };
  const auto& parts = block.parts_s;
  return {rank,
          block.block,
          rounded(block.whole_s),
          rounded(block.busy_s),
          rounded(block.spread),
          rounded(parts[0]),
          rounded(parts[1]),
          rounded(parts[2]),
          rounded(parts[3]),
          rounded(block.cpu_wait)};
}

std::vector<std::pair<int, BlockTimes>> BlocksIn(const Json& json) {
  std::vector<std::pair<int, BlockTimes>> blocks;
  for (const Json& row : json.is_array() ? json : Json::array()) {
    const bool good = row.is_array() && row.size() == 10 && row[0].is_number_integer() &&
                      row[1].is_number_integer() &&
                      std::all_of(row.begin() + 2, row.end(),
                                  [](const Json& value) { return value.is_number(); });
    if (!good) {
      continue;
    }
    const auto number = [&row](size_t i) { return row[i].get<double>(); };
    blocks.emplace_back(row[0].get<int>(),
                        BlockTimes{.block = row[1].get<int64_t>(),
                                   .whole_s = number(2),
                                   .busy_s = number(3),
                                   .spread = number(4),
                                   .parts_s = {number(5), number(6), number(7), number(8)},
                                   .cpu_wait = number(9)});
  }
  return blocks;
}

void StragglerWindows::Take(int rank, const BlockTimes& block) {
  if (rank < 0 || rank >= world_size_ || world_size_ < 2) {
    return;
  }
  blocks_[block.block].emplace(rank, block);
  while (blocks_.size() > kBlocksKept) {
    blocks_.erase(blocks_.begin());
  }
}

int64_t StragglerWindows::BlocksOfWindow(const std::map<int, BlockTimes>& block) const {
  const double seconds =
      MedianOf(OfOthers(block, -1, [](const BlockTimes& t) { return t.whole_s; })) *
      static_cast<double>(kBlockSteps);
  return seconds <= 0 ? 1
                      : std::min(kBlocksOfWindowMax,
                                 static_cast<int64_t>(std::ceil(kWindowSecondsLeast / seconds)));
}

// The next blocks that all ranks have, as one window. False: they are not there yet.
bool StragglerWindows::NextWindow(Window& window) {
  const auto is_whole = [this](const auto& entry) {
    return static_cast<int>(entry.second.size()) == world_size_;
  };
  const auto first = std::find_if(blocks_.begin(), blocks_.end(), is_whole);
  if (first == blocks_.end()) {
    return false;
  }
  const int64_t count = length_ == WindowLength::kBlock ? 1 : BlocksOfWindow(first->second);
  std::map<int, std::vector<BlockTimes>> by_rank;
  auto end = first;
  int64_t taken = 0;
  for (; end != blocks_.end() && taken < count; ++end) {
    if (!is_whole(*end)) {
      continue;  // A message was lost, or has not come; the others are as good.
    }
    for (const auto& [rank, block] : end->second) {
      by_rank[rank].push_back(block);
    }
    ++taken;
    window.last_block = end->first;
  }
  if (taken < count) {
    return false;
  }
  window.first_block = first->first;
  for (const auto& [rank, blocks] : by_rank) {
    window.ranks[rank] = Joined(blocks);
  }
  blocks_.erase(blocks_.begin(), end);
  return true;
}

// How much the score of two windows changes by chance.
double StragglerWindows::Noise() const {
  const double of_steps =
      MedianOf({spreads_.begin(), spreads_.end()}) * kMedianError * kSmallSample *
      std::sqrt((1 + 1 / static_cast<double>(world_size_ - 1)) / (kWindows * kBlockSteps));
  if (spreads_.size() < kWindowsLeast) {
    return std::max(of_steps, kEarlyNoise);
  }
  std::vector<double> distances;
  for (const auto& [rank, record] : records_) {
    const double middle = MedianOf({record.scores.begin(), record.scores.end()});
    for (const double score : record.scores) {
      distances.push_back(std::abs(score - middle));
    }
  }
  const double of_windows = kMadToSigma * MedianOf(std::move(distances));
  if (spreads_.size() >= kWindowsEnough) {
    return std::max(of_windows, kLeastShare * of_steps);
  }
  // The deviation of few windows is itself chance.
  const double noteworthy = 1.5 + 15 / static_cast<double>(spreads_.size());
  return of_windows > noteworthy * of_steps ? of_windows : of_steps;
}

double StragglerWindows::Threshold(const Window& window, int rank) const {
  const std::vector<double> others = OfOthers(window.ranks, rank, BusyOf);
  const double middle = MedianOf(others);
  // Two others say nothing about how ranks differ.
  const double difference = others.size() < 3 || middle <= 0 ? 0 : UpperSpreadOf(others) / middle;
  return std::max({kSlowerLeast, kNoiseFactor * noise_, kOthersFactor * difference});
}

void StragglerWindows::Judge(const Window& window, std::vector<Straggler>& found) {
  const bool is_busy = IsMachineBusy(window.ranks);
  spreads_.push_back(
      MedianOf(OfOthers(window.ranks, -1, [](const BlockTimes& times) { return times.spread; })));
  if (spreads_.size() > kWindowsKept) {
    spreads_.pop_front();
  }
  noise_ = Noise();
  std::map<int, double> scores;
  for (const auto& [rank, times] : window.ranks) {
    const double score = ScoreOf(window.ranks, rank);
    Record& record = records_[rank];
    const double both = (score + record.last) / 2;
    record.last = score;
    scores[rank] = both;
    const double threshold = Threshold(window, rank);
    const bool is_excused = length_ == WindowLength::kBlock && times.cpu_wait > kTakenCpu;
    if (is_busy || is_excused || score <= kOneWindowShare * threshold) {
      record.over = 0;
      record.under += score < kSlowerLeast / 2 ? 1 : 0;
      record.named = record.named && record.under < kWindows;
      continue;
    }
    record.under = 0;
    record.first_block = record.over == 0 ? window.first_block : record.first_block;
    if (++record.over >= kWindows && both > threshold && !record.named) {
      record.named = true;
      found.push_back({.rank = rank,
                       .slower = both,
                       .part = SlowestPart(window.ranks, rank),
                       .first_step = record.first_block * kBlockSteps,
                       .last_step = (window.last_block + 1) * kBlockSteps - 1});
    }
  }
  for (const auto& [rank, score] : scores) {
    std::deque<double>& kept = records_[rank].scores;
    kept.push_back(score);
    if (kept.size() > kWindowsKept) {
      kept.pop_front();
    }
  }
}

std::vector<Straggler> StragglerWindows::Find() {
  std::vector<Straggler> found;
  for (Window window; NextWindow(window); window = Window()) {
    if (length_ == WindowLength::kTurns || BlocksOfWindow(window.ranks) > 1) {
      Judge(window, found);
    }
  }
  return found;
}

bool StragglerWindows::IsNamed(int rank) const {
  const auto record = records_.find(rank);
  return record != records_.end() && record->second.named;
}

void StragglerFinder::Take(int rank, const BlockTimes& block) {
  blocks_.Take(rank, block);
  turns_.Take(rank, block);
}

std::vector<Straggler> StragglerFinder::Find() {
  std::vector<Straggler> found;
  for (StragglerWindows* const windows : {&blocks_, &turns_}) {
    for (const Straggler& straggler : windows->Find()) {
      if (named_.insert(straggler.rank).second) {
        found.push_back(straggler);
      }
    }
  }
  std::erase_if(named_,
                [this](int rank) { return !blocks_.IsNamed(rank) && !turns_.IsNamed(rank); });
  return found;
}

}  // namespace dtrain::launcher
