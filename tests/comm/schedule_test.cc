// Schedules run by a simulation in which a send ends only when it is received, so that a schedule
// that ends here cannot block on any transport. Elements remember which ranks were summed in which
// order.
#include "comm/collectives/schedule.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/numeric/prng.h"

namespace dtrain::comm::schedule_test {
namespace {

// The content of an element: place `place` of the input, summed over `ranks` ranks; `order`
// identifies the order and the brackets of the sum.
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

Element Original(size_t place, int rank) {
  return {place, static_cast<uint64_t>(rank) + 1, 1, false};
}

// (a + b), and not (b + a).
Element Add(const Element& a, const Element& b) {
  const uint64_t order = SplitMix64(a.order * 0x9e3779b97f4a7c15ULL + b.order).Next();
  return {a.place, order, a.ranks + b.ranks, false};
}

Element AddUp(std::vector<Element> values, bool pairwise) {
  while (pairwise && values.size() > 1) {
    for (size_t i = 0; i < values.size() / 2; ++i) {
      values[i] = Add(values[2 * i], values[2 * i + 1]);
    }
    values.resize(values.size() / 2);
  }
  for (size_t i = 1; i < values.size(); ++i) {
    values[0] = Add(values[0], values[i]);
  }
  return values[0];
}

// The sum over all ranks from `first` on.
Element Sum(size_t place, int first, int size, bool pairwise) {
  std::vector<Element> values;
  for (int i = 0; i < size; ++i) {
    values.push_back(Original(place, (first + i) % size));
  }
  Element sum = AddUp(std::move(values), pairwise);
  sum.complete = true;
  return sum;
}

bool Overlap(const Range& a, const Range& b) {
  return a.area == b.area && a.start < b.start + b.count && b.start < a.start + a.count;
}

class Simulation {
 public:
  // `in_place`: kInput is kOutput. `late`: deferred sums run at the last possible moment, otherwise
  // at the first.
  Simulation(const ScheduleOptions& options, bool in_place, bool late = true)
      : in_place_(in_place), late_(late) {
    ScheduleOptions own = options;
    for (own.rank = 0; own.rank < options.size; ++own.rank) {
      ranks_.emplace_back(own);
    }
  }

  std::vector<Element>& input(int rank) { return At(rank).input; }
  std::vector<Element>& output(int rank) { return in_place_ ? At(rank).input : At(rank).output; }

  // The error that was found; empty when every rank came to its end.
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
    Step due;  // Its sum runs after the transfers of `step`.
    // By peer; there are no empty messages.
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
    CheckDeferred(rank);
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

