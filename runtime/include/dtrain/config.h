// Config: a run's configuration, read from one JSON file (comments allowed) with DeepSpeed's names,
// overridden by --set, checked and with every value filled in.
//
// All keys, types, defaults and ranges stand in one table (runtime/plan/config/config_keys*.cc);
// docs/CONFIG.md is made from it. A Config is immutable after Parse or Load, cheap to copy and
// thread-safe. Free of LibTorch.
//
// Errors are InvalidArgument (unknown key, with the nearest known one; wrong type; out of range;
// batch numbers that do not fit) and Unimplemented (a known DeepSpeed key whose value would change
// numbers or whether the job fits, and which dtrain does not support). A key that dtrain does
// not use, because it only observes or tunes DeepSpeed, gives a line in warnings().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "dtrain/optimizer_config.h"

namespace dtrain {

// The type in which the module computes. With bf16 and fp16 its parameters are of that type, each
// rank keeps an fp32 master of the weights that it updates, and gradients are summed in fp32.
struct PrecisionConfig {
  // The types that a configuration can choose: fp32, bf16 or fp16.
  enum class Kind { kFloat32, kBFloat16, kFloat16 };
  Kind kind = Kind::kFloat32;  // The type in force.
  bool cast_buffers = false;   // The module's floating-point buffers are of that type too.
  // fp16: what the loss is multiplied with, so that small gradients do not vanish.
  double loss_scale = 0;                // 0: dynamic, by the rest (plan/optimizer/loss_scale.h).
  int64_t initial_scale_power = 16;     // The first dynamic scale is 2 to this power.
  int64_t loss_scale_window = 1000;     // Steps without overflow after which it doubles.
  int64_t hysteresis = 2;               // Overflows after which it halves.
  bool consecutive_hysteresis = false;  // Whether a step without overflow restarts their count.
  double min_loss_scale = 1;            // The smallest dynamic scale.
};

// Token files of data.train, and how often samples are drawn from them beside the other parts.
struct DataPart {
  std::vector<std::string> files;  // Paths and glob patterns.
  double weight = 1;               // 0 or more; the share is this over the sum of all.
};

// How token files at addresses (s3://, https://, http://) are read, and where they are kept.
struct RemoteDataConfig {
  std::string cache_dir;        // A folder on a local disk; "": ~/.cache/dtrain.
  int64_t cache_bytes_max = 0;  // The most bytes in it; 0: half of what is free there.
  double timeout_seconds = 60;  // For a read with all its tries.
};

// Limits of ZeRO stage 3, in elements; plan/layout/gather_schedule.h keeps to them.
struct GatherLimits {
  int64_t live_max = 0;  // Gathered at a time; exceeded only by a single operation that needs more.
  // A parameter whose next use comes after more elements than this is released at once.
  int64_t reuse_max = 0;
  int64_t prefetch_max = 0;  // Gathered ahead of their use.
};

// Limits for the parameters that stay whole on every rank at ZeRO stage 3;
// plan/layout/persistent_plan.h has the rule.
struct PersistenceLimits {
  int64_t parameter_max = 0;  // Elements of one of them.
  int64_t model_max = 0;      // Elements of all of them together.
};

// Modules that are units of ZeRO stage 3 (EngineOptions::units) by what
// zero_optimization.leaf_module says of them.
struct LeafModuleConfig {
  std::vector<std::string> classes;          // Names of module classes.
  std::vector<std::string> names;            // Whole names of modules.
  std::vector<std::string> name_suffixes;    // Ends of such names.
  std::vector<std::string> default_classes;  // A model need not have any of them.
};

// The parts of forward that are computed again in backward (<dtrain/recompute.h>). The model asks
// and obeys.
struct ActivationCheckpointingConfig {
  // Names what is computed again: nothing, whole layers, or the cheap parts of layers.
  enum class Mode { kNone, kFull, kSelective };
  Mode mode = Mode::kNone;  // The mode in force.
  int64_t every = 1;        // Every so many layers one is recomputed, the first included.
  // The memory in which a segment's inputs wait for backward: beside the weights, a second host
  // buffer, or a file.
  enum class Tier { kNone, kMemory, kFile };
  Tier tier = Tier::kNone;    // The tier in force.
  std::string nvme_path;      // Folder of kFile.
  bool wait_written = false;  // Forward waits at each segment until they are there.

