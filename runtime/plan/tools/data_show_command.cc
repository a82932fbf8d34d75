#include "runtime/plan/tools/data_show_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "runtime/plan/data/text/text_encoder.h"
#include "runtime/plan/data/token_file.h"
#include "runtime/plan/data/token_mask.h"
#include "runtime/plan/data/tokenizer_files.h"

namespace dtrain::plan {
namespace {

constexpr int64_t kBytesVocabulary = 256;
constexpr int64_t kSampleTokensMax = 1 << 20;  // The tokens of one sample that are shown.

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// Text as a reader can see it on one line: of bytes as tokens, what is not ASCII is a point.
std::string Visible(const std::string& text, bool is_utf8) {
  std::string visible;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      visible += "\\n";
    } else if (c == '\t' && is_utf8) {
      visible += "\\t";
    } else if (c == '\0') {
      visible += "\\0";
    } else {
      visible += (byte >= 32 && byte < 127) || (byte >= 128 && is_utf8) ? c : '.';
    }
  }
  return visible;
}

std::string Decoded(const TextEncoder& encoder, absl::Span<const int64_t> tokens, bool is_utf8) {
  std::vector<uint32_t> ids;
  for (const int64_t token : tokens) {
    ids.push_back(static_cast<uint32_t>(token));
  }
  return Visible(encoder.Decode(ids), is_utf8);
}

}  // namespace

struct ShowCommand::Arguments {
  std::string path;
  std::string format = "auto";
  std::string tokenizer;
  int64_t head = 32;
  int64_t samples = 3;

  absl::Status Run();

 private:
  // Takes the tokenizer beside the corpus if none is named and it can be the file's.
  void FindTokenizer(const TokenFile& file);
  // The tokenizer of the tokens; nothing where it is not known.
  absl::StatusOr<std::unique_ptr<TextEncoder>> Encoder(const TokenFile& file) const;
  absl::Status ShowSamples(const TokenFile& file, const MaskFile& mask,
                           const TextEncoder* encoder) const;
  // Prints one sample, by stretches of tokens that are trained on (+) or only read (-).
  void ShowSample(int64_t number, int64_t begin, absl::Span<const int64_t> tokens,
                  absl::Span<const uint8_t> bits, const MaskHeader& header,
                  const TextEncoder* encoder) const;
};

void ShowCommand::Arguments::FindTokenizer(const TokenFile& file) {
  const int64_t vocabulary = file.header().vocabulary;
  const std::string folder = std::filesystem::path(file.path()).parent_path().string();
  const std::string beside = CorpusTokenizerFolder(folder.empty() ? "." : folder);
  std::error_code none;
  if (!tokenizer.empty() || vocabulary == kBytesVocabulary ||
      !std::filesystem::is_directory(beside, none)) {
    return;
  }
  const auto encoder = TextEncoder::ForDecoding(beside);
  if (encoder.ok() && (vocabulary == 0 || vocabulary == (*encoder)->vocabulary())) {
    tokenizer = beside;
  }
}

absl::StatusOr<std::unique_ptr<TextEncoder>> ShowCommand::Arguments::Encoder(
    const TokenFile& file) const {
  const int64_t vocabulary = file.header().vocabulary;
  if (tokenizer.empty()) {
    return vocabulary == kBytesVocabulary ? TextEncoder::OfBytes() : nullptr;
  }
  // The end token plays no part in decoding; a tokenizer without one may still show a file.
  DT_ASSIGN_OR_RETURN(std::unique_ptr<TextEncoder> encoder, TextEncoder::ForDecoding(tokenizer));
  if (vocabulary != 0 && vocabulary != encoder->vocabulary()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s was made by a tokenizer of %d tokens, but %s has %d: they do not belong together",
        file.path(), vocabulary, tokenizer, encoder->vocabulary()));
  }
  return encoder;
}

absl::Status ShowCommand::Arguments::Run() {
  DT_ASSIGN_OR_RETURN(const TokenFormat known, TokenFormatFromName(format));
  DT_ASSIGN_OR_RETURN(const TokenFile file, TokenFile::Open(path, known));
  FindTokenizer(file);
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<TextEncoder> encoder, Encoder(file));
  DT_ASSIGN_OR_RETURN(const std::optional<MaskFile> mask,
                      MaskFile::OpenFor(file.path(), file.tokens()));
  const TokenHeader& header = file.header();
  std::vector<int64_t> tokens(static_cast<size_t>(std::min(head, file.tokens())));
  DT_RETURN_IF_ERROR(file.Copy(0, absl::MakeSpan(tokens)));
  std::string ids;
  for (const int64_t token : tokens) {
    absl::StrAppendFormat(&ids, "%s%d", ids.empty() ? "" : " ", token);
  }
  Print(absl::StrFormat(
      "file        %s\nformat      %s, u%d\ntokens      %d\nvocabulary  %s\nhead        %s\n",
      file.path(), header.format, 8 * header.bytes_per_token, header.tokens,
      header.vocabulary == 0 ? "not stated" : absl::StrFormat("%d", header.vocabulary), ids));
  if (encoder != nullptr) {
    Print(absl::StrFormat("as text     %s\n", Decoded(*encoder, tokens, !tokenizer.empty())));
  }
  if (!mask.has_value()) {
    return absl::OkStatus();
  }
  Print(absl::StrFormat("mask        %s, %d of %d tokens are trained on%s\n", mask->path(),
                        mask->header().trained, header.tokens,
                        mask->header().row_length == 0
                            ? ""
                            : absl::StrFormat(", rows of %d", mask->header().row_length)));
  return ShowSamples(file, *mask, encoder.get());
}

