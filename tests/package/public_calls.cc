// Names each public function of dtrain that a training program calls, as a program outside this
// tree does: it is compiled and linked with an installed package alone. The calls stand in
// functions that never run; Train shows that the rest does.
#include <dtrain/dtrain.h>
#include <dtrain/fp8.h>
#include <dtrain/linear.h>
#include <dtrain/ops.h>
#include <dtrain/recompute.h>

#include <iostream>
#include <vector>

namespace {

struct Items {
  int64_t size() const { return 4; }
  dtrain::Sample Get(int64_t index) const { return {at::full({2}, index), at::ones({2})}; }
};

struct Net : torch::nn::Module {
  Net() { layer = register_module("layer", dtrain::Linear(2, 2)); }
  dtrain::Linear layer{nullptr};
};

struct Plain final : dtrain::Optimizer {
  std::string name() const override { return "Plain"; }
  std::vector<std::string> states() const override { return {}; }
  void Update(const dtrain::ParameterPart& part) const override {
    part.weights[0] -= static_cast<float>(part.settings.lr) * part.gradient[0];
  }
};

struct Counter final : dtrain::Tracked {
  dtrain::Json SaveState() const override { return {{"count", 1}}; }
  absl::Status RestoreState(const dtrain::Json&) override { return absl::OkStatus(); }
};

dtrain::EngineOptions Options() {
  dtrain::EngineOptions options;
  options.name = "student";
  options.settings = {.lr = 0.1,
                      .betas = {{0.9, 0.99}},
                      .gradient_clipping = 1,
                      .gradient_accumulation_steps = 2,
                      .groups = {{.params = {"*.bias"}, .weight_decay = 0}}};
  options.lr_factor = [](int64_t step) { return step < 10 ? 1.0 : 0.5; };
  options.optimizer = std::make_shared<Plain>();
  options.public_name = dtrain::PeftName;
  return options;
}

// Names functions that are called with more than this program has: it is enough that a program
// outside sees them and that the library has them.
template <typename... Functions>
void Take(Functions... /*functions*/) {}

void TakeConfig() {
  using dtrain::Config;
  Take(&Config::Find, &Config::IdentityDifference, &Config::IdentityDifferences, &Config::Load,
       &Config::OriginOf, &Config::Parse, &Config::Summary, &Config::WithStepsPerEpoch,
       &Config::activation_checkpointing, &Config::bucket_tuning, &Config::checkpoint_async,
       &Config::checkpoint_best, &Config::checkpoint_continuous, &Config::checkpoint_dir,
       &Config::checkpoint_interval, &Config::checkpoint_journal, &Config::checkpoint_journal_dtype,
       &Config::checkpoint_journal_share, &Config::checkpoint_keep, &Config::checkpoint_keep_every,
       &Config::checkpoint_local_dir, &Config::checkpoint_remote, &Config::checkpoint_replica_dir,
       &Config::checkpoint_replica_memory, &Config::checkpoint_replicas,
       &Config::checkpoint_shard_bytes_max, &Config::checkpoint_staging_memory,
       &Config::checkpoint_write_rate, &Config::comm_compression,
       &Config::comm_hang_data_timeout_seconds, &Config::comm_hang_timeout_seconds,
       &Config::comm_network, &Config::comm_timeout_min_seconds, &Config::comm_timeout_seconds,
       &Config::comm_wire_dtype, &Config::cuda_graphs, &Config::data_document_token,
       &Config::data_document_token_starts, &Config::data_format, &Config::data_parts,
       &Config::data_remote, &Config::data_train, &Config::data_validation, &Config::deterministic,
       &Config::device, &Config::engine_names, &Config::engine_settings, &Config::eval_batches,
       &Config::eval_interval, &Config::evaluate_at, &Config::fp8, &Config::gather_limits,
       &Config::global_batch, &Config::gradient_accumulation_steps, &Config::gradient_clipping,
       &Config::gradient_clipping_value, &Config::gradient_predivision, &Config::hpz_partition_size,
       &Config::hyperparameters, &Config::identity_hash, &Config::leaf_modules,
       &Config::metrics_console, &Config::metrics_interval, &Config::metrics_tensorboard,
       &Config::metrics_trace, &Config::micro_batch, &Config::module_buffers, &Config::optimizer,
       &Config::overlap_comm, &Config::persistence_limits, &Config::precision,
       &Config::quantized_gradients, &Config::quantized_weights, &Config::reduce_bucket_elements,
       &Config::scheduler, &Config::seed, &Config::sequence_length, &Config::stochastic_rounding,
       &Config::train_epochs, &Config::train_steps, &Config::user, &Config::values_in_force,
       &Config::warnings, &Config::world_size, &Config::zero_stage);
  Take(&dtrain::ConfigOriginName, &dtrain::ActivationCheckpointingConfig::full,
       &dtrain::ActivationCheckpointingConfig::selective, &dtrain::OptimizerConfig::SettingsFor,
       &dtrain::OptimizerConfig::state_slots, &dtrain::OptimizerConfig::name, &dtrain::Merged,
       &dtrain::IsFor, &dtrain::MatchesPattern, &dtrain::NearestNames);
}

void TakeRuntime() {
  using dtrain::Job;
  Take(&Job::AgreeToStop, &Job::Beat, &Job::attempt, &Job::local_rank, &Job::rank, &Job::run_id,
       &Job::stop_agreed, &Job::stop_signal, &Job::world_size);
  using dtrain::Metrics;
  Take(&Metrics::EndEvaluations, &Metrics::Flush, &Metrics::LeaveProgress, &Metrics::SetStep,
       &Metrics::SetTotalSteps, &Metrics::ValuesAtStep, &dtrain::StepReport::settled,
       &dtrain::LateNumbers::Wait, &dtrain::LateNumbers::ready, &dtrain::Late<double>::ready);
  using dtrain::ModelFiles;
  Take(&ModelFiles::Contains, &ModelFiles::Describe, &ModelFiles::HaveEqualValues,
       &ModelFiles::Read, &ModelFiles::directory, &ModelFiles::names, &dtrain::WriteModelFolder);
  Take(&dtrain::LowRankLayer::AddLowRank, &dtrain::LowRankLayer::has_low_rank,
       &dtrain::LowRankLayer::low_rank_shape, &dtrain::LoraOptions::scale);
  Take(&dtrain::TokenLoader::has_documents, &dtrain::TokenLoader::vocabulary,
       &dtrain::DocumentLengths, &dtrain::Batch::counted_sample_count, &dtrain::Batch::graph_inputs,
       &dtrain::SampleBatch::graph_inputs, &dtrain::GraphInputsOf<at::Tensor>,
       &dtrain::SampleCount<dtrain::Batch>, &dtrain::MeanWeight<dtrain::Batch>,
       &dtrain::SampleUnit<dtrain::Batch>, &dtrain::CheckSampleUnit, &dtrain::RecomputeSegment);
  Take(&dtrain::MeanKeys, &dtrain::StrictParameters, &dtrain::AttentionWidth,
       &dtrain::PalmFlopsPerToken, &dtrain::RecomputedFlopsPerToken, &dtrain::Utilization,
       &dtrain::SpeedOfLight);
}

at::Tensor TakeOperations(const at::Tensor& x) {
  namespace ops = dtrain::ops;
  Take(&ops::RmsNorm, &ops::LayerNorm, &ops::AddRmsNorm, &ops::AddLayerNorm, &ops::Gelu,
       &ops::MergedLinear, &ops::TransposedLinear, &ops::GeluMlp, &ops::Rope, &ops::RopeQkv,
       &ops::Embedding, &ops::Dropout, &ops::CrossEntropy, &ops::LinearCrossEntropy,
       &ops::Fp8Linear, &ops::MergedFp8Linear, &dtrain::Fp8OptionsOf);
  const ops::RopeTable table = ops::MakeRopeTable(/*positions=*/16, /*rotary_dim=*/4, 1e4);
  const at::Tensor gated = ops::SwiGlu(ops::SwiGlu(x), table.cos);
  return ops::GeGlu(ops::GeGlu(gated, ops::GeluForm::kExact), table.sin, ops::GeluForm::kTanh);
}

absl::Status Data(dtrain::Job& job, dtrain::Engine& engine, Net& net, const Items& items) {
  dtrain::DataLoaderOptions options;
  options.collate = dtrain::StackSamples;
  DT_ASSIGN_OR_RETURN(auto loader, dtrain::DataLoader::Open(job, items, options));
  DT_RETURN_IF_ERROR(job.SetStepsPerEpoch(loader->steps_per_epoch()));
  const auto loss = [&](dtrain::SampleBatch& batch) {
    return dtrain::Loss((net.layer->forward(batch[0]) - batch[1]).square().sum(), batch.samples);
  };
  DT_ASSIGN_OR_RETURN(const dtrain::StepReport report, engine.Step(*loader, loss));
  job.metrics().Log(report.Settled());
  DT_ASSIGN_OR_RETURN(double value, engine.Evaluate(*loader, loss, {.to_end = true}));
  job.metrics().Log("eval/loss", value);
  DT_ASSIGN_OR_RETURN(value, job.metrics().LogMean("own/mean", value, 2));
  loader->Restart();
  loader->BeginPass();
  DT_ASSIGN_OR_RETURN(dtrain::SampleBatch batch, loader->Next());
  loader->EndPass();
  DT_ASSIGN_OR_RETURN(batch, loader->Spare());
  job.metrics().Print(loader->Description());
  DT_RETURN_IF_ERROR(engine.Backward(loss(batch), {.samples = batch.sample_count()}));
  engine.BeginMicroBatch();
  DT_RETURN_IF_ERROR(engine.Update().status());
  DT_ASSIGN_OR_RETURN(auto tokens, dtrain::TokenLoader::Open(job, dtrain::Split::kTrain));
  DT_RETURN_IF_ERROR(tokens->Next().status());
  DT_RETURN_IF_ERROR(dtrain::ReadCorpusTokenizer(job).status());
  if (loader->epoch() + loader->size() + engine.step() > 5 &&
      dtrain::IsEndOfData(dtrain::EndOfData())) {
    job.Stop("enough");
  }
  return loader->RestoreState(loader->SaveState());
}

absl::Status Files(dtrain::Job& job, dtrain::Engine& engine, Net& net) {
  DT_ASSIGN_OR_RETURN(auto checkpoints, dtrain::Checkpointer::Open(job));
  Counter counter;
  checkpoints->Track("engine", engine);
  checkpoints->Track("counter", counter);
  checkpoints->Track("average", {{"weight", at::zeros({2})}});
  DT_ASSIGN_OR_RETURN(const auto ema, dtrain::Ema::Create(engine, net, 0.9));
  checkpoints->Track("ema", ema->tensors());
  DT_RETURN_IF_ERROR(ema->Update());
  Net averaged;
  DT_RETURN_IF_ERROR(ema->CopyTo(averaged));
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine.step()));
  DT_RETURN_IF_ERROR(checkpoints->Finish());
  DT_ASSIGN_OR_RETURN(const std::string folder, dtrain::FindModelFolder(job.run_dir()));
  DT_ASSIGN_OR_RETURN(const auto files, dtrain::ModelFiles::Open(folder));
  DT_RETURN_IF_ERROR(dtrain::LoadModel(job, net, *files));
  DT_RETURN_IF_ERROR(dtrain::ReadModelConfig(folder).status());
  DT_ASSIGN_OR_RETURN(auto texts, dtrain::ReadTokenizerFiles(folder));
  DT_RETURN_IF_ERROR(dtrain::ExportModel(job, engine, "out"));
  texts.emplace_back("adapter_config.json", dtrain::AdapterConfig({}, {"layer"}, folder));
  return dtrain::ExportMerged(job, engine, net, texts, "merged");
}

