#include "runtime/plan/memory/memory_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/layout/bucket_plan.h"
#include "runtime/plan/memory/classifier_plan.h"
#include "runtime/plan/memory/offload_plan.h"

namespace dtrain::plan {
namespace {

constexpr double kFp32 = 4;
constexpr double kPacked = 260.0 / 256;  // int8 blocks of 256 with an fp32 scale.
constexpr double kFp8Codes = 2;          // One of the weights, one transposed; scales are few.
// Buffers of gathers under way (shard/quantized_on_host.h). A GPU needs one: a stream orders them.
constexpr int kPackedSlots = 4;
constexpr int64_t kWorldMax = int64_t{1} << 20;
// The unit in which a GPU gives shareable memory (comm/nccl/plugin/shareable_memory.h).
constexpr double kGranule = 2 << 20;
// Buffers in which stages 2 and 3 stage gradients.
constexpr int kGradientSlots = 2;

double ValueBytes(PrecisionConfig::Kind precision) {
  return precision == PrecisionConfig::Kind::kFloat32 ? kFp32 : 2;
}

absl::StatusOr<int64_t> Field(const Json& model, const char* name) {
  const auto found = model.find(name);
  const auto value = found == model.end() ? absl::StatusOr<int64_t>(0) : JsonInteger(*found);
  if (!value.ok() || *value < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the model has no %s; set it under \"model\" to an integer, 1 or more, or give --params",
        name));
  }
  return *value;
}

absl::StatusOr<int64_t> FieldOr(const Json& model, const char* name, int64_t absent) {
  const auto found = model.find(name);
  return found == model.end() || found->is_null() ? absl::StatusOr<int64_t>(absent)
                                                  : Field(model, name);
}

// Values that one layer keeps of each token: the inputs of both norms and of the projections, the
// attention's queries, keys, values and output, gate, up and their product.
double KeptByLayer(const ModelShape& model) {
  return static_cast<double>(4 * model.hidden + 2 * model.query_width + 2 * model.kv_width +
                             (model.gated ? 3 : 2) * model.intermediate);
}

// The number of layers with a recomputed part.
double Chosen(const ModelShape& model, const ActivationCheckpointingConfig& recompute) {
  return recompute.mode == ActivationCheckpointingConfig::Mode::kNone
             ? 0
             : std::ceil(static_cast<double>(model.layers) / static_cast<double>(recompute.every));
}

// Values that recomputed segments keep of each token in a far tier: their one input. A few inputs
// are in near memory at a time, on their way.
double KeptFar(const ModelShape& model, const ActivationCheckpointingConfig& recompute) {
  if (recompute.tier == ActivationCheckpointingConfig::Tier::kNone) {
    return 0;
  }
  const double chosen = Chosen(model, recompute);
  const double near =
      std::min(chosen, static_cast<double>(kActivationsInFlight + kActivationsReadAhead));
  return (chosen - near) * static_cast<double>(model.hidden);
}

// Values that forward keeps of each token, with those that one layer at a time recomputes.
double Kept(const ModelShape& model, const ActivationCheckpointingConfig& recompute) {
  using Mode = ActivationCheckpointingConfig::Mode;
  const auto layers = static_cast<double>(model.layers);
  const double layer = KeptByLayer(model);
  const double ends = static_cast<double>(2 * model.hidden);
  if (recompute.mode == Mode::kNone || model.layers == 0) {
    return layers * layer + ends;
  }
  const double chosen = Chosen(model, recompute);
  // The MLP keeps its norm's output, gate, up and their product.
  const double mlp = static_cast<double>(model.hidden + (model.gated ? 3 : 2) * model.intermediate);
  const bool full = recompute.mode == Mode::kFull;
  const double dropped = full ? layer - static_cast<double>(model.hidden) : mlp;
  return layers * layer - chosen * dropped + dropped + ends;
}

