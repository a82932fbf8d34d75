// Model FLOPs of a decoder-only Transformer and what is made from them. Pure; thread-safe.
//
// STRICT is the only count that dtrain calls MFU: matmul parameters only, causal attention at half
// cost, nothing that is recomputed. The PaLM count and HFU are printed beside it, always named.
#pragma once

#include <cstdint>

namespace dtrain {

// Shape of the model. Parameters are counted in numbers, not bytes.
struct FlopModel {
  double parameters = 0;           // All; of a mixture of experts the active ones.
  double vocabulary = 0;           // Rows of the token embedding.
  double hidden = 0;               // Columns of the token embedding.
  double layers = 0;               // Transformer blocks.
  double query_heads = 0;          // Grouped keys and values do not change the count.
  double head_dim = 0;             // Columns of a head.
  double position_parameters = 0;  // Those of a learned position table.
  bool tied = false;               // The embedding is also the output head.
};

// The tokens to which a token attends.
struct FlopSequence {
  double length = 0;   // Tokens of a sequence.
  bool causal = true;  // False: a token attends to later ones too.
  // Sums over documents when they are packed into a sequence and masked apart; else 0.
  double sum_length = 0;
  double sum_length_squared = 0;  // The sum of the documents' squared lengths.
};

// Mean keys a query attends to: s/2 causal, s bidirectional, sum(l^2) / (2 sum(l)) packed.
double MeanKeys(const FlopSequence& sequence);
// Parameters that take part in a matmul: all but tables that are only looked up.
double StrictParameters(const FlopModel& model);
// layers * query_heads * head_dim.
double AttentionWidth(const FlopModel& model);

// FLOP a trained token (forward and backward): 6 N_s + 12 A k.
double StrictFlopsPerToken(const FlopModel& model, const FlopSequence& sequence);
// 6 N + 12 A s: the count of PaLM and nanoGPT, never halved for causality.
double PalmFlopsPerToken(const FlopModel& model, const FlopSequence& sequence);
// FLOP a token of a forward pass done twice, over layers with `parameters` and attention width
// `width` that are recomputed: 2 N_re + 4 A_re k. HFU counts STRICT plus this.
double RecomputedFlopsPerToken(double parameters, double width, const FlopSequence& sequence);

// Share of `peak_flops_per_second` of each of `devices` devices.
double Utilization(double flops_per_token, double tokens_per_second, int devices,
                   double peak_flops_per_second);
// Ideal time at each operand type's own peak over measured time: `parameters_low` matmul parameters
// run at `peak_low` (FP8), the rest and attention at `peak_high` (bf16).
double SpeedOfLight(const FlopModel& model, const FlopSequence& sequence, double parameters_low,
                    double tokens_per_second, int devices, double peak_low, double peak_high);

}  // namespace dtrain