  // Whether unit `index` (a layer) is recomputed whole, or in the parts that are cheap to compute
  // and large to keep.
  bool full(int64_t index) const { return mode == Mode::kFull && index % every == 0; }
  // Whether only the parts of unit `index` that are cheap to compute are recomputed.
  bool selective(int64_t index) const { return mode == Mode::kSelective && index % every == 0; }
};

// Checkpoints that stay for their value of a metric.
struct BestCheckpointsConfig {
  int64_t count = 0;              // How many stay; 0: none.
  std::string metric;             // The metric's name: "eval/loss".
  bool larger_is_better = false;  // Else the smallest values are the best.
};

// Steps that are recorded as a Chrome trace, in RUN_DIR/trace/rank-R.json.
struct TraceConfig {
  int64_t first_step = 3;  // From 1.
  int64_t steps = 0;       // 0: none.
};

// How gradient buckets travel; comm/compression/bucket_reduction.h does it.
struct CompressionConfig {
  std::string type = "none";     // "none", "powersgd", "int8".
  int64_t rank = 4;              // Rank of PowerSGD's factors.
  int64_t start_step = 100;      // Steps at the start that are not compressed.
  int64_t min_elements = 65536;  // Smaller buckets are not compressed.
  bool error_feedback = true;    // Whether the next step adds what this one left out.
};

// How ranks of different hosts are connected; comm/group.h and comm/rdma_options.h say what the
// numbers mean.
struct NetworkConfig {
  std::string transport = "auto";  // "auto", "shm", "tcp", "rdma".
  std::string interface;           // Network device; "": the one that reaches the store.
  int tcp_connections = 1;         // Connections between two ranks, 1 to 16.
  std::string rdma_device;         // "mlx5_0"; "": the one that is nearest to the rank.
  int rdma_gid_index = -1;         // Index of the port's GID; -1: chosen by the rank's address.
  int rdma_queue_pairs = 1;        // Queue pairs between two ranks, 1 to 8.
  int rdma_traffic_class = 0;      // The DSCP value times 4.
  int rdma_service_level = 0;      // Priority of the packets, 0 to 7.
  int rdma_timeout = 18;           // A packet is lost after 4.096 us times 2 to this power.
  int rdma_retries = 6;            // Times that a lost packet is sent again.
};

// OneCycle's parameters; plan/optimizer/one_cycle.h evaluates them.
struct OneCycleConfig {
  double min_lr = 0;          // At the cycle's start and end.
  double max_lr = 0;          // At the cycle's highest point.
  double decay_lr_rate = 0;   // Rate of the decay in each interval after the cycle.
  int64_t first_steps = 0;    // Steps in which the learning rate rises.
  int64_t second_steps = 0;   // Steps in which it falls.
  int64_t first_stairs = 0;   // 0: continuous.
  int64_t second_stairs = 0;  // The same while it falls.
  int64_t decay_steps = 0;    // Length of an interval after the cycle; 0: no decay.
  bool momentum = true;       // Whether beta1 moves too; beta2 is then 0.99, as in DeepSpeed.
  double min_momentum = 0;    // Beta1 where the learning rate is highest.
  double max_momentum = 0;    // Beta1 at the cycle's start, at its end and after it.
};

// Learning-rate schedule; plan::LrAt (runtime/plan/optimizer/lr_schedule.h) evaluates it.
struct SchedulerConfig {
  // The values of scheduler.type; kConstant where it is not set.
  enum class Kind {
    kConstant,
    kWarmup,
    kWarmupDecay,
    kWarmupCosine,
    kWarmupStableDecay,
    kRangeTest,
    kOneCycle
  };
  Kind kind = Kind::kConstant;   // The schedule in force.
  double base_lr = 0;            // The optimizer's lr.
  double warmup_min_lr = 0;      // At the start of warm-up.
  double warmup_max_lr = 0;      // At the end of warm-up.
  double warmup_min_ratio = 0;   // At the start of warm-up, as a share of base_lr.
  double cos_min_ratio = 0;      // At the end of the cosine, as a share of base_lr.
  int64_t warmup_num_steps = 0;  // Steps of warm-up.
  bool warmup_log = true;        // warmup_type "log"; false: "linear".
  int64_t total_num_steps = 0;   // The step at which the decay ends.
  double range_min_lr = 0;       // LRRangeTest: the first learning rate.
  double range_step_rate = 0;    // Growth in an interval, as a multiple of range_min_lr.
  int64_t range_step_size = 0;   // Steps of an interval.
  bool range_staircase = false;  // Whether it grows at the end of an interval only.
  int64_t decay_num_steps = 0;   // WSD.
  bool decay_sqrt = true;        // decay_type "sqrt"; false: "linear".
  double decay_min_ratio = 0;    // At the end of the decay, as a share of base_lr.
  OneCycleConfig cycle;          // OneCycle uses these in place of the above.
};

// fp8: linear layers that multiply in 8 bits.
struct Fp8Config {
  bool enabled = false;         // Whether ops::Fp8Linear multiplies in 8 bits.
  bool rowwise = false;         // A scale for each row; else one for a tensor.
  bool e4m3_gradients = false;  // Gradients in e4m3; else in e5m2.
};

// The source of a value.
enum class ConfigOrigin { kDefault, kFile, kSet, kDerived };
// "default", "file", "--set", "derived".
absl::string_view ConfigOriginName(ConfigOrigin origin);

// A value of a saved run and of this one; null where it is absent.
struct ConfigDifference {
  std::string key;   // In the program's sections the path of one value: "model.attn_pdrop".
  Json was;          // In the saved run.
  Json now;          // In this run.
  std::string text;  // "KEY was X, now Y".
};

// The values of a configuration, checked and complete. docs/CONFIG.md says what each means.
class Config {
 public:
  // Reads `path`, applies the overrides ("a.b.c=value"; the value is JSON, else a string) in order,
  // and checks all for a job of `world_size` ranks. Errors name file, key and what to do.
  static absl::StatusOr<Config> Load(const std::string& path,
                                     const std::vector<std::string>& overrides, int world_size);
  // The same on text; `file_name` is for messages.
  static absl::StatusOr<Config> Parse(absl::string_view text, absl::string_view file_name,
                                      const std::vector<std::string>& overrides, int world_size);