double FrozenBucket(const MemoryRequest& request) {
  return std::min(FrozenElements(request.model),
                  static_cast<double>(request.frozen_bucket_elements));
}

// Stage 3: the weights that are gathered at a time, those that are never divided (twice, for the
// time of their exchange), and the buffers of int8 blocks.
double LiveBytes(const MemoryRequest& request, double value_bytes, double bucket) {
  const double parameters = request.model.parameters + FrozenElements(request.model);
  const double whole = PersistentElements(request.model, request.persistence);
  const double gathered =
      request.block_elements > 0
          ? static_cast<double>(request.block_elements)
          : std::min(parameters - whole, static_cast<double>(request.live_elements));
  const double shard = parameters / static_cast<double>(request.world_size);
  const double slots = request.states_on_host ? 1 : kPackedSlots;
  return value_bytes * (gathered + 2 * whole) +
         (request.quantized_weights ? kPacked * (slots * (bucket + FrozenBucket(request)) + shard)
                                    : 0);
}

// Bytes that comm.compression keeps of gradients, and of int8 blocks on their way: those of all
// buckets on the host, those of one on a GPU. PowerSGD's factors are few.
double CompressionBytes(const MemoryRequest& request, double bucket) {
  if (request.compression == "none" || request.world_size == 1 || request.zero_stage >= 2) {
    return 0;
  }
  const double parameters = request.model.parameters;
  if (request.compression == "powersgd") {
    return kFp32 * parameters;
  }
  const double part = parameters / static_cast<double>(request.world_size);
  return request.states_on_host ? kFp32 * (parameters + part) + 2 * kPacked * bucket
                                : kFp32 * (parameters + 2 * part) + 2 * kPacked * parameters;
}

// Bytes that the fused classifier holds at most: the logits of a chunk, the scratch of their loss,
// the gradient of its input and that of its weight, summed in fp32, with one more to round it (on a
// CPU one for each chunk). The room of the largest fresh gradient is taken off, since there is no
// such gradient yet.
double ClassifierBytes(const MemoryRequest& request, double value_bytes) {
  const int64_t tokens = request.micro_batch * request.sequence_length;
  const ModelShape& model = request.model;
  if (tokens == 0 || model.vocabulary == 0) {
    return 0;
  }
  const bool cpu = !request.states_on_host;  // Only ranks on a GPU have them there.
  const int64_t chunk = ClassifierChunkTokens(tokens, model.vocabulary, cpu);
  const auto logits = static_cast<double>(chunk * model.vocabulary);
  const bool by_aten = request.precision == PrecisionConfig::Kind::kFloat16;
  const double scratch = by_aten ? static_cast<double>(kLossScratchBytes) * logits : 0;
  const auto weights = static_cast<double>(model.vocabulary * model.hidden);
  const double rounded = value_bytes < kFp32 ? value_bytes * weights : 0;
  const double sum = kFp32 * weights;
  // The weight's gradient is there from the first chunk's end on.
  const double summed = sum + (cpu ? rounded : 0);
  const double of_chunk =
      value_bytes * logits + (chunk < tokens ? scratch + summed : std::max(scratch, summed));
  const double of_input = value_bytes * static_cast<double>(tokens * model.hidden);
  const double held = of_input + std::max(of_chunk, sum + rounded);
  return std::max(0.0, held - value_bytes * model.largest_gradient);
}

