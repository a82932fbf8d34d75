// A checkpoint of one precision, read by a run of another one on other ranks, at another stage: the
// fp32 weights and the optimizer states have their bits, the 2-byte weights are rounded from them,
// and the next step gives what it gives when the state is written into an engine by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "base/numeric/dtype.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/checkpoint/restore/flat_state.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::other_precision_test {
namespace {

using ::testing::HasSubstr;
using testing::RankContext;

// A tied weight, parameters smaller than the world, a frozen one and a buffer. It computes in fp32,
// whatever its weights are, so that every CPU can train it.
class Small : public torch::nn::Module {
 public:
  explicit Small(int64_t width = 5) {
    table = register_parameter("table", at::randn({7, width}) * 0.3);
    two = register_parameter("two", at::full({2}, 0.5));
    frozen =
        register_parameter("frozen", at::randint(1, 9, {width, width}) / 8,  // Exact in 2 bytes.
                           /*requires_grad=*/false);
    rest = register_parameter("rest", at::randn({13, 3}));
    register_buffer("seen", at::rand({3}));
  }
  at::Tensor Loss(const at::Tensor& tokens) {
    const at::Tensor target = tokens.remainder(7);
    const at::Tensor wide = table.to(at::kFloat);
    const at::Tensor h =
        at::embedding(wide, target).matmul(frozen.to(at::kFloat)) + two.to(at::kFloat).sum();
    return at::cross_entropy_loss((h * rest.to(at::kFloat).tanh().mean()).matmul(wide.t()), target,
                                  {}, at::Reduction::Sum);
  }
  at::Tensor table, two, frozen, rest;
};

std::vector<std::string> Bf16() { return {"bf16.enabled=true"}; }
std::vector<std::string> Bf16States() {
  return {"bf16.enabled=true", "bf16.bf16_optimizer_states=true"};
}
// Its scale has grown when the checkpoint is written.
std::vector<std::string> Fp16() {
  return {"fp16.enabled=true", "fp16.initial_scale_power=8", "fp16.loss_scale_window=2"};
}
constexpr char kOffload[] = R"(zero_optimization.offload_optimizer={"device":"cpu"})";

struct Side {
  int ranks = 1;
  int stage = 0;
  std::vector<std::string> precision = {};
  std::vector<std::string> more = {};
};

bool Has(const Side& side, absl::string_view option) {
  return std::find(side.precision.begin(), side.precision.end(), option) != side.precision.end();
}
int BitsOfWeights(const Side& side) {
  return Has(side, "bf16.enabled=true") ? 8 : Has(side, "fp16.enabled=true") ? 11 : 24;
}
int BitsOfStates(const Side& side) { return Has(side, "bf16.bf16_optimizer_states=true") ? 8 : 24; }

// The nearest number with so many significant bits, of two the even one. fp16 (11) has no steps
// smaller than 2^-24.
float Round(float value, int bits) {
  if (bits == 24 || value == 0) {
    return value;
  }
  int exponent = 0;
  std::frexp(value, &exponent);
  const int step = bits == 11 ? std::max(exponent - bits, -24) : exponent - bits;
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(double{value}, -step)), step));
}

