#include "gpt/sample.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

std::string Sample(GptImpl& model, const SampleOptions& options) {
  const at::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<int64_t> tokens;
  for (const char c : options.prompt.empty() ? std::string("\n") : options.prompt) {
    tokens.push_back(static_cast<uint8_t>(c));
  }
  const auto context = static_cast<size_t>(model.options().max_position_embeddings);
  for (int64_t i = 0; i < options.bytes; ++i) {
    const size_t start = tokens.size() > context ? tokens.size() - context : 0;
    const auto length = static_cast<int64_t>(tokens.size() - start);
    const at::Tensor input = at::from_blob(tokens.data() + start, {1, length}, at::kLong);
    at::Tensor logits = model.forward(input).select(1, length - 1).squeeze(0) / options.temperature;
    if (options.top_k > 0 && options.top_k < logits.numel()) {
      const at::Tensor floor = std::get<0>(logits.topk(options.top_k)).min();
      logits = logits.masked_fill(logits < floor, -INFINITY);
    }
    tokens.push_back(
        at::multinomial(logits.softmax(-1), 1, /*replacement=*/true, generator).item<int64_t>());
  }
  model.train(was_training);
  std::string text;
  for (const int64_t token : tokens) {
    text += static_cast<char>(token);
  }
  return text;
}

std::string Printable(const std::string& text) {
  std::string clean = text;
  std::replace_if(
      clean.begin(), clean.end(),
      [](char c) { return c != '\n' && c != '\t' && (c < ' ' || c > '~'); }, '.');
  return clean;
}
