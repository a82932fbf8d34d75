// Schedules run by a simulation in which a send ends only when it is received, so that what ends
// here cannot block on any transport. Elements remember which ranks were summed in which order.
#include "comm/collectives/schedule.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtrain::comm {
namespace {

// What an element holds: place `place` of the input, summed over the ranks in `order`, a
// hexadecimal digit each, `ranks` of them, the first one highest.
struct Element {
  size_t place = SIZE_MAX;
  uint64_t order = 0;
  int ranks = 0;
  bool complete = false;

  bool operator==(const Element& other) const {
    return place == other.place && order == other.order && ranks == other.ranks &&
           complete == other.complete;
  }
};

Element Original(size_t place, int rank) { return {place, static_cast<uint64_t>(rank), 1, false}; }

// The sum over all ranks from `first` on.
Element Sum(size_t place, int first, int size) {
  Element sum{place, 0, size, true};
  for (int i = 0; i < size; ++i) {
    sum.order = sum.order << 4 | static_cast<uint64_t>((first + i) % size);
  }
  return sum;
}

bool Overlap(const Range& a, const Range& b) {
  return a.area == b.area && a.start < b.start + b.count && b.start < a.start + a.count;
}

class Simulation {
 public:
  // `in_place`: kInput is kOutput.
  Simulation(const ScheduleOptions& options, bool in_place) : in_place_(in_place) {
    ScheduleOptions own = options;
    for (own.rank = 0; own.rank < options.size; ++own.rank) {
      ranks_.emplace_back(own);
    }
  }

  std::vector<Element>& input(int rank) { return At(rank).input; }
  std::vector<Element>& output(int rank) { return in_place_ ? At(rank).input : At(rank).output; }

  // Empty: every rank came to its end; else what is wrong.
  std::string Run() {
    for (Rank& rank : ranks_) {
      rank.scratch.resize(rank.schedule.scratch_elements());
      Enter(rank);
    }
    bool moved = true;
    while (moved && problem_.empty()) {
      moved = false;
      for (size_t from = 0; from < ranks_.size(); ++from) {
        for (size_t to = 0; to < ranks_.size(); ++to) {
          moved = Meet(from, to) || moved;
        }
        moved = Leave(ranks_[from]) || moved;
      }
    }
    for (const Rank& rank : ranks_) {
      if (problem_.empty() && rank.index < rank.schedule.steps()) {
        problem_ = absl::StrFormat("rank %d waits for ever in step %d of %d", rank.number,
                                   rank.index, rank.schedule.steps());
      }
    }
    return problem_;
  }

 private:
  struct Rank {
    explicit Rank(const ScheduleOptions& options)
        : number(options.rank),
          schedule(options),
          sends(static_cast<size_t>(options.size)),
          receives(static_cast<size_t>(options.size)) {}
    int number;
    Schedule schedule;
    size_t index = 0;
    Step step;
    // By peer; empty messages are not made.
    std::vector<std::deque<Range>> sends;
    std::vector<std::deque<Range>> receives;
    std::vector<Element> input;
    std::vector<Element> output;
    std::vector<Element> scratch;
  };