absl::StatusOr<ModelShape> Gpt2ShapeFrom(const Json& model) {
  ModelShape shape;
  DT_ASSIGN_OR_RETURN(shape.hidden, Field(model, "n_embd"));
  DT_ASSIGN_OR_RETURN(shape.intermediate, FieldOr(model, "n_inner", 4 * shape.hidden));
  DT_ASSIGN_OR_RETURN(shape.layers, Field(model, "n_layer"));
  DT_ASSIGN_OR_RETURN(shape.vocabulary, Field(model, "vocab_size"));
  DT_ASSIGN_OR_RETURN(const int64_t positions, Field(model, "n_positions"));
  shape.query_width = shape.kv_width = shape.hidden;
  shape.gated = false;
  const auto h = static_cast<double>(shape.hidden);
  const auto inner = static_cast<double>(shape.intermediate);
  const auto layers = static_cast<double>(shape.layers);
  const double table = h * static_cast<double>(shape.vocabulary);
  const double places = h * static_cast<double>(positions);
  shape.parameters = table + places + layers * (4 * h * h + 2 * h * inner + 9 * h + inner) + 2 * h;
  // ops::GeluMlp's node gives both weights' gradients at once.
  shape.largest_gradient = std::max({table, places, 3 * h * h, 2 * h * inner});
  shape.tensors = {{table, 1},
                   {places, 1},
                   {h, 6 * shape.layers + 2},  // Norms and the biases of projections to h.
                   {3 * h, shape.layers},
                   {inner, shape.layers},
                   {3 * h * h, shape.layers},
                   {h * h, shape.layers},
                   {h * inner, 2 * shape.layers}};
  return shape;
}

// Whether a rank keeps its share of the weights in another memory than the one it trains in.
bool FarValues(const MemoryRequest& request) {
  return request.zero_stage >= 3 &&
         (request.values_in_file || (request.states_on_host && request.values_far));
}

// Bytes that a GPU's buffer of `bytes` leaves empty in its last granule. A buffer that is smaller
// than a granule is CUDA's own affair, and shares one with others.
double Rounding(double bytes) {
  return bytes < kGranule ? 0 : std::ceil(bytes / kGranule) * kGranule - bytes;
}

// The same for the buffers of comm.compression. Each bucket has one for what is left out of it.
// Buckets end where tensors do, so that each loses half a granule on average.
double CompressionRounding(const MemoryRequest& request, double bucket) {
  if (request.compression == "none" || request.world_size == 1 || request.zero_stage >= 2 ||
      kFp32 * bucket < kGranule) {
    return 0;
  }
  const double exchange = request.compression == "int8" ? 2 * Rounding(kPacked * bucket) : 0;
  return std::ceil(request.model.parameters / bucket) * kGranule / 2 + exchange;
}

// Bytes that the buffers of a rank on a GPU leave empty. Gathered weights have blocks of whole
// granules, and LibTorch's allocator has buffers of its own.
double GpuRounding(const MemoryRequest& request, double value_bytes, double bucket) {
  if (!request.states_on_host) {
    return 0;
  }
  const auto ranks = static_cast<double>(request.world_size);
  const double parameters = request.model.parameters;
  const double frozen = FrozenElements(request.model);
  const bool shares_weights = request.zero_stage >= 3;
  double sum = 0;
  if (!FarValues(request)) {
    sum += Rounding(value_bytes * parameters / (shares_weights ? ranks : 1));
    sum += shares_weights ? Rounding(value_bytes * frozen / ranks) : 0;
  }
  if (shares_weights) {
    const double whole = PersistentElements(request.model, request.persistence);
    sum += Rounding(value_bytes * whole * (1 + 1 / ranks));  // Their exchange.
    const auto small = static_cast<double>(request.hpz_partition_size);
    for (const double weights : {parameters, frozen}) {
      sum += small > 1 ? Rounding(value_bytes * weights / small) : 0;
      sum += request.quantized_weights ? Rounding(kPacked * weights / ranks) : 0;
    }
    sum += request.quantized_weights
               ? Rounding(kPacked * bucket) + Rounding(kPacked * FrozenBucket(request))
               : 0;
  }
  if (request.training) {
    const bool shares_gradients = request.zero_stage >= 2;
    const bool packs = shares_gradients && request.quantized_gradients && request.world_size > 1;
    sum += Rounding(kFp32 * parameters / (shares_gradients ? ranks : 1));
    sum += shares_gradients ? kGradientSlots * Rounding(kFp32 * bucket) : 0;
    sum += packs ? Rounding(kPacked * bucket) : 0;
    sum += CompressionRounding(request, bucket);
  }
  return sum;
}