absl::Status Everything(dtrain::Job& job) {
  DT_RETURN_IF_ERROR(dtrain::CheckModelFits(job, dtrain::Json::object()));
  Net net = dtrain::Construct(job, [] { return Net(); });
  DT_RETURN_IF_ERROR(dtrain::WarmStart(job, net, "runs/base", {.exclude = {"head.*"}}).status());
  DT_RETURN_IF_ERROR(dtrain::AddLora(net, {.rank = 1}).status());
  DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(job, net, Options()));
  DT_RETURN_IF_ERROR(engine->WithParameters([&] { std::cout << net.layer->LowRankWeight(); }));
  TakeConfig();
  TakeRuntime();
  const at::Tensor sums = TakeOperations(at::ones({3, 16}));
  job.metrics().LogEvent(dtrain::EventKind::kEvent, dtrain::Json{{"what", "own"}});
  DT_RETURN_IF_ERROR(job.AllReduce(sums, dtrain::Reduction::kMean));
  DT_RETURN_IF_ERROR(job.Broadcast(sums, /*root=*/0));
  DT_RETURN_IF_ERROR(job.Barrier());
  const at::Tensor normed = dtrain::Recompute(
      [&](const at::Tensor& x) { return dtrain::ops::RmsNorm(x, sums, 1e-5); }, sums);
  dtrain::Loss loss = dtrain::ops::CrossEntropy(normed, at::zeros({}, at::kLong));
  std::cout << loss.sum << dtrain::StrictFlopsPerToken({}, {}) << job.config().Summary();
  const Items items;
  DT_RETURN_IF_ERROR(Data(job, *engine, net, items));
  return Files(job, *engine, net);
}

absl::Status Train(dtrain::Job& job) {
  std::cout << "steps " << job.config().train_steps() << " on " << job.device() << std::endl;
  return job.config().train_steps() == 7 ? absl::OkStatus() : Everything(job);
}

}  // namespace

int main(int argc, char** argv) { return dtrain::Main(argc, argv, Train); }
