#include "tests/runtime/plan/tokenizer/train_sentencepiece.h"

#include <sentencepiece_trainer.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

std::string TrainSentencePiece(const std::string& flags, const std::string& model_prefix) {
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      flags + " --minloglevel=3 --num_threads=1 --model_prefix=" + model_prefix);
  if (!status.ok()) {
    throw std::runtime_error(status.ToString());
  }
  std::ifstream file(model_prefix + ".model", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