  // A deferred sum and the transfers that run beside it touch different places.
  void CheckDeferred(const Rank& rank) {
    const auto touches = [&](const Range& range, const Range& other) {
      if (Overlap(range, other) && range.count != 0 && other.count != 0) {
        problem_ =
            absl::StrFormat("rank %d step %d moves what is being summed", rank.number, rank.index);
      }
    };
    for (const Message& message : rank.step.receives) {
      touches(message.range, rank.due.output);
      for (const Range& input : rank.due.inputs) {
        touches(message.range, input);
      }
    }
    for (const Message& message : rank.step.sends) {
      touches(message.range, rank.due.output);
      for (const Range& input : rank.due.inputs) {  // Pairwise sums are stored in scratch.
        if (rank.due.pairwise && input.area == Area::kScratch) {
          touches(message.range, input);
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

  // Whether `rank` had finished all transfers of its step and went on.
  bool Leave(Rank& rank) {
    const auto idle = [](const std::deque<Range>& lane) { return lane.empty(); };
    if (rank.index >= rank.schedule.steps() || !problem_.empty() ||
        !std::all_of(rank.sends.begin(), rank.sends.end(), idle) ||
        !std::all_of(rank.receives.begin(), rank.receives.end(), idle)) {
      return false;
    }
    Reduce(rank, rank.due);
    rank.due = Step();
    if (rank.step.deferred && late_ && rank.index + 1 < rank.schedule.steps()) {
      rank.due = rank.step;
    } else {
      Reduce(rank, rank.step);
    }
    ++rank.index;
    Enter(rank);
    return true;
  }

  void Reduce(Rank& rank, const Step& step) {
    std::vector<std::vector<Element>> terms(step.output.count);
    for (const Range& range : step.inputs) {
      const Element* const values = Place(rank, range);
      if (values == nullptr || range.count != terms.size()) {
        problem_ += " in a sum";
        return;
      }
      for (size_t i = 0; i < terms.size(); ++i) {
        if (values[i].complete || (!terms[i].empty() && values[i].place != terms[i][0].place)) {
          problem_ = absl::StrFormat("rank %d step %d adds another element's value", rank.number,
                                     rank.index);
          return;
        }
        terms[i].push_back(values[i]);
      }
      if (step.pairwise && range.area == Area::kScratch) {  // The values in scratch are lost.
        std::fill_n(Place(rank, range), range.count, Element());
      }
    }
    if (step.inputs.empty() || terms.empty()) {
      return;
    }
    std::vector<Element> result;
    for (std::vector<Element>& values : terms) {
      result.push_back(AddUp(std::move(values), step.pairwise));
      result.back().complete = step.complete;
    }
    if (Element* const output = Place(rank, step.output); output != nullptr) {
      std::copy(result.begin(), result.end(), output);
    }
  }

  const bool in_place_;
  const bool late_;
  std::deque<Rank> ranks_;
  std::string problem_;
};

struct Shape {
  int size;
  size_t count;
  Algorithm algorithm = Algorithm::kDirect;
  bool pairwise = false;
};

// Whether the shape's sum is pairwise.
bool SumsInPairs(const Shape& shape) {
  return shape.pairwise || shape.algorithm == Algorithm::kDoubling ||
         shape.algorithm == Algorithm::kHalving;
}

// With this element size few elements fill a chunk, so that there are many chunks.
constexpr size_t kElementBytes = size_t{16} << 10;

// The shapes for which `kind` has a schedule.
std::vector<Shape> Shapes(CallKind kind) {
  std::vector<Shape> shapes;
  for (const int size : {2, 3, 4, 5, 6, 7, 8, 9, 16}) {
    for (const size_t count : {0, 1, 2, 15, 63, 64, 65, 129, 700, 1023, 1024, 3001}) {
      for (const Algorithm algorithm :
           {Algorithm::kDirect, Algorithm::kRing, Algorithm::kDoubling, Algorithm::kHalving}) {
        if (Schedule::HasForm(kind, algorithm, size)) {
          shapes.push_back({size, count, algorithm});
        }
      }
      if (kind == CallKind::kAllReduce && (size & (size - 1)) == 0) {
        shapes.push_back({size, count, Algorithm::kDirect, /*pairwise=*/true});
      }
    }
  }
  return shapes;
}

std::string Name(const Shape& shape) {
  const char* const names[] = {"automatic", "direct", "ring", "doubling", "halving"};
  return absl::StrFormat("%d ranks, %d elements, %s%s", shape.size, shape.count,
                         names[static_cast<int>(shape.algorithm)],
                         shape.pairwise ? " in pairs" : "");
}

ScheduleOptions Options(CallKind kind, const Shape& shape, int root = -1) {
  return {.kind = kind,
          .algorithm = shape.algorithm,
          .size = shape.size,
          .root = root,
          .count = shape.count,
          .element_bytes = kElementBytes,
          .pairwise = shape.pairwise};
}

int OwnerOf(size_t place, const Shape& shape) {
  int owner = 0;
  while (place >= SliceOf(shape.count, shape.size, owner).start +
                      SliceOf(shape.count, shape.size, owner).count) {
    ++owner;
  }
  return owner;
}

// The rank whose value comes first in the sum of slice or part `owner`.
int FirstOf(int owner, const Shape& shape) {
  return shape.algorithm == Algorithm::kRing ? (owner + 1) % shape.size : 0;
}

TEST(ScheduleTest, AllReduceEndsWithEveryRanksValuesInThePromisedOrder) {
  for (const Shape& shape : Shapes(CallKind::kAllReduce)) {
    Simulation simulation(Options(CallKind::kAllReduce, shape), /*in_place=*/true);
    for (int rank = 0; rank < shape.size; ++rank) {
      for (size_t i = 0; i < shape.count; ++i) {
        simulation.input(rank).push_back(Original(i, rank));
      }
    }
    ASSERT_EQ(simulation.Run(), "") << Name(shape);
    for (size_t i = 0; i < shape.count; ++i) {
      const Element want =
          Sum(i, FirstOf(OwnerOf(i, shape), shape), shape.size, SumsInPairs(shape));
      for (int rank = 0; rank < shape.size; ++rank) {
        ASSERT_TRUE(simulation.output(rank)[i] == want) << Name(shape) << " element " << i;
      }
    }
  }
}

// Fills the input [size x count] of each rank.
void FillParts(Simulation& simulation, const Shape& shape) {
  for (int rank = 0; rank < shape.size; ++rank) {
    for (size_t i = 0; i < shape.count * static_cast<size_t>(shape.size); ++i) {
      simulation.input(rank).push_back(Original(i, rank));
    }
  }
}

TEST(ScheduleTest, ReduceScatterGivesEachRankItsPartAndLeavesTheInput) {
  for (const Shape& shape : Shapes(CallKind::kReduceScatter)) {
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
        ASSERT_TRUE(simulation.output(rank)[i] ==
                    Sum(place, FirstOf(rank, shape), shape.size, SumsInPairs(shape)))
            << Name(shape) << " rank " << rank << " element " << i;
      }
    }
  }
}

TEST(ScheduleTest, AllGatherGivesEveryRankEveryPart) {
  for (const Shape& shape : Shapes(CallKind::kAllGather)) {
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
  for (const Shape& shape : Shapes(CallKind::kBroadcast)) {
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
  for (const Shape& shape : Shapes(CallKind::kAllToAll)) {
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
  // Rank 1 has another count than rank 0.
  const Shape shape{2, 700, Algorithm::kRing};
  Simulation one(Options(CallKind::kAllReduce, shape), true);
  for (int rank = 0; rank < 2; ++rank) {
    one.input(rank).assign(700, Original(static_cast<size_t>(rank), rank));
  }
  EXPECT_NE(one.Run(), "");
}

}  // namespace
}  // namespace dtrain::comm::schedule_test