int64_t BitsOf(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
float FloatOf(int64_t bits) {
  const auto narrow = static_cast<uint32_t>(bits);
  float value = 0;
  std::memcpy(&value, &narrow, sizeof value);
  return value;
}

// The numbers that a rank keeps of each element: its exact weights first. `place`: where `element`
// of the layout is, which is also `local` of what the rank owns.
struct Kept {
  std::string name;
  at::Tensor tensor;
  bool by_element = false;
  int64_t place(int64_t element, int64_t local) const { return by_element ? element : local; }
};

std::vector<Kept> AllKept(const EngineState& state) {
  std::vector<Kept> all;
  const at::Tensor values =
      state.shard_values.defined() ? state.shard_values : state.flat->values();
  if (state.optimizer.master.defined()) {
    all.push_back({"weights", state.optimizer.master});
  } else {
    all.push_back({"weights", values, !state.shard_values.defined()});
  }
  for (const StateSlot& slot : state.optimizer.slots) {
    all.push_back({slot.name, slot.tensor});
  }
  return all;
}

// Runs `function` on every element of a parameter that this rank owns: its number in the parameter,
// in the layout and in what the rank owns.
template <class Function>
void ForEachOwned(const EngineState& state, Function function) {
  for (const plan::LayoutEntry& entry : state.flat->layout().entries()) {
    for (const plan::OwnedRange& range : state.owned) {
      const auto both = plan::Intersect(range.flat, {entry.offset, entry.offset + entry.elements});
      for (int64_t i = both.begin; i < both.end; ++i) {
        function(entry, i - entry.offset, i, range.local_of(i));
      }
    }
  }
}

// The bits of fp32 that hold the values, by state and parameter; null: another rank's.
Json Exact(const EngineState& state) {
  Json found = Json::object();
  for (const Kept& kept : AllKept(state)) {
    const at::Tensor wide = kept.tensor.to(at::kFloat);
    const auto* const values = wide.const_data_ptr<float>();
    Json& all = found[kept.name];
    for (const plan::LayoutEntry& entry : state.flat->layout().entries()) {
      all[entry.name] = std::vector<Json>(static_cast<size_t>(entry.elements));
    }
    ForEachOwned(
        state, [&](const plan::LayoutEntry& entry, int64_t i, int64_t element, int64_t local) {
          all[entry.name][static_cast<size_t>(i)] = BitsOf(values[kept.place(element, local)]);
        });
  }
  return found;
}

absl::StatusOr<Json> Rounded(Engine& engine, const Small& model) {
  Json found = Json::object();
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const at::Tensor wide = tensor.to(at::kFloat).contiguous();
    for (int64_t i = 0; i < wide.numel(); ++i) {
      found[name].push_back(BitsOf(wide.const_data_ptr<float>()[i]));
    }
  };
  DT_RETURN_IF_ERROR(engine.WithParameters([&] {
    for (const auto& item : model.named_parameters()) {
      add(item.key(), item.value());
    }
    for (const auto& item : model.named_buffers()) {
      add(item.key(), item.value());
    }
  }));
  return found;
}

// Writes what Exact gave of all ranks into an engine, as a checkpoint of step 3 would.
absl::Status WriteByHand(const Json& exact, const Side& side, EngineState& state) {
  const auto set = [](const at::Tensor& tensor, int64_t at, float value) {
    tensor.variable_data().narrow(0, at, 1).fill_(value);
  };
  const auto value_of = [&](const std::string& what, const std::string& name, int64_t i) {
    return FloatOf(exact.at(what).at(name).at(static_cast<size_t>(i)).get<int64_t>());
  };
  for (const Kept& kept : AllKept(state)) {
    const int bits = kept.name == "weights" ? 24 : BitsOfStates(side);
    ForEachOwned(state, [&](const plan::LayoutEntry& entry, int64_t i, int64_t element,
                            int64_t local) {
      set(kept.tensor, kept.place(element, local), Round(value_of(kept.name, entry.name, i), bits));
      if (kept.name == "weights" && state.shard_values.defined()) {
        set(state.shard_values, local,
            Round(value_of(kept.name, entry.name, i), BitsOfWeights(side)));
      }
    });
  }
  for (const plan::LayoutEntry& entry : state.flat->layout().entries()) {
    for (int64_t i = 0; !state.shard_values.defined() && i < entry.elements; ++i) {
      set(state.flat->values(), entry.offset + i,
          Round(value_of("weights", entry.name, i), BitsOfWeights(side)));
    }
  }
  state.progress.step = state.progress.updates = 3;
  return FinishModel(state);
}

enum class Run { kSaves, kResumes, kByHand };