  // --- The run.
  // Optimizer steps of the run; 0: train_epochs decides, and the size of the data is not known yet.
  int64_t train_steps() const;
  // Rounds through the training data, of which train_steps follows; 0: the length is in steps.
  double train_epochs() const;
  // A copy in which train_epochs has become train_steps, for data of which an epoch takes that many
  // steps, with the schedule that follows; *this where train_epochs is not set. Job does this
  // (SetStepsPerEpoch). InvalidArgument: the number is not above 0, or the schedule does not fit.
  absl::StatusOr<Config> WithStepsPerEpoch(double steps) const;
  int64_t eval_interval() const;  // 0: never.
  int64_t eval_batches() const;   // Global batches in one evaluation.
  // Whether to evaluate after `step` steps: at each multiple of eval_interval and at the last step.
  bool evaluate_at(int64_t step) const;
  uint64_t seed() const;                      // Seed of weights, dropout and the order of data.
  bool deterministic() const;                 // Gradients are summed in the order of ranks.
  const std::string& device() const;          // "auto", "cpu", "cuda".
  bool cuda_graphs() const;                   // GPUs run captured graphs.
  const std::string& module_buffers() const;  // "broadcast", "average", "local".

  // --- Batch: global_batch = micro_batch * gradient_accumulation_steps * world_size.
  int64_t global_batch() const;                 // Samples of a step, over all ranks.
  int64_t micro_batch() const;                  // Samples that a rank computes at a time.
  int64_t gradient_accumulation_steps() const;  // Micro-batches of a rank in a step.
  int world_size() const;                       // Ranks of the job.

