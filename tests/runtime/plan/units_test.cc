#include "runtime/plan/layout/units.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::units_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// In registration order; each of 32 elements, so that offsets are 32 times places from behind.
ParamLayout Named(const std::vector<std::string>& names) {
  std::vector<ParamSpec> parameters;
  for (const std::string& name : names) {
    parameters.push_back({name, {32}, DType::kFloat32});
  }
  return *ParamLayout::Create(parameters);
}

const ParamLayout& Model() {
  static const auto* const layout = new ParamLayout(
      Named({"embed.weight", "layers.0.norm", "layers.0.up.weight", "layers.0.up.bias",
             "layers.1.norm", "layers.1.up.weight", "layers.1.up.bias", "head"}));
  return *layout;
}

using Units = std::vector<std::vector<std::string>>;

absl::StatusOr<std::vector<FlatRange>> Find(const ParamLayout& layout, const Units& units) {
  auto all = FindUnits({&layout}, units);
  return all.ok() ? absl::StatusOr<std::vector<FlatRange>>(all->front()) : all.status();
}

std::string Refused(const Units& units) {
  const auto found = Find(Model(), units);
  EXPECT_FALSE(found.ok());
  const std::string message(found.status().message());
  EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(Units, AModuleHasAllOfItsParametersWhateverTheOrderOfUnits) {
  EXPECT_THAT(*Find(Model(), {{"layers.0"}, {"layers.1"}}),
              ElementsAre(FlatRange{32, 128}, FlatRange{128, 224}));
  EXPECT_THAT(*Find(Model(), {{"layers.1"}, {"layers.0"}}),
              ElementsAre(FlatRange{32, 128}, FlatRange{128, 224}));
  EXPECT_THAT(*Find(Model(), {}), IsEmpty());
}

TEST(Units, ListsPatternsAndSingleParametersMakeOneUnit) {
  EXPECT_THAT(*Find(Model(), {{"layers.*"}}), ElementsAre(FlatRange{32, 224}));
  EXPECT_THAT(*Find(Model(), {{"embed", "layers.0.norm"}, {"layers.1.up", "head"}}),
              ElementsAre(FlatRange{0, 96}, FlatRange{192, 256}));
  EXPECT_THAT(*Find(Model(), {{"layers.0", "layers.0.up"}}), ElementsAre(FlatRange{128, 224}))
      << "named twice in one unit";
}

TEST(Units, AUnitMayHavePartsInSeveralLayoutsOrInOne) {
  const ParamLayout frozen = Named({"layers.0.base", "layers.1.base"});
  const auto found = FindUnits({&Model(), &frozen}, Units{{"layers.0"}, {"head"}});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT((*found)[0], ElementsAre(FlatRange{0, 32}, FlatRange{128, 224}));
  EXPECT_THAT((*found)[1], ElementsAre(FlatRange{32, 64}));
}

TEST(Units, AnEmptyTensorAloneIsNoUnit) {
  const ParamLayout layout = *ParamLayout::Create(
      std::vector<ParamSpec>{{"a", {64}, DType::kFloat32}, {"none", {0}, DType::kFloat32}});
  EXPECT_THAT(*Find(layout, {{"none"}}), IsEmpty());
}

TEST(Units, ANameOfNothingIsRefusedWithWhatThereIs) {
  const std::string message = Refused({{"layers.0"}, {"layers.0.down"}});
  EXPECT_THAT(message, HasSubstr("EngineOptions::units[1]: \"layers.0.down\" names no module"));
  EXPECT_THAT(message, HasSubstr("nearest: layers.0"));
  EXPECT_THAT(message, HasSubstr("there are embed, layers, layers.0, layers.0.up, layers.1"));
  EXPECT_THAT(Refused({{"layer"}}), HasSubstr("\"layer\" names no module")) << "no part of a name";
  EXPECT_THAT(Refused({{"layers.0"}, {}}), HasSubstr("EngineOptions::units[1] is empty"));
}

TEST(Units, ALongListOfModulesIsCut) {
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) {
    names.push_back(absl::StrCat("m", i, ".weight"));
  }
  const auto found = Find(Named(names), {{"no"}});
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("m6, m7, ..."));
  const auto flat = Find(Named({"a", "b"}), {{"no"}});
  EXPECT_THAT(std::string(flat.status().message()), HasSubstr("there are a, b"))
      << "parameters where there is no module";
}