// What checkpoints call the engines of a run, of which the first is the model's.
constexpr const char* kNames[] = {"engine", "second"};

struct Part {
  explicit Part(int64_t width) : model(width) {}
  Small model;
  std::unique_ptr<Engine> engine;
  testing::Tokens source;
};

// What an engine holds on this rank.
absl::StatusOr<Json> Find(Part& part) {
  DT_ASSIGN_OR_RETURN(Json rounded, Rounded(*part.engine, part.model));
  const EngineState& state = part.engine->state();
  return Json{{"exact", Exact(state)},
              {"rounded", std::move(rounded)},
              {"step", state.progress.step},
              {"updates", state.progress.updates},
              {"scale", state.progress.loss_scale.scale}};
}

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext& context, const std::string& folder,
                                             const Side& side, Run run) {
  std::vector<std::string> more = {
      "checkpoint.interval=3", "checkpoint.async=false", "train_steps=20",
      R"(scheduler={"type":"WarmupLR","params":{"warmup_num_steps":9}})"};
  more.insert(more.end(), side.precision.begin(), side.precision.end());
  more.insert(more.end(), side.more.begin(), side.more.end());
  return testing::MakeChainJob(
      side.ranks == 1 ? nullptr : &context, folder + (run == Run::kByHand ? "/hand" : "/run"),
      {.stage = side.stage, .more = more}, absl::StrCat("group", static_cast<int>(run)));
}

// `widths`: of the model of each engine. `saved`: what kSaves gave of all ranks.
absl::StatusOr<Json> TrainRank(RankContext& context, const std::string& folder, const Side& side,
                               Run run, const std::vector<int64_t>& widths, const Json& saved) {
  at::set_num_threads(1);
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(context, folder, side, run));
  at::manual_seed(run == Run::kResumes ? 99 : 5);  // All must come from the checkpoint.
  std::vector<std::unique_ptr<Part>> parts;
  for (const int64_t width : widths) {
    parts.push_back(std::make_unique<Part>(width));
  }
  for (const std::unique_ptr<Part>& part : parts) {
    DT_ASSIGN_OR_RETURN(part->engine, Engine::Create(*job, part->model));
  }
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  for (size_t i = 0; i < parts.size(); ++i) {
    checkpoints->Track(kNames[i], *parts[i]->engine);
  }
  DT_RETURN_IF_ERROR(run == Run::kResumes ? checkpoints->RestoreLatest() : absl::OkStatus());
  Json found = Json::object();
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = *parts[i];
    if (run == Run::kByHand) {
      DT_RETURN_IF_ERROR(
          WriteByHand(saved.at("after").at(kNames[i]).at("exact"), side, part.engine->state()));
    }
    DT_ASSIGN_OR_RETURN(found["before"][kNames[i]], Find(part));
    part.source = {.call = part.engine->step(), .rank = context.rank, .size = context.size};
  }
  const int64_t until = run == Run::kSaves ? 3 : 4;
  while (parts[0]->engine->step() < until) {
    for (size_t i = 0; i < parts.size(); ++i) {
      Part& part = *parts[i];
      DT_ASSIGN_OR_RETURN(const auto report, TakeStep(*part.engine, part.model, part.source));
      found["loss"][kNames[i]] = double{report.loss};
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    DT_ASSIGN_OR_RETURN(found["after"][kNames[i]], Find(*parts[i]));
  }
  DT_RETURN_IF_ERROR(run == Run::kSaves ? checkpoints->MaybeSave(3) : absl::OkStatus());
  return found;
}

// Fills what is null in `all` by another rank's.
void Merge(const Json& other, Json& all) {
  if (all.is_null()) {
    all = other;
  } else if (all.is_structured()) {
    for (auto item = all.begin(); item != all.end(); ++item) {
      Merge(all.is_object() ? other.at(item.key())
                            : other.at(static_cast<size_t>(item - all.begin())),
            *item);
    }
  } else if (!other.is_null()) {
    EXPECT_EQ(all, other) << "ranks differ";
  }
}