absl::Status ShowCommand::Arguments::ShowSamples(const TokenFile& file, const MaskFile& mask,
                                                 const TextEncoder* encoder) const {
  constexpr int64_t kBlock = 4096;
  std::vector<int64_t> tokens;  // The tokens of the sample that is read.
  std::vector<uint8_t> bits;
  int64_t begin = 0;
  int64_t shown = 0;
  std::vector<int64_t> block_tokens;
  std::vector<uint8_t> block_bits;
  const auto end_sample = [&] {
    const bool is_padding =
        std::none_of(bits.begin(), bits.end(), [](uint8_t b) { return (b & kMaskTrained) != 0; });
    if (!is_padding && shown < samples) {
      ShowSample(shown++, begin, tokens, bits, mask.header(), encoder);
    }
    begin += static_cast<int64_t>(tokens.size());
    tokens.clear();
    bits.clear();
  };
  for (int64_t at = 0; at < file.tokens() && shown < samples; at += kBlock) {
    const auto n = static_cast<size_t>(std::min(kBlock, file.tokens() - at));
    block_tokens.resize(n);
    block_bits.resize(n);
    DT_RETURN_IF_ERROR(file.Copy(at, absl::MakeSpan(block_tokens)));
    DT_RETURN_IF_ERROR(mask.Copy(at, absl::MakeSpan(block_bits)));
    for (size_t i = 0; i < n; ++i) {
      const bool is_full = static_cast<int64_t>(tokens.size()) == kSampleTokensMax;
      if (!tokens.empty() && ((block_bits[i] & kMaskStart) != 0 || is_full)) {
        end_sample();
      }
      tokens.push_back(block_tokens[i]);
      bits.push_back(block_bits[i]);
    }
  }
  if (!tokens.empty()) {
    end_sample();
  }
  return absl::OkStatus();
}

void ShowCommand::Arguments::ShowSample(int64_t number, int64_t begin,
                                        absl::Span<const int64_t> tokens,
                                        absl::Span<const uint8_t> bits, const MaskHeader& header,
                                        const TextEncoder* encoder) const {
  const auto is_trained = [&](size_t i) { return (bits[i] & kMaskTrained) != 0; };
  int64_t trained = 0;
  for (size_t i = 0; i < bits.size(); ++i) {
    trained += is_trained(i) ? 1 : 0;
  }
  std::string text = absl::StrFormat(
      "\nsample %d%s, %d tokens, %d trained on (+)\n", number,
      header.row_length == 0 ? "" : absl::StrFormat(" in row %d", begin / header.row_length),
      tokens.size(), trained);
  for (size_t i = 0; i < tokens.size();) {
    size_t end = i;
    while (end < tokens.size() && is_trained(end) == is_trained(i)) {
      ++end;
    }
    const absl::Span<const int64_t> stretch = tokens.subspan(i, end - i);
    absl::StrAppendFormat(&text, "  %s ", is_trained(i) ? "+" : "-");
    if (encoder != nullptr) {
      text += Decoded(*encoder, stretch, !tokenizer.empty());
    } else {
      for (const int64_t token : stretch) {
        absl::StrAppendFormat(&text, "%d ", token);
      }
      text.pop_back();
    }
    text += "\n";
    i = end;
  }
  Print(text);
}

ShowCommand::ShowCommand(CLI::App* app)
    : arguments_(std::make_unique<Arguments>()),
      app_(app->add_subcommand("show",
                               "Print the format, the size and the first tokens of a token file, "
                               "and which tokens of samples are trained on")) {
  Arguments& a = *arguments_;
  app_->footer(
      "Examples:\n"
      "  dtrain data show data/train.bin --head 64\n"
      "  dtrain data show data/train.bin --tokenizer Qwen3-0.6B --samples 5");
  app_->add_option("FILE", a.path, "Token file")->required();
  app_->add_option("--format", a.format,
                   "Format of the file: auto (read the header), llmc, nanogpt-u16 or megatron")
      ->capture_default_str();
  app_->add_option("--tokenizer", a.tokenizer,
                   "Folder or file of the tokenizer that made the tokens, to show their text. "
                   "Default: the one beside the file, in corpus.tokenizer; bytes need none")
      ->option_text("PATH");
  app_->add_option("--head", a.head, "Number of tokens to print")
      ->capture_default_str()
      ->check(CLI::Range(0, 100000));
  app_->add_option("--samples", a.samples, "Number of samples to print of instruction data")
      ->capture_default_str()
      ->check(CLI::Range(0, 100000));
}

ShowCommand::~ShowCommand() = default;

bool ShowCommand::parsed() const { return app_->parsed(); }

absl::Status ShowCommand::Run() const { return arguments_->Run(); }

}  // namespace dtrain::plan
