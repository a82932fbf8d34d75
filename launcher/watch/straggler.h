// Finds ranks that are slower than the others, from the time that each spends on work of its own in
// a step. Pure: no clock. Not thread-safe.
//
// In data-parallel training all steps take as long as those of the slowest rank. Waiting for others
// is therefore left out, and what remains is compared: data, forward, backward and update. Steps
// are taken in blocks of kBlockSteps, of which the median counts, so that a burst of a few steps
// counts for nothing. In a window of one or more blocks each rank is compared with the median of
// the others. A rank is named when it is slower in two windows, one after the other, by more than
// the noise explains: the noise of single steps, that of the windows so far, and the difference
// between the other ranks, each as a median absolute deviation. The noise of the windows so far
// covers slow changes of speed, such as other programs cause.
//
// A window is one block. The scheduler may take a CPU away for longer than a block of short steps
// takes, so a rank that waited for a CPU is not judged by it, but by windows of more blocks, which
// are longer than the scheduler's turns (0.4 s).
//
// Where even the ranks that wait least for a CPU wait for one, other programs slow the machine down
// and who is slow is chance: then nobody is named.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/agent_channel.h"
#include "base/json.h"

namespace dtrain::launcher {

inline constexpr int64_t kBlockSteps = 10;
// A rank that is slower by less is never named.
inline constexpr double kSlowerLeast = 0.12;

// The medians of one rank's times in the steps [block x kBlockSteps, ...).
struct BlockTimes {
  int64_t block = 0;
  double whole_s = 0;
  double busy_s = 0;                // Work of its own in a step.
  double spread = 0;                // How busy_s differs between steps, as a share (1.4826 MAD).
  std::array<double, 4> parts_s{};  // Data, forward, backward, update.
  double cpu_wait = 0;              // Share of the time in which it was ready, without a CPU.
};

// Collects the steps of one rank into blocks. Steps come in order; some may be lost.
class BlockCollector {
 public:
  // The block that this step completes is appended to `blocks`.
  void Take(const StepTimes& times, double cpu_wait, std::vector<BlockTimes>& blocks);

 private:
  int64_t block_ = -1;
  std::vector<StepTimes> steps_;
};

Json BlockJson(int rank, const BlockTimes& block);
// The blocks of a summary, as (rank, block). What is malformed is left out.
std::vector<std::pair<int, BlockTimes>> BlocksIn(const Json& json);

struct Straggler {
  int rank = 0;
  double slower = 0;       // 0.2: its work takes 20 % longer than that of the others.
  const char* part = "";   // "data", "forward", "backward", "update": where most of that is.
  int64_t first_step = 0;  // The first step of the two windows.
  int64_t last_step = 0;
};

// The blocks of a window.
enum class WindowLength {
  kBlock,  // One, unless that is as long as the other kind is.
  kTurns,  // So many that they are longer than the scheduler's turns.
};

// Compares the ranks in windows of one length.
class StragglerWindows {
 public:
  StragglerWindows(int world_size, WindowLength length)
      : world_size_(world_size), length_(length) {}

  void Take(int rank, const BlockTimes& block);
  // The ranks that have become stragglers since the last call.
  std::vector<Straggler> Find();
  // Whether the rank is a straggler and has not been as fast as the others since.
  bool IsNamed(int rank) const;

 private:
  struct Window {
    std::map<int, BlockTimes> ranks;
    int64_t first_block = 0;
    int64_t last_block = 0;
  };
  struct Record {
    double last = 0;            // Its score in the last window.
    std::deque<double> scores;  // One score for each two windows.
    int over = 0;               // Windows in a row.
    int under = 0;
    bool named = false;
    int64_t first_block = 0;  // Where the first window in a row begins.
  };
  bool NextWindow(Window& window);
  int64_t BlocksOfWindow(const std::map<int, BlockTimes>& block) const;
  double Noise() const;
  void Judge(const Window& window, std::vector<Straggler>& found);
  double Threshold(const Window& window, int rank) const;

  const int world_size_;
  const WindowLength length_;
  std::map<int64_t, std::map<int, BlockTimes>> blocks_;  // By number of the block, then by rank.
  std::map<int, Record> records_;
  std::deque<double> spreads_;  // The spread of steps in each of the last windows.
  double noise_ = 0;            // Noise() in the window that is judged.
};

class StragglerFinder {
 public:
  explicit StragglerFinder(int world_size)
      : blocks_(world_size, WindowLength::kBlock), turns_(world_size, WindowLength::kTurns) {}

  void Take(int rank, const BlockTimes& block);
  // The ranks that have become stragglers since the last call. A rank is named again only after it
  // was as fast as the others.
  std::vector<Straggler> Find();

 private:
  StragglerWindows blocks_;
  StragglerWindows turns_;
  std::set<int> named_;
};

}  // namespace dtrain::launcher