  Rank& At(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  Element* Place(Rank& rank, const Range& range) {
    auto& area = range.area == Area::kScratch                ? rank.scratch
                 : range.area == Area::kOutput && !in_place_ ? rank.output
                                                             : rank.input;
    if (range.start + range.count > area.size()) {
      problem_ = absl::StrFormat("rank %d step %d: [%d, +%d) of an area of %d", rank.number,
                                 rank.index, range.start, range.count, area.size());
      return nullptr;
    }
    return area.data() + range.start;
  }

  void Enter(Rank& rank) {
    if (rank.index >= rank.schedule.steps()) {
      return;
    }
    rank.schedule.Fill(rank.index, rank.step);
    for (const Message& message : rank.step.sends) {
      Queue(rank, message, rank.sends);
    }
    for (const Message& message : rank.step.receives) {
      Queue(rank, message, rank.receives);
      for (const Message& other : rank.step.sends) {
        if (Overlap(message.range, other.range)) {
          problem_ = absl::StrCat("rank ", rank.number, " sends what it receives");
        }
      }
      for (const Message& other : rank.step.receives) {
        if (&message != &other && Overlap(message.range, other.range)) {
          problem_ = absl::StrCat("rank ", rank.number, " receives twice into one place");
        }
      }
    }
  }

  void Queue(const Rank& rank, const Message& message, std::vector<std::deque<Range>>& lanes) {
    if (message.peer == rank.number) {
      problem_ = "a message to itself";
    } else if (message.range.count != 0) {
      lanes[static_cast<size_t>(message.peer)].push_back(message.range);
    }
  }

  // Whether a message went from one to the other.
  bool Meet(size_t from, size_t to) {
    auto& sends = ranks_[from].sends[to];
    auto& receives = ranks_[to].receives[from];
    if (sends.empty() || receives.empty() || !problem_.empty()) {
      return false;
    }
    if (sends.front().count != receives.front().count) {
      problem_ = absl::StrFormat("rank %d sends %d elements, rank %d receives %d", from,
                                 sends.front().count, to, receives.front().count);
      return false;
    }
    const Element* const source = Place(ranks_[from], sends.front());
    Element* const target = Place(ranks_[to], receives.front());
    if (source != nullptr && target != nullptr) {
      std::copy(source, source + sends.front().count, target);
    }
    sends.pop_front();
    receives.pop_front();
    return true;
  }

  // Whether `rank` had made all transfers of its step and went on.
  bool Leave(Rank& rank) {
    const auto idle = [](const std::deque<Range>& lane) { return lane.empty(); };
    if (rank.index >= rank.schedule.steps() || !problem_.empty() ||
        !std::all_of(rank.sends.begin(), rank.sends.end(), idle) ||
        !std::all_of(rank.receives.begin(), rank.receives.end(), idle)) {
      return false;
    }
    Reduce(rank);
    ++rank.index;
    Enter(rank);
    return true;
  }

  void Reduce(Rank& rank) {
    const Step& step = rank.step;
    std::vector<Element> result(step.output.count);
    for (size_t input = 0; input < step.inputs.size(); ++input) {
      const Range& range = step.inputs[input];
      const Element* const values = Place(rank, range);
      if (values == nullptr || range.count != result.size()) {
        problem_ += " in a sum";
        return;
      }
      for (size_t i = 0; i < result.size(); ++i) {
        const Element& value = values[i];
        if (value.complete || (input != 0 && value.place != result[i].place)) {
          problem_ = absl::StrFormat("rank %d step %d adds another element's value", rank.number,
                                     rank.index);
          return;
        }
        result[i] = {value.place, result[i].order << 4 * value.ranks | value.order,
                     result[i].ranks + value.ranks, step.complete};
      }
    }
    if (step.inputs.empty() || result.empty()) {
      return;
    }
    if (Element* const output = Place(rank, step.output); output != nullptr) {
      std::copy(result.begin(), result.end(), output);
    }
  }

  const bool in_place_;
  std::deque<Rank> ranks_;
  std::string problem_;
};

struct Shape {
  int size;
  size_t count;
  Algorithm algorithm;
};

// Many chunks with few elements: those of the schedule are as many bytes as an element claims.
constexpr size_t kElementBytes = size_t{16} << 10;

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const int size : {2, 3, 4, 5, 6, 7, 8, 9, 16}) {
    for (const size_t count : {0, 1, 2, 15, 63, 64, 65, 129, 700, 1023, 1024, 3001}) {
      for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
        shapes.push_back({size, count, algorithm});
      }
    }
  }
  return shapes;
}

std::string Name(const Shape& shape) {
  return absl::StrFormat("%d ranks, %d elements, %s", shape.size, shape.count,
                         shape.algorithm == Algorithm::kRing ? "ring" : "direct");
}

ScheduleOptions Options(CallKind kind, const Shape& shape, int root = -1) {
  return {.kind = kind,
          .algorithm = shape.algorithm,
          .size = shape.size,
          .root = root,
          .count = shape.count,
          .element_bytes = kElementBytes};
}

int OwnerOf(size_t place, const Shape& shape) {
  int owner = 0;
  while (place >= SliceOf(shape.count, shape.size, owner).start +
                      SliceOf(shape.count, shape.size, owner).count) {
    ++owner;
  }
  return owner;
}

// Whose value comes first in the sum of slice or part `owner`.
int FirstOf(int owner, const Shape& shape) {
  return shape.algorithm == Algorithm::kRing ? (owner + 1) % shape.size : 0;
}

TEST(ScheduleTest, AllReduceEndsWithEveryRanksValuesInThePromisedOrder) {
  for (const Shape& shape : Shapes()) {
    Simulation simulation(Options(CallKind::kAllReduce, shape), /*in_place=*/true);
    for (int rank = 0; rank < shape.size; ++rank) {
      for (size_t i = 0; i < shape.count; ++i) {
        simulation.input(rank).push_back(Original(i, rank));
      }
    }
    ASSERT_EQ(simulation.Run(), "") << Name(shape);
    for (size_t i = 0; i < shape.count; ++i) {
      const Element want = Sum(i, FirstOf(OwnerOf(i, shape), shape), shape.size);
      for (int rank = 0; rank < shape.size; ++rank) {
        ASSERT_TRUE(simulation.output(rank)[i] == want) << Name(shape) << " element " << i;
      }
    }
  }
}