// The ranks' findings as one.
Json Train(const std::string& folder, const Side& side, Run run, const std::vector<int64_t>& widths,
           const Json& saved = {}) {
  const auto path = [&](int rank) { return absl::StrCat(folder, "/found-", rank, ".json"); };
  for (const auto& result :
       testing::RunRanks({.size = side.ranks}, [&](RankContext& context) -> absl::Status {
         DT_ASSIGN_OR_RETURN(const Json found,
                             TrainRank(context, folder, side, run, widths, saved));
         return WriteFileAtomic(path(context.rank), DumpJson(found));
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  Json all;
  for (int rank = 0; rank < side.ranks; ++rank) {
    Merge(ParseJson(ReadFile(path(rank), 1 << 20).value_or("{}"), "found").value_or(Json()), all);
  }
  return all;
}

// What a run of `side` has to begin with.
void ExpectBegins(const Json& saved, const Side& side, const Json& found) {
  for (const auto& [what, parameters] : saved.at("exact").items()) {
    const int bits = what == "weights" ? 24 : BitsOfStates(side);
    for (const auto& [name, values] : parameters.items()) {
      for (size_t i = 0; i < values.size(); ++i) {
        const float value = FloatOf(values[i].get<int64_t>());
        EXPECT_EQ(found.at("exact").at(what).at(name).at(i), BitsOf(Round(value, bits)))
            << what << " of " << name << " at " << i;
        if (what == "weights") {
          EXPECT_EQ(found.at("rounded").at(name).at(i), BitsOf(Round(value, BitsOfWeights(side))))
              << name << " at " << i;
        }
      }
    }
  }
  for (const char* const name : {"frozen", "seen"}) {  // They have no masters.
    EXPECT_EQ(found.at("rounded").at(name), saved.at("rounded").at(name)) << name;
  }
  EXPECT_EQ(found.at("step"), 3);
  EXPECT_EQ(found.at("updates"), 3);
  EXPECT_EQ(found.at("scale"), Has(side, "fp16.enabled=true") ? 256 : 1);
}

bool NeedsAllBits(const Json& saved) {
  bool needs = false;
  for (const auto& [name, values] : saved.at("exact").at("weights").items()) {
    for (const Json& bits : values) {
      needs = needs || Round(FloatOf(bits.get<int64_t>()), 11) != FloatOf(bits.get<int64_t>());
    }
  }
  return needs;
}

struct Way {
  const char* name;
  Side from;
  Side to;
  const char* note;
};

// The second side goes on from the checkpoint of the first, with every engine's numbers.
void ExpectGoesOn(const Way& way, const std::vector<int64_t>& widths) {
  const testing::TempFolder folder;
  const Json saved = Train(folder.path(), way.from, Run::kSaves, widths);
  ASSERT_TRUE(saved.contains("after"));
  const Json resumed = Train(folder.path(), way.to, Run::kResumes, widths);
  ASSERT_TRUE(resumed.contains("after"));
  const Json by_hand = Train(folder.path(), way.to, Run::kByHand, widths, saved);
  ASSERT_TRUE(by_hand.contains("after"));
  for (size_t i = 0; i < widths.size(); ++i) {
    const std::string name = kNames[i];
    SCOPED_TRACE(name);
    const Json& was = saved.at("after").at(name);
    const Json& before = resumed.at("before").at(name);
    const Json& after = resumed.at("after").at(name);
    ASSERT_TRUE(NeedsAllBits(was)) << "the test would find nothing";
    ExpectBegins(was, way.to, before);
    for (const char* const what : {"exact", "rounded", "step", "updates", "scale"}) {
      EXPECT_EQ(after.at(what), by_hand.at("after").at(name).at(what)) << what;
    }
    EXPECT_NE(after.at("exact"), before.at("exact")) << "it trains on";
  }
  EXPECT_EQ(resumed.at("loss"), by_hand.at("loss"));
  EXPECT_THAT(ReadFile(folder.path() + "/run/metrics/rank-0.jsonl", 1 << 20).value_or(""),
              HasSubstr(way.note));
}

class OtherPrecisionTest : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(
    Ways, OtherPrecisionTest,
    ::testing::Values(
        Way{"fp32_to_bf16", {2, 0}, {1, 0, Bf16()}, "precision fp32 -> bf16"},
        Way{"fp32_to_bf16_stage3", {1, 0}, {3, 3, Bf16()}, "precision fp32 -> bf16"},
        Way{"fp32_to_fp16", {2, 3}, {1, 0, Fp16()}, "precision fp32 -> fp16"},
        Way{"bf16_stage3_to_fp32", {2, 3, Bf16()}, {1, 0}, "precision bf16 -> fp32"},
        Way{"bf16_to_fp32_stage1_offload",
            {1, 0, Bf16()},
            {3, 1, {}, {kOffload}},
            "precision bf16 -> fp32"},
        Way{"bf16_stage1_to_fp16", {2, 1, Bf16()}, {1, 0, Fp16()}, "precision bf16 -> fp16"},
        Way{"fp16_to_bf16_stage3", {1, 0, Fp16()}, {3, 3, Bf16()}, "precision fp16 -> bf16"},
        Way{"bf16_states_to_fp32",
            {2, 1, Bf16States()},
            {1, 0},
            "3 tensors converted from bf16 to fp32"},
        Way{"fp32_to_bf16_states",
            {1, 0},
            {2, 1, Bf16States()},
            "6 tensors converted from fp32 to bf16"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(OtherPrecisionTest, MastersAndStatesHaveTheirBitsAndTheNextStepToo) {
  ExpectGoesOn(GetParam(), {5});
}

// A generator and its discriminator, a teacher and a student.
TEST(OtherPrecisionEnginesTest, EachOfSeveralEnginesGoesOn) {
  for (const Way& way :
       {Way{"fp32_to_bf16_stage3", {2, 0}, {3, 3, Bf16()}, "precision fp32 -> bf16"},
        Way{"bf16_stage3_to_fp32", {2, 3, Bf16()}, {1, 0}, "precision bf16 -> fp32"},
        Way{"bf16_stage1_to_fp16", {2, 1, Bf16()}, {1, 0, Fp16()}, "precision bf16 -> fp16"}}) {
    SCOPED_TRACE(way.name);
    ExpectGoesOn(way, {5, 4});
  }
}

TEST(OtherPrecisionModelTest, AnotherModelIsRefusedToo) {
  const testing::TempFolder folder;
  Train(folder.path(), {1, 0}, Run::kSaves, {5});
  const auto results = testing::RunRanks({.size = 1}, [&](RankContext& context) {
    return TrainRank(context, folder.path(), {1, 0, Bf16()}, Run::kResumes, /*widths=*/{6}, {})
        .status();
  });
  EXPECT_THAT(std::string(results[0].status.message()),
              HasSubstr("table is F32 [7, 5]; the program has BF16 [7, 6]"));
}

TEST(StoredPrecisionTest, IsFoundByTheHashWhereNothingElseDiffers) {
  const auto layout = [](const std::string& name, DType dtype) {
    return *plan::ParamLayout::Create({{"first", {3, 4}, dtype}, {name, {5}, dtype}});
  };
  const plan::ParamLayout mine = layout("second", DType::kBFloat16);
  for (const DType saved : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(StoredPrecision(mine, LayoutHash(layout("second", saved))), saved);
    EXPECT_EQ(StoredPrecision(mine, LayoutHash(layout("other", saved))), std::nullopt);
  }
  EXPECT_EQ(StoredPrecision(mine, ""), std::nullopt);
}

}  // namespace
}  // namespace dtrain::other_precision_test