  // --- Optimizer.
  // The optimizer, its settings and its parameter groups.
  const OptimizerConfig& optimizer() const;
  const SchedulerConfig& scheduler() const;  // The schedule of the learning rate.
  double gradient_clipping() const;          // Largest global norm; 0: no clipping.
  double gradient_clipping_value() const;    // Largest element after that; 0: no limit.
  // Gradients are divided by this before ranks add them up, and the sum is multiplied by it.
  double gradient_predivision() const;
  const PrecisionConfig& precision() const;  // The type in which the module computes.
  bool stochastic_rounding() const;          // States in bf16 are rounded at random.
  // The settings that `engines` gives the engine of this name (EngineOptions::name); nothing where
  // it is not there.
  EngineSettings engine_settings(absl::string_view name) const;
  // The names in `engines`.
  std::vector<std::string> engine_names() const;
  Fp8Config fp8() const;  // Settings of linear layers in 8 bits.

  // --- Gradient reduction.
  int64_t reduce_bucket_elements() const;        // The most elements that one call reduces.
  bool overlap_comm() const;                     // Gradients are reduced while backward runs.
  const std::string& bucket_tuning() const;      // "auto", "on", "off".
  int zero_stage() const;                        // 0 to 3.
  GatherLimits gather_limits() const;            // How many weights stage 3 gathers.
  PersistenceLimits persistence_limits() const;  // The weights that stage 3 leaves whole.
  LeafModuleConfig leaf_modules() const;         // The modules that stage 3 gathers as units.
  bool quantized_weights() const;                // Stage 3: gathers in int8 blocks.
  bool quantized_gradients() const;              // Stages 2 and 3: reduce-scatters in int8 blocks.
  int hpz_partition_size() const;                // Ranks of a second sharding of weights; 1: none.
  // The parts of forward that backward computes again.
  ActivationCheckpointingConfig activation_checkpointing() const;

  // --- Data. Paths and glob patterns as written, relative to the working directory.
  const std::vector<std::string>& data_train() const;       // The files of all parts.
  const std::vector<DataPart>& data_parts() const;          // One, unless data.train is a mixture.
  const std::vector<std::string>& data_validation() const;  // May be empty.
  int64_t sequence_length() const;                          // Tokens of a sample.
  const std::string& data_format() const;   // A name that plan::TokenFormatFromName knows.
  int64_t data_document_token() const;      // Separates documents; -1: none does.
  bool data_document_token_starts() const;  // It is a document's first token, else its last.
  RemoteDataConfig data_remote() const;     // For files at addresses.

