#include "runtime/plan/tokenizer/train_tokenizer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/train_pairs.h"
#include "runtime/plan/tokenizer/unicode/byte_alphabet.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"
#include "runtime/plan/tokenizer/word_scanner.h"

namespace dtrain::plan {
namespace {

constexpr size_t kBatchBytes = 32 << 20;  // Documents that are read before they are counted.
constexpr size_t kWordsMax = 30'000'000;  // Different ones: about 4 GiB.
constexpr size_t kTrainedWordBytesMax =
    256;  // Longer ones are no words: data, or one repeated byte.
constexpr int64_t kVocabSizeMax = 1 << 22;

using WordCounts = absl::flat_hash_map<std::string, int64_t>;

// Patterns that `tokenizers` reads as tiktoken does.
std::vector<std::string> PatternNames() {
  std::vector<std::string> names = WordScanner::Names();
  names.erase(std::remove(names.begin(), names.end(), "cl100k"), names.end());
  return names;
}

absl::Status CheckTraining(const TrainTokenizerOptions& options) {
  const std::vector<std::string> names = PatternNames();
  if (std::find(names.begin(), names.end(), options.pattern) == names.end()) {
    return absl::InvalidArgumentError(absl::StrFormat("the pattern \"%s\" is unknown; known are %s",
                                                      options.pattern, absl::StrJoin(names, ", ")));
  }
  const auto least = static_cast<int64_t>(256 + options.special_tokens.size());
  if (options.vocab_size < least || options.vocab_size > kVocabSizeMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the vocabulary size is %d; it must be from %d (256 bytes and the special tokens) to %d",
        options.vocab_size, least, kVocabSizeMax));
  }
  if (options.min_frequency < 1 || options.threads < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the least frequency is %d and the number of threads %d; they must be at least 1 and 0",
        options.min_frequency, options.threads));
  }
  std::set<std::string> known;
  for (const std::string& token : options.special_tokens) {
    std::string storage;
    if (token.size() < 2 || RepairedUtf8(token, &storage) != token || !known.insert(token).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the special token \"%s\" must be UTF-8 of at least 2 bytes and be given once", token));
    }
  }
  return absl::OkStatus();
}

void CountWords(const WordScanner& scanner, absl::string_view document, WordCounts* counts) {
  std::string storage;
  const absl::string_view text = RepairedUtf8(document, &storage);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = scanner.WordEnd(text, begin);
    if (end - begin <= kTrainedWordBytesMax) {
      ++(*counts)[text.substr(begin, end - begin)];
    }
    begin = end;
  }
}

// Counts the words of some documents on several threads. Sums do not depend on who counts what.
void CountBatch(const WordScanner& scanner, const std::vector<std::string>& documents,
                std::vector<WordCounts>* counts) {
  std::vector<std::thread> threads;
  for (size_t t = 0; t < counts->size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < documents.size(); i += counts->size()) {
        CountWords(scanner, documents[i], &(*counts)[t]);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

absl::StatusOr<std::vector<CountedWord>> CountAll(const NextDocument& next,
                                                  const TrainTokenizerOptions& options,
                                                  TrainTokenizerReport* report) {
  const WordScanner scanner = *WordScanner::ForName(options.pattern);
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  std::vector<WordCounts> counts(options.threads > 0 ? static_cast<size_t>(options.threads)
                                                     : cores);
  bool more = true;
  while (more) {
    std::vector<std::string> documents;
    for (size_t bytes = 0; bytes < kBatchBytes && more;) {
      std::string document;
      DT_ASSIGN_OR_RETURN(more, next(&document));
      if (more) {
        bytes += document.size();
        report->bytes += static_cast<int64_t>(document.size());
        ++report->documents;
        documents.push_back(std::move(document));
      }
    }
    CountBatch(scanner, documents, &counts);
    size_t words = 0;
    for (const WordCounts& part : counts) {
      words += part.size();
    }
    if (words > kWordsMax) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "the text has more than %d different words after %d documents; give less text, a part "
          "of it gives nearly the same vocabulary",
          kWordsMax, report->documents));
    }
  }
  for (size_t t = 1; t < counts.size(); ++t) {
    for (const auto& [word, count] : counts[t]) {
      counts[0][word] += count;
    }
    counts[t] = WordCounts();
  }
  std::vector<CountedWord> words;
  for (const auto& [word, count] : counts[0]) {
    words.push_back({word, count});
  }
  std::sort(words.begin(), words.end(), [](const CountedWord& a, const CountedWord& b) {
    return std::tie(b.count, a.bytes) < std::tie(a.count, b.bytes);
  });
  report->words = static_cast<int64_t>(words.size());
  return words;
}

