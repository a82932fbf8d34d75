#include "runtime/plan/layout/layout.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::layout_test {
namespace {

using ::testing::HasSubstr;

ParamLayout Layout(const std::vector<ParamSpec>& parameters, const Mesh& mesh = {}) {
  absl::StatusOr<ParamLayout> layout = ParamLayout::Create(parameters, mesh);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

const std::vector<ParamSpec> kSmall = {{"embed", {10, 7}, DType::kFloat32},
                                       {"scale", {}, DType::kFloat32},
                                       {"none", {0, 4}, DType::kFloat32},
                                       {"head", {33}, DType::kBFloat16}};

TEST(ParamLayoutTest, StandsInReverseRegistrationOrderAlignedTo32Elements) {
  const ParamLayout layout = Layout(kSmall);
  ASSERT_EQ(layout.entries().size(), 4u);
  const struct {
    const char* name;
    int64_t offset;
    int64_t elements;
  } want[] = {{"head", 0, 33}, {"none", 64, 0}, {"scale", 64, 1}, {"embed", 96, 70}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.entries()[i].name, want[i].name);
    EXPECT_EQ(layout.entries()[i].offset, want[i].offset);
    EXPECT_EQ(layout.entries()[i].elements, want[i].elements);
    EXPECT_EQ(layout.entries()[i].registration_index, 3 - static_cast<int>(i));
    EXPECT_TRUE(layout.entries()[i].slices.empty());
  }
  EXPECT_EQ(layout.total_elements(), 192);
  EXPECT_EQ(layout.parameter_elements(), 104);
  EXPECT_EQ(layout.Find("scale")->offset, 64);
  EXPECT_EQ(layout.Find("nothing"), nullptr);
}

TEST(ParamLayoutTest, EmptyModelHasAnEmptyBuffer) {
  const ParamLayout layout = Layout({});
  EXPECT_EQ(layout.total_elements(), 0);
  EXPECT_EQ(layout.hash(), Layout({}).hash());
}

TEST(ParamLayoutTest, HashChangesWithEveryInput) {
  const uint64_t base = Layout(kSmall).hash();
  EXPECT_EQ(base, Layout(kSmall).hash());
  std::vector<ParamSpec> changed = kSmall;
  changed[1].name = "scales";
  EXPECT_NE(base, Layout(changed).hash());
  changed = kSmall;
  changed[0].shape = {7, 10};
  EXPECT_NE(base, Layout(changed).hash());
  changed = kSmall;
  changed[3].dtype = DType::kFloat16;
  EXPECT_NE(base, Layout(changed).hash());
  changed = kSmall;
  std::swap(changed[0], changed[1]);
  EXPECT_NE(base, Layout(changed).hash());
  EXPECT_NE(base, Layout(kSmall, {.dp_shard = 2}).hash());
}

TEST(ParamLayoutTest, HashIsTheSameInEveryBuild) {
  // Ranks of different builds, and checkpoints of older ones, compare it.
  EXPECT_EQ(Layout(kSmall).hash(), 0xe748b12bde5d2dd9ULL);
}

TEST(ParamLayoutTest, NamesTheFirstDifferingTensor) {
  std::vector<ParamSpec> other = kSmall;
  other[1].shape = {1};
  other[3].dtype = DType::kFloat32;
  EXPECT_EQ(*ParamLayout::FirstDifference(Layout(kSmall), "rank 0", Layout(other), "rank 3"),
            "parameter 1 differs: rank 0 has fp32 [] scale, rank 3 has fp32 [1] scale");
  other = kSmall;
  other.pop_back();
  EXPECT_EQ(*ParamLayout::FirstDifference(Layout(kSmall), "rank 0", Layout(other), "rank 3"),
            "parameter 3 differs: rank 0 has bf16 [33] head, rank 3 has nothing");
  EXPECT_EQ(ParamLayout::FirstDifference(Layout(kSmall), "a", Layout(kSmall), "b"), std::nullopt);
  EXPECT_THAT(*ParamLayout::FirstDifference(Layout(kSmall, {.dp_replicate = 2}), "rank 0",
                                            Layout(kSmall, {.dp_replicate = 4}), "rank 1"),
              HasSubstr("rank 0 has mesh dp_replicate=2"));
}

TEST(ParamLayoutTest, AMeshIsOfOneRankUnlessItSaysOtherwise) {
  EXPECT_EQ(Mesh().world_size(), 1);
  EXPECT_EQ((Mesh{.dp_replicate = 2, .dp_shard = 3}).world_size(), 6);
  EXPECT_EQ((Mesh{.tp = 2, .cp = 3, .pp = 5}).world_size(), 30);
}

TEST(ParamLayoutTest, RefusesWhatItCannotPlace) {
  const auto message = [](const std::vector<ParamSpec>& parameters, const Mesh& mesh = {}) {
    return std::string(ParamLayout::Create(parameters, mesh).status().message());
  };
  EXPECT_THAT(message({{"", {1}}}), HasSubstr("parameter 0 has an empty name"));
  EXPECT_THAT(message({{"w", {1}}, {"w", {1}}}), HasSubstr("two parameters are named w"));
  EXPECT_THAT(message({{"w", {2, -1}}}), HasSubstr("parameter w has the shape [2, -1]"));
  EXPECT_THAT(message({{"w", {1LL << 31, 1LL << 31, 4}}}), HasSubstr("more than 2^62"));
  EXPECT_THAT(message({{"a", {1LL << 61}}, {"b", {1LL << 61}}, {"c", {1}}}),
              HasSubstr("the model has more than 2^62 elements (at parameter a)"));
  EXPECT_THAT(message({}, {.dp_shard = 0}), HasSubstr("mesh axis dp_shard is 0"));
  EXPECT_THAT(message({}, {.dp_replicate = 0}), HasSubstr("mesh axis dp_replicate is 0"));
  EXPECT_THAT(message({}, {.pp = 0}), HasSubstr("mesh axis pp is 0; it must be at least 1"));
  for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.cp = 2}, Mesh{.pp = 2}}) {
    const absl::Status refused = ParamLayout::Create({}, mesh).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("only data parallelism is supported"));
  }
}

TEST(ParamLayoutTest, PlacesUpToTwoToThe62Elements) {
  EXPECT_EQ(Layout({{"w", {1LL << 31, 1LL << 31}}}).total_elements(), 1LL << 62);
  EXPECT_EQ(Layout({{"a", {1LL << 61}}, {"b", {1LL << 61}}}).total_elements(), 1LL << 62);
  const std::vector<ParamSpec> larger = {{"w", {(1LL << 62) + 1}}};
  EXPECT_FALSE(ParamLayout::Create(larger).ok());
}

}  // namespace
}  // namespace dtrain::plan::layout_test