// Moves the offloaded states of the `owned` elements out of the sums, and adds the buffers through
// which they travel.
void PlanOffload(const MemoryRequest& request, double value_bytes, int64_t owned,
                 MemoryPlan& plan) {
  const double states = plan.moments + plan.master;
  const auto chunk =
      static_cast<double>(std::min(owned, OffloadChunkElements(owned, request.offload_buffers)));
  const double streamed = static_cast<double>(request.offload_buffers) * chunk *
                          (request.moment_bytes + (value_bytes < kFp32 ? kFp32 : 0));
  if (!request.states_on_host) {
    plan.offloaded = request.offload_ratio * states;
    plan.moments *= 1 - request.offload_ratio;
    plan.master *= 1 - request.offload_ratio;
    plan.buckets += streamed;
    return;
  }
  plan.offloaded = states;
  plan.moments = plan.master = 0;
  plan.host += static_cast<double>(ExchangeBuffers(request.offload_buffers)) * chunk *
                   (kFp32 + (FarValues(request) ? 0 : value_bytes)) +
               (request.offload_to_file ? (1 - request.offload_ratio) * states + streamed : states);
}

}  // namespace

absl::StatusOr<ModelShape> ModelShapeFrom(const Json& model) {
  if (const auto type = model.find("model_type"); type != model.end() && *type == "gpt2") {
    return Gpt2ShapeFrom(model);
  }
  ModelShape shape;
  DT_ASSIGN_OR_RETURN(shape.hidden, Field(model, "hidden_size"));
  DT_ASSIGN_OR_RETURN(shape.intermediate, Field(model, "intermediate_size"));
  DT_ASSIGN_OR_RETURN(shape.layers, Field(model, "num_hidden_layers"));
  DT_ASSIGN_OR_RETURN(shape.vocabulary, Field(model, "vocab_size"));
  DT_ASSIGN_OR_RETURN(const int64_t heads, Field(model, "num_attention_heads"));
  DT_ASSIGN_OR_RETURN(const int64_t kv_heads, FieldOr(model, "num_key_value_heads", heads));
  DT_ASSIGN_OR_RETURN(const int64_t head, FieldOr(model, "head_dim", shape.hidden / heads));
  shape.query_width = heads * head;
  shape.kv_width = kv_heads * head;
  const auto tied = model.find("tie_word_embeddings");
  const bool is_tied = tied != model.end() && tied->is_boolean() && tied->get<bool>();
  const auto h = static_cast<double>(shape.hidden);
  const double layer = h * static_cast<double>(2 * shape.query_width + 2 * shape.kv_width +
                                               3 * shape.intermediate + 2);
  const double table = h * static_cast<double>(shape.vocabulary);
  shape.parameters = static_cast<double>(shape.layers) * layer + (is_tied ? 1 : 2) * table + h;
  shape.linear = static_cast<double>(shape.layers) * (layer - 2 * h);
  const double mlp = h * static_cast<double>(shape.intermediate);
  // ops::MergedLinear's node gives those of gate and up at once, and those of q, k and v.
  const double attention = h * static_cast<double>(shape.query_width + 2 * shape.kv_width);
  shape.largest_gradient = std::max({table, attention, 2 * mlp});
  shape.tensors = {{table, is_tied ? 1 : 2},
                   {h, 2 * shape.layers + 1},
                   {h * static_cast<double>(shape.query_width), 2 * shape.layers},
                   {h * static_cast<double>(shape.kv_width), 2 * shape.layers},
                   {mlp, 3 * shape.layers}};
  return shape;
}