// The bytes of each symbol, from those of its parts.
std::vector<std::string> BytesOfSymbols(const std::vector<BpeMerge>& merges) {
  std::vector<std::string> symbols;
  for (int byte = 0; byte < 256; ++byte) {
    symbols.emplace_back(1, static_cast<char>(byte));
  }
  for (const BpeMerge& merge : merges) {
    symbols.push_back(symbols[merge.left] + symbols[merge.right]);
  }
  return symbols;
}

// A special token that was learned too would be one text with two ids, which no reader takes.
absl::Status CheckNotLearned(const std::vector<BpeMerge>& merges,
                             const std::vector<std::string>& special_tokens) {
  const std::vector<std::string> symbols = BytesOfSymbols(merges);
  for (const std::string& token : special_tokens) {
    const std::optional<std::string> bytes = BytesOfLetters(token);
    if (bytes.has_value() && std::find(symbols.begin(), symbols.end(), *bytes) != symbols.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the special token \"%s\" is one that the text has taught as well; choose a text that is "
          "no word, such as <|%s|>",
          token, token));
    }
  }
  return absl::OkStatus();
}

Json PreTokenizerJson(const std::string& pattern) {
  Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  bytes["use_regex"] = pattern == "gpt2";
  if (pattern == "gpt2") {
    return bytes;
  }
  const Json split{{"type", "Split"},
                   {"pattern", {{"Regex", WordScanner::PatternOf(pattern)}}},
                   {"behavior", "Isolated"},
                   {"invert", false}};
  return Json{{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
}

// Bytes are numbered as in GPT-2, by their letters; then merges, then special tokens. Written by
// hand because a Json object of all tokens would take time that grows with their square.
std::string FileText(const std::vector<BpeMerge>& merges, const TrainTokenizerOptions& options) {
  const std::vector<std::string> symbols = BytesOfSymbols(merges);
  std::vector<size_t> order(symbols.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.begin() + 256, [](size_t a, size_t b) {
    return LetterOfByte(static_cast<uint8_t>(a)) < LetterOfByte(static_cast<uint8_t>(b));
  });
  const auto quoted = [&](size_t symbol) {
    return DumpJson(Json(LettersOfBytes(symbols[symbol])));
  };
  std::string text = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n";
  Json added = Json::array();
  for (size_t i = 0; i < options.special_tokens.size(); ++i) {
    added.push_back(Json{{"id", symbols.size() + i},
                         {"content", options.special_tokens[i]},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
  }
  const Json decoder{{"type", "ByteLevel"},
                     {"add_prefix_space", true},
                     {"trim_offsets", true},
                     {"use_regex", true}};
  absl::StrAppend(&text, "  \"added_tokens\": ", DumpJson(added),
                  ",\n  \"normalizer\": null,\n  \"pre_tokenizer\": ",
                  DumpJson(PreTokenizerJson(options.pattern)),
                  ",\n  \"post_processor\": null,\n  \"decoder\": ", DumpJson(decoder),
                  ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
                  "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
                  "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
                  "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n"
                  "    \"vocab\": {");
  for (size_t id = 0; id < order.size(); ++id) {
    absl::StrAppend(&text, id == 0 ? "\n" : ",\n", "      ", quoted(order[id]), ": ", id);
  }
  absl::StrAppend(&text, "\n    },\n    \"merges\": [");
  for (size_t i = 0; i < merges.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "\n" : ",\n", "      [", quoted(merges[i].left), ", ",
                    quoted(merges[i].right), "]");
  }
  absl::StrAppend(&text, "\n    ]\n  }\n}\n");
  return text;
}

}  // namespace

absl::StatusOr<TrainTokenizerReport> TrainTokenizer(const NextDocument& next,
                                                    const TrainTokenizerOptions& options,
                                                    const std::string& out) {
  DT_RETURN_IF_ERROR(CheckTraining(options));
  TrainTokenizerReport report;
  DT_ASSIGN_OR_RETURN(const std::vector<CountedWord> words, CountAll(next, options, &report));
  if (words.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("there is no text to learn from: %d documents have %d bytes",
                        report.documents, report.bytes));
  }
  const size_t merges_max =
      static_cast<size_t>(options.vocab_size) - 256 - options.special_tokens.size();
  const std::vector<BpeMerge> merges = LearnMerges(words, merges_max, options.min_frequency);
  DT_RETURN_IF_ERROR(CheckNotLearned(merges, options.special_tokens));
  report.vocab_size = static_cast<int64_t>(256 + merges.size() + options.special_tokens.size());
  Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"clean_up_tokenization_spaces", false}};
  if (!options.special_tokens.empty()) {
    config["eos_token"] = options.special_tokens[0];
  }
  DT_RETURN_IF_ERROR(MakeDirectories(out));
  DT_RETURN_IF_ERROR(WriteFileAtomic(out + "/tokenizer.json", FileText(merges, options)));
  DT_RETURN_IF_ERROR(WriteFileAtomic(out + "/tokenizer_config.json", DumpJson(config, 2) + "\n"));
  return report;
}

}  // namespace dtrain::plan
