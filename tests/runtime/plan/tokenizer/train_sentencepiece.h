// Trains models with SentencePiece's own library, apart from Abseil, whose types its header names.
#pragma once

#include <string>

// The content of the model file that `flags`, as of spm_train, make. Throws std::runtime_error.
std::string TrainSentencePiece(const std::string& flags, const std::string& model_prefix);