double PersistentElements(const ModelShape& model, const PersistenceLimits& limits) {
  const auto most = static_cast<double>(limits.model_max);
  double total = 0;
  for (const auto* const tensors : {&model.tensors, &model.frozen}) {
    for (const ModelShape::Tensors& same : *tensors) {
      if (same.elements > 0 && same.elements <= static_cast<double>(limits.parameter_max)) {
        const double room = std::floor((most - total) / same.elements);
        total += same.elements * std::min(room, static_cast<double>(same.count));
      }
    }
  }
  return total;
}

double FrozenElements(const ModelShape& model) {
  double total = 0;
  for (const ModelShape::Tensors& same : model.frozen) {
    total += same.elements * static_cast<double>(same.count);
  }
  return total;
}

double FrozenBytes(const MemoryRequest& request) {
  return ValueBytes(request.precision) * FrozenElements(request.model) + request.model.frozen_bytes;
}

double FarFrozenBytes(const MemoryRequest& request) {
  return FarValues(request) ? ValueBytes(request.precision) * FrozenElements(request.model) : 0;
}

double MomentBytes(const OptimizerConfig& optimizer) {
  return static_cast<double>(optimizer.state_slots().size()) * (optimizer.bf16_states ? 2 : kFp32);
}

void ReadInto(const Config& config, MemoryRequest& request) {
  request.precision = config.precision().kind;
  request.zero_stage = config.zero_stage();
  request.live_elements = config.gather_limits().live_max;
  request.values_far = *config.Find("zero_optimization.offload_param.device") != "none";
  request.values_in_file = *config.Find("zero_optimization.offload_param.device") == "nvme";
  request.persistence = config.persistence_limits();
  request.hpz_partition_size = config.hpz_partition_size();
  request.quantized_weights = config.quantized_weights();
  request.quantized_gradients = config.quantized_gradients();
  request.compression = config.comm_compression().type;
  request.recompute = config.activation_checkpointing();
  request.keeps_codes =
      config.Find("fp8.enabled")->get<bool>() && config.gradient_accumulation_steps() > 1;
  request.moment_bytes = MomentBytes(config.optimizer());
  request.replicas = config.checkpoint_replicas() > 0;
  request.journal_bytes = config.checkpoint_journal() == "off"          ? 0
                          : config.checkpoint_journal_dtype() == "fp32" ? 4
                                                                        : 2;
  if (*config.Find("zero_optimization.offload_optimizer.device") != "none") {
    request.offload_buffers =
        config.Find("zero_optimization.offload_optimizer.buffer_count")->get<int64_t>();
    request.offload_ratio = config.Find("zero_optimization.offload_optimizer.ratio")->get<double>();
    request.offload_to_file = *config.Find("zero_optimization.offload_optimizer.device") == "nvme";
  }
  request.bucket_elements =
      BucketElements(config, static_cast<int64_t>(std::llround(request.model.parameters)));
  request.frozen_bucket_elements =
      BucketElements(config, static_cast<int64_t>(std::llround(FrozenElements(request.model))));
}

