#include "generate/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace {

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

absl::Status CheckPrompt(const GptOptions& model, absl::Span<const uint32_t> prompt) {
  if (prompt.empty()) {
    return absl::InvalidArgumentError(
        "the prompt has no token, so that there is nothing to go on from; give some text");
  }
  if (static_cast<int64_t>(prompt.size()) >= model.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the prompt has %d tokens, and the model has %d positions (max_position_embeddings), of "
        "which one at least must be free; shorten the prompt",
        prompt.size(), model.max_position_embeddings));
  }
  const uint32_t largest = *std::max_element(prompt.begin(), prompt.end());
  if (largest >= model.vocab_size) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the prompt has the token %d, but the model has %d tokens (vocab_size): the tokenizer is "
        "another model's",
        largest, model.vocab_size));
  }
  return absl::OkStatus();
}

// The logits of the next token as numbers of the host that may be changed.
absl::StatusOr<std::vector<float>> NextLogits(GptImpl& model, const at::Tensor& tokens,
                                              KeyValueCache& cache) {
  const at::Tensor logits =
      model.Next(tokens, cache).select(0, 0).to(at::kCPU, at::kFloat).contiguous();
  const auto* const begin = logits.const_data_ptr<float>();
  std::vector<float> numbers(begin, begin + logits.numel());
  if (std::any_of(numbers.begin(), numbers.end(), [](float x) { return !std::isfinite(x); })) {
    return absl::OutOfRangeError(absl::StrFormat(
        "the model's logits behind %d tokens are not finite; its weights are damaged, or too large "
        "for the type in which it computes: try --dtype float32",
        cache.length()));
  }
  return numbers;
}

}  // namespace

const char* NameOf(Generated::End end) {
  switch (end) {
    case Generated::End::kStop:
      return "stop";
    case Generated::End::kTokensMax:
      return "length";
    case Generated::End::kContext:
      return "context";
  }
  return "";
}

absl::StatusOr<Generated> Generate(GptImpl& model, absl::Span<const uint32_t> prompt,
                                   const GenerateOptions& options,
                                   absl::FunctionRef<void(uint32_t)> give) {
  DT_RETURN_IF_ERROR(CheckPrompt(model.options(), prompt));
  const at::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const absl::Cleanup restore = [&] { model.train(was_training); };
  const int64_t positions = model.options().max_position_embeddings;
  KeyValueCache cache(model.options().num_hidden_layers, positions);
  std::mt19937_64 random(options.seed);
  std::vector<uint32_t> seen(prompt.begin(), prompt.end());
  at::Tensor input = at::empty({1, static_cast<int64_t>(prompt.size())}, at::kLong);
  std::copy(prompt.begin(), prompt.end(), input.mutable_data_ptr<int64_t>());
  const at::Device device = model.parameters().front().device();
  input = input.to(device);
  Generated result;
  SteadyClock::time_point begin = SteadyClock::now();
  while (static_cast<int64_t>(result.tokens.size()) < options.tokens_max) {
    if (cache.length() == positions) {
      result.end = Generated::End::kContext;
      break;
    }
    DT_ASSIGN_OR_RETURN(std::vector<float> logits, NextLogits(model, input, cache));
    PenaliseRepetition(seen, options.sampling.repetition_penalty, absl::MakeSpan(logits));
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
    const uint32_t token = ChooseToken(logits, options.sampling, uniform);
    result.tokens.push_back(token);
    seen.push_back(token);
    if (result.tokens.size() == 1) {
      result.prompt_s = SecondsSince(begin);
      begin = SteadyClock::now();
    }
    if (std::count(options.stops.begin(), options.stops.end(), token) > 0) {
      result.end = Generated::End::kStop;
      break;
    }
    give(token);
    input =
        at::full({1, 1}, static_cast<int64_t>(token), at::TensorOptions(device).dtype(at::kLong));
  }
  result.others_s = SecondsSince(begin);
  return result;
}