TEST(Units, AParameterOfTwoUnitsIsRefusedByName) {
  const std::string message = Refused({{"layers.0"}, {"head"}, {"*.up"}});
  EXPECT_THAT(message, HasSubstr("parameter layers.0.up.bias is in EngineOptions::units[0] and in "
                                 "EngineOptions::units[2] (\"*.up\")"));
}

TEST(Units, AUnitThatIsNotOfNeighboursNamesWhatLiesBetween) {
  EXPECT_THAT(Refused({{"embed", "layers.1"}}),
              HasSubstr("EngineOptions::units[0] is not a run of neighbouring parameters: "
                        "layers.0.up.bias is registered between embed.weight and layers.1.norm"));
}

absl::StatusOr<std::vector<FlatRange>> FindWithLeaves(const Units& units,
                                                      const std::vector<std::string>& leaves) {
  auto all = FindUnits({&Model()}, units, leaves);
  return all.ok() ? absl::StatusOr<std::vector<FlatRange>>(all->front()) : all.status();
}

TEST(Units, ALeafModuleIsAUnitUnlessAnotherHoldsIt) {
  EXPECT_THAT(*FindWithLeaves({}, {"layers.0", "layers.1"}),
              ElementsAre(FlatRange{32, 128}, FlatRange{128, 224}));
  EXPECT_THAT(*FindWithLeaves({{"layers.1"}}, {"layers.1", "layers.1.up", "layers.0.up"}),
              ElementsAre(FlatRange{32, 128}, FlatRange{128, 192}));
  EXPECT_THAT(*FindWithLeaves({}, {"layers", "layers.0", "layers.0.up"}),
              ElementsAre(FlatRange{32, 224}));
  EXPECT_THAT(*FindWithLeaves({}, {""}), ElementsAre(FlatRange{0, 256})) << "the model itself";
  EXPECT_THAT(*FindWithLeaves({}, {"layers.7"}), IsEmpty()) << "no parameter has its name";
  EXPECT_THAT(*FindWithLeaves({}, {"layers.0.up.weight"}), IsEmpty()) << "that is no module";
}

TEST(Units, ALeafModuleThatHoldsAPartOfAUnitIsRefused) {
  const auto found = FindWithLeaves({{"layers.0.up"}}, {"layers.0"});
  EXPECT_THAT(std::string(found.status().message()),
              HasSubstr("parameter layers.0.up.bias is in EngineOptions::units[0] and in "
                        "zero_optimization.leaf_module, "
                        "\"layers.0\"; remove it from one of them"));
}

TEST(Units, TheLargestLeafIsMeasuredFromItsFirstParameterToItsLast) {
  EXPECT_EQ(LargestLeaf(Model(), {}), 0);
  EXPECT_EQ(LargestLeaf(Model(), std::vector<std::string>{"head", "layers.1", "layers.0.up"}), 96);
  EXPECT_EQ(LargestLeaf(Model(), std::vector<std::string>{"frozen"}), 0);
}

TEST(Units, AUnitIsWholeUnlessItIsCutIntoSeveralBuckets) {
  const std::vector<FlatRange> units = *Find(Model(), {{"layers.0"}, {"layers.1"}});
  const auto whole = [&](int64_t most) {
    ShardOptions options{.buckets = {.bucket_elements = 32, .first_bucket_elements = 32},
                         .world_size = 2,
                         .units = units,
                         .unit_elements_max = most};
    return WholeUnits(*ShardPlan::Create(Model(), options), units);
  };
  EXPECT_THAT(whole(128), ElementsAre(units[0], units[1]));
  // Borders are kept to multiples of 64: 0 to 128 and 128 to 192.
  EXPECT_THAT(whole(64), ElementsAre(units[1]));
  EXPECT_THAT(WholeUnits(*ShardPlan::Create(Model(), {}), {}), IsEmpty());
}

}  // namespace
}  // namespace dtrain::plan::units_test