MemoryPlan PlanMemory(const MemoryRequest& request) {
  const ModelShape& model = request.model;
  const double value_bytes = ValueBytes(request.precision);
  const auto ranks = static_cast<double>(request.world_size);
  // Parameters whose state a rank holds, if it is divided from stage `from` on.
  const auto held = [&](int from) {
    return model.parameters / (request.zero_stage >= from ? ranks : 1);
  };
  const double weights = model.parameters + FrozenElements(model);
  const double held_weights = value_bytes * weights / (request.zero_stage >= 3 ? ranks : 1);
  MemoryPlan plan;
  plan.values = FarValues(request) ? 0 : held_weights;
  plan.host = FarValues(request) && !request.values_in_file ? held_weights : 0;
  if (request.zero_stage >= 3 && request.hpz_partition_size > 1) {
    plan.values += value_bytes * weights / static_cast<double>(request.hpz_partition_size);
  }
  plan.values += model.frozen_bytes;
  const double bucket = std::min(model.parameters, static_cast<double>(request.bucket_elements));
  if (request.states_on_host && FarValues(request) && request.values_in_file) {
    const int ways = request.offload_buffers > 0 ? 1 : 2;  // A GPU that updates also writes back.
    plan.host = static_cast<double>(kShareBuffers) * value_bytes *
                (ways * bucket + FrozenBucket(request)) / ranks;
  }
  if (request.zero_stage >= 3) {
    plan.live = LiveBytes(request, value_bytes, bucket);
  }
  plan.rounding = GpuRounding(request, value_bytes, bucket);
  if (!request.training) {
    return plan;
  }
  if (request.replicas && request.world_size > 1) {
    const double saved =
        value_bytes * weights + model.frozen_bytes +
        (request.moment_bytes + (value_bytes < kFp32 ? kFp32 : 0)) * model.parameters;
    plan.replicas = 2 * saved / ranks;
  }
  plan.gradients = kFp32 * held(2);
  plan.moments = request.moment_bytes * held(1);
  plan.master = value_bytes < kFp32 ? kFp32 * held(1) : 0;
  // On a GPU one stream packs bucket after bucket.
  const double packs =
      request.quantized_gradients && ranks > 1 ? request.states_on_host ? 1 : 2 : 0;
  plan.buckets =
      value_bytes * model.largest_gradient +
      (request.zero_stage >= 2 ? (kGradientSlots * kFp32 + packs * kPacked) * bucket : 0) +
      CompressionBytes(request, bucket);
  const double journalled = static_cast<double>(request.journal_bytes) * model.parameters / ranks;
  plan.journal = 2 * journalled;
  plan.buckets += request.states_on_host ? journalled : 0;
  if (request.offload_buffers > 0) {
    PlanOffload(request, value_bytes, static_cast<int64_t>(held(1)), plan);
  }
  const auto tokens = static_cast<double>(request.micro_batch * request.sequence_length);
  plan.far_activations = tokens * value_bytes * KeptFar(model, request.recompute);
  plan.activations = tokens * value_bytes * Kept(model, request.recompute) - plan.far_activations;
  if (request.states_on_host &&
      request.recompute.tier == ActivationCheckpointingConfig::Tier::kMemory) {
    plan.host += plan.far_activations;
  }
  plan.logits = ClassifierBytes(request, value_bytes);
  plan.codes = request.keeps_codes && request.zero_stage < 3 ? kFp8Codes * model.linear : 0;
  return plan;
}

std::optional<int64_t> SmallestWorld(MemoryRequest request, double rank_bytes, double reserve) {
  const auto fits = [&](int64_t ranks) {
    request.world_size = ranks;
    return PlanMemory(request).total() * (1 + reserve) <= rank_bytes;
  };
  if (!fits(kWorldMax)) {
    return std::nullopt;
  }
  int64_t low = 0;  // Does not fit.
  int64_t high = kWorldMax;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return high;
}

absl::StatusOr<double> ParseBytes(absl::string_view text) {
  constexpr std::array<std::pair<absl::string_view, double>, 6> kUnits = {{{"MiB", 1 << 20},
                                                                           {"GiB", 1 << 30},
                                                                           {"TiB", 1099511627776.0},
                                                                           {"MB", 1e6},
                                                                           {"GB", 1e9},
                                                                           {"TB", 1e12}}};
  for (const auto& [unit, bytes] : kUnits) {
    double number = 0;
    if (absl::EndsWithIgnoreCase(text, unit) &&
        absl::SimpleAtod(absl::StripAsciiWhitespace(text.substr(0, text.size() - unit.size())),
                         &number) &&
        number > 0 && number < 1e9) {
      return number * bytes;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("\"%s\" is not a size; allowed: a number above 0 with the unit MB, GB, TB "
                      "(powers of 1000), MiB, GiB or TiB, for example 80GB",
                      text));
}

}  // namespace dtrain::plan