  // --- Checkpoint.
  int64_t checkpoint_interval() const;            // Steps; 0: only at the end, or continuous.
  bool checkpoint_continuous() const;             // A save begins when the last one is durable.
  int64_t checkpoint_keep() const;                // Newest checkpoints kept; 0: all.
  int64_t checkpoint_keep_every() const;          // Those of its multiples stay for good; 0: none.
  BestCheckpointsConfig checkpoint_best() const;  // Checkpoints kept for a metric.
  bool checkpoint_async() const;                  // Saves are written while training goes on.
  int64_t checkpoint_staging_memory() const;      // Bytes a rank for their copies; 0: automatic.
  int64_t checkpoint_write_rate() const;  // Bytes a second and rank, in the background; 0: any.
  const std::string& checkpoint_remote() const;         // A folder or an s3:// URL; "": none.
  const std::string& checkpoint_journal() const;        // "off", "async" or "sync".
  const std::string& checkpoint_journal_dtype() const;  // "bf16" or "fp32".
  double checkpoint_journal_share() const;              // Share of the steps' time for writes.
  const std::string& checkpoint_dir() const;            // Empty: RUN_DIR/checkpoints.
  const std::string& checkpoint_local_dir() const;      // On each host's own disk; "": none.
  int64_t checkpoint_replicas() const;                  // Hosts with a copy in memory: 0 or 1.
  const std::string& checkpoint_replica_dir() const;    // A folder in memory.
  int64_t checkpoint_replica_memory() const;            // Bytes a host; 0: what is free.
  int64_t checkpoint_shard_bytes_max() const;           // The most bytes of a file of weights.

  // --- Comm.
  double comm_timeout_seconds() const;  // The limit of a collective's first call.
  // The least that a learnt limit may be; none: what the connections need (comm/call_timeout.h).
  std::optional<double> comm_timeout_min_seconds() const;
  // Time without progress that counts as a hang; 0: none does, none: it is learnt.
  std::optional<double> comm_hang_timeout_seconds() const;
  // The same while a rank waits for its data source; none: as in the rest of a step.
  std::optional<double> comm_hang_data_timeout_seconds() const;
  const NetworkConfig& comm_network() const;   // How ranks of different hosts are connected.
  const std::string& comm_wire_dtype() const;  // "fp32", "bf16", "fp16".

  const CompressionConfig& comm_compression() const;  // How gradient buckets are compressed.

  // --- Metrics.
  int64_t metrics_interval() const;                         // Steps between two progress lines.
  const std::vector<std::string>& metrics_console() const;  // Columns of the progress line.
  bool metrics_tensorboard() const;   // Event files for TensorBoard are written.
  TraceConfig metrics_trace() const;  // The steps that are traced.

  // --- The user's part: the object under `name`, "model", "finetune" or "sample"; {} when it is
  // absent. REQUIRES: one of these names.
  const Json& user(absl::string_view name) const;

  // --- What is in force.
  // All values, nested as in a configuration file, plus "origins" (flat: key -> where from). Read
  // back as a configuration for the same world size it gives the same values; of train_epochs and
  // the train_steps that followed from it, the first is taken.
  Json values_in_force() const;
  // The value of one key ("zero_optimization.stage"), and where it came from; none when unknown.
  const Json* Find(absl::string_view key) const;
  // Where the value of `key` came from; none where the key is unknown.
  std::optional<ConfigOrigin> OriginOf(absl::string_view key) const;
  // For people: a line for each value that is not a default, and the batch numbers.
  std::string Summary() const;
  // For comparing runs: key -> value of every key that makes the training what it is, of every
  // other one that was given and has an effect, and "world_size".
  Json hyperparameters() const;
  // One sentence each: keys without effect, older spellings, defaults that differ.
  const std::vector<std::string>& warnings() const;

  // --- Resume. Equal for two runs exactly when every key that makes the model and its training
  // what they are is equal: batch, optimizer, schedule, seed, data, model; not length, intervals,
  // metrics, comm, checkpointing, or how the batch is split over ranks.
  uint64_t identity_hash() const;
  // The values of the identity that differ from a saved values_in_force(), in the table's order.
  std::vector<ConfigDifference> IdentityDifferences(const Json& saved_values_in_force) const;
  // The first of them, as "KEY was X, now Y"; none: this run may continue that one.
  std::optional<std::string> IdentityDifference(const Json& saved_values_in_force) const;

 private:
  struct Values;
  explicit Config(std::shared_ptr<const Values> values) : values_(std::move(values)) {}
  friend class ConfigBuilder;
  std::shared_ptr<const Values> values_;
};

}  // namespace dtrain