// [size x count] of each rank.
void FillParts(Simulation& simulation, const Shape& shape) {
  for (int rank = 0; rank < shape.size; ++rank) {
    for (size_t i = 0; i < shape.count * static_cast<size_t>(shape.size); ++i) {
      simulation.input(rank).push_back(Original(i, rank));
    }
  }
}

TEST(ScheduleTest, ReduceScatterGivesEachRankItsPartAndLeavesTheInput) {
  for (const Shape& shape : Shapes()) {
    Simulation simulation(Options(CallKind::kReduceScatter, shape), /*in_place=*/false);
    FillParts(simulation, shape);
    for (int rank = 0; rank < shape.size; ++rank) {
      simulation.output(rank).resize(shape.count);
    }
    const std::vector<Element> before = simulation.input(0);
    ASSERT_EQ(simulation.Run(), "") << Name(shape);
    EXPECT_TRUE(simulation.input(0) == before);
    for (int rank = 0; rank < shape.size; ++rank) {
      for (size_t i = 0; i < shape.count; ++i) {
        const size_t place = static_cast<size_t>(rank) * shape.count + i;
        ASSERT_TRUE(simulation.output(rank)[i] == Sum(place, FirstOf(rank, shape), shape.size))
            << Name(shape) << " rank " << rank << " element " << i;
      }
    }
  }
}

TEST(ScheduleTest, AllGatherGivesEveryRankEveryPart) {
  for (const Shape& shape : Shapes()) {
    Simulation simulation(Options(CallKind::kAllGather, shape), /*in_place=*/false);
    for (int rank = 0; rank < shape.size; ++rank) {
      for (size_t i = 0; i < shape.count; ++i) {
        simulation.input(rank).push_back(Original(i, rank));
      }
      simulation.output(rank).resize(shape.count * static_cast<size_t>(shape.size));
    }
    ASSERT_EQ(simulation.Run(), "") << Name(shape);
    for (int rank = 0; rank < shape.size; ++rank) {
      for (size_t i = 0; i < simulation.output(rank).size(); ++i) {
        ASSERT_TRUE(simulation.output(rank)[i] ==
                    Original(i % shape.count, static_cast<int>(i / shape.count)))
            << Name(shape) << " rank " << rank << " element " << i;
      }
    }
  }
}

TEST(ScheduleTest, BroadcastGivesEveryRankTheRootsValues) {
  for (const Shape& shape : Shapes()) {
    for (int root = 0; root < shape.size && shape.algorithm == Algorithm::kDirect; ++root) {
      Simulation simulation(Options(CallKind::kBroadcast, shape, root), /*in_place=*/true);
      for (int rank = 0; rank < shape.size; ++rank) {
        for (size_t i = 0; i < shape.count; ++i) {
          simulation.input(rank).push_back(Original(i, rank));
        }
      }
      ASSERT_EQ(simulation.Run(), "") << Name(shape);
      for (int rank = 0; rank < shape.size; ++rank) {
        for (size_t i = 0; i < shape.count; ++i) {
          ASSERT_TRUE(simulation.output(rank)[i] == Original(i, root)) << Name(shape);
        }
      }
    }
  }
}

TEST(ScheduleTest, AllToAllGivesRankRPartROfEveryRank) {
  for (const Shape& shape : Shapes()) {
    Simulation simulation(Options(CallKind::kAllToAll, {shape.size, shape.count}), false);
    FillParts(simulation, shape);
    for (int rank = 0; rank < shape.size; ++rank) {
      simulation.output(rank).resize(simulation.input(rank).size());
    }
    ASSERT_EQ(simulation.Run(), "") << Name(shape);
    for (int rank = 0; rank < shape.size; ++rank) {
      for (size_t i = 0; i < simulation.output(rank).size(); ++i) {
        const size_t place = static_cast<size_t>(rank) * shape.count + i % shape.count;
        ASSERT_TRUE(simulation.output(rank)[i] ==
                    Original(place, static_cast<int>(i / shape.count)))
            << Name(shape);
      }
    }
  }
}

TEST(ScheduleTest, TheSimulationNoticesAWrongSchedule) {
  // Rank 1 believes in another count than rank 0.
  const Shape shape{2, 700, Algorithm::kRing};
  Simulation one(Options(CallKind::kAllReduce, shape), true);
  for (int rank = 0; rank < 2; ++rank) {
    one.input(rank).assign(700, Original(static_cast<size_t>(rank), rank));
  }
  EXPECT_NE(one.Run(), "");
}

}  // namespace
}  // namespace dtrain::comm
