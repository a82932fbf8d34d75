// dtrain-generate: writes text with a model folder. `dtrain generate FOLDER "prompt"` runs it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "generate/generate.h"
#include "generate/program.h"
#include "generate/prompts.h"
#include "generate/text_folder.h"

namespace {

constexpr char kProgram[] = "dtrain generate";

struct Arguments {
  ReadingOptions reading;
  std::vector<std::string> prompts;
  std::string file;
  std::string chat;
  PromptOptions prompt;
  GenerateOptions generate;
  std::optional<double> temperature;
  std::optional<double> repetition_penalty;
  bool json = false;
  bool quiet = false;
};

void AddPromptOptions(CLI::App& app, Arguments& a) {
  app.add_option("PROMPTS", a.prompts, "Texts to go on from. Default: the lines of standard input");
  app.add_option("--file", a.file,
                 "Read prompts from FILE, one on each line, or the \"prompt\" of each line of a "
                 "FILE.jsonl; - is standard input. Default: the arguments")
      ->option_text("FILE");
  app.add_option("--template", a.chat,
                 "Write each prompt as the message of a user: chatml, llama3, qwen, alpaca or "
                 "plain. Default: a prompt is the beginning of a text")
      ->option_text("NAME");
  app.add_option("--system", a.prompt.system,
                 "System text of --template. Default: the template's own")
      ->option_text("TEXT");
}

void AddChoiceOptions(CLI::App& app, Arguments& a) {
  app.add_option("--max-tokens", a.generate.tokens_max, "Largest number of tokens of a text")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->option_text("N")
      ->capture_default_str();
  app.add_option("--temperature", a.temperature,
                 "How evenly tokens are drawn: a higher number is more even, and 0 always takes "
                 "the most likely token. Default: 0, or 1 with --top-k or --top-p")
      ->option_text("NUMBER");
  app.add_option("--top-k", a.generate.sampling.top_k,
                 "Draw from this many of the most likely tokens; 0: from all")
      ->option_text("N")
      ->capture_default_str();
  app.add_option("--top-p", a.generate.sampling.top_p,
                 "Draw from the most likely tokens that together have this probability")
      ->option_text("NUMBER")
      ->capture_default_str();
  app.add_option("--repetition-penalty", a.repetition_penalty,
                 "Above 1: tokens that came before are less likely. Default: the one of "
                 "generation_config.json, else 1")
      ->option_text("NUMBER");
  app.add_option("--seed", a.generate.seed, "Seed of the draws; the same seed gives the same text")
      ->option_text("N")
      ->capture_default_str();
  app.add_flag("--json", a.json,
               "Print a JSON object for each prompt, with text and token ids. Default: the text, "
               "as it is written");
  app.add_flag("--quiet", a.quiet, "Leave out the line on speed. Default: off");
}

std::string Speed(size_t tokens, double seconds) {
  return seconds > 0 ? absl::StrFormat("%.1f", static_cast<double>(tokens) / seconds) : "-";
}

// On stderr, so that what is written to stdout is the text alone.
void TellSpeed(const Prompt& prompt, const Generated& done) {
  std::fprintf(stderr,
               "[%zu tokens of the prompt at %s tokens/s, %zu written at %s tokens/s, %s]\n",
               prompt.ids.size(), Speed(prompt.ids.size(), done.prompt_s).c_str(),
               done.tokens.size(), Speed(done.tokens.size() - 1, done.others_s).c_str(),
               done.end == Generated::End::kStop        ? "ended by an end token"
               : done.end == Generated::End::kTokensMax ? "ended by --max-tokens"
                                                        : "ended at the model's last position");
}

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);  // People watch it being written.
}

absl::Status GenerateOne(const std::string& text, const Arguments& a, const TextFolder& folder) {
  DT_ASSIGN_OR_RETURN(const Prompt prompt, EncodePrompt(text, a.prompt, *folder.tokenizer));
  GenerateOptions options = a.generate;
  options.stops = folder.tokenizer->stop_tokens();
  options.stops.insert(options.stops.end(), prompt.stops.begin(), prompt.stops.end());
  dtrain::plan::StreamDecoder decoder(*folder.tokenizer);
  std::string written;
  const auto show = [&](const std::string& part) {
    written += part;
    if (!a.json) {
      Print(part);
    }
  };
  DT_ASSIGN_OR_RETURN(const Generated done,
                      Generate(*folder.model.ptr(), prompt.ids, options,
                               [&](uint32_t token) { show(decoder.Push(token)); }));
  show(decoder.Finish());
  if (a.json) {
    const dtrain::Json line = {
        {"prompt", text},           {"text", written},         {"prompt_tokens", prompt.ids},
        {"tokens", done.tokens},    {"end", NameOf(done.end)}, {"prompt_s", done.prompt_s},
        {"others_s", done.others_s}};
    Print(dtrain::DumpJson(line) + "\n");
  } else {
    Print("\n");
  }
  if (!a.quiet && !a.json) {
    TellSpeed(prompt, done);
  }
  return absl::OkStatus();
}

absl::Status Complete(Arguments& a) {
  SamplingOptions& sampling = a.generate.sampling;
  const bool draws = sampling.top_k > 0 || sampling.top_p < 1;
  sampling.temperature = a.temperature.value_or(draws ? 1 : 0);
  DT_ASSIGN_OR_RETURN(const GenerationDefaults defaults, ReadGenerationDefaults(a.reading.folder));
  sampling.repetition_penalty = a.repetition_penalty.value_or(defaults.repetition_penalty);
  if (!defaults.ignored.empty()) {
    std::fprintf(stderr, "%s: generation_config.json sets what is not supported: %s\n", kProgram,
                 absl::StrJoin(defaults.ignored, ", ").c_str());
  }
  if (!a.chat.empty()) {
    DT_ASSIGN_OR_RETURN(a.prompt.chat, dtrain::plan::ChatTemplateFromName(a.chat));
  } else if (!a.prompt.system.empty()) {
    return absl::InvalidArgumentError("--system needs --template, which says how it is written");
  }
  return CheckSampling(sampling);
}

absl::Status Run(Arguments& a) {
  if (!a.prompts.empty() && !a.file.empty()) {
    return absl::InvalidArgumentError("prompts are given as arguments and by --file; choose one");
  }
  DT_RETURN_IF_ERROR(FindModel(kProgram, a.reading));
  DT_RETURN_IF_ERROR(Complete(a));
  if (a.prompts.empty()) {
    DT_ASSIGN_OR_RETURN(a.prompts, ReadPrompts(a.file.empty() ? "-" : a.file));
  }
  PrepareToCompute(a.reading);
  DT_ASSIGN_OR_RETURN(const TextFolder folder,
                      OpenTextFolder({a.reading.folder, a.reading.type, a.reading.tokenizer}));
  for (const std::string& text : a.prompts) {
    if (a.prompts.size() > 1 && !a.json) {
      Print(absl::StrCat("> ", text, "\n"));
    }
    DT_RETURN_IF_ERROR(GenerateOne(text, a, folder));
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Writes text with a model: a published one, or that of a training. It computes on this "
      "machine's CPU.",
      kProgram);
  app.footer(
      "The text goes to standard output as it is written. It ends at an end token that\n"
      "the model's files name, or after --max-tokens.\n\n"
      "Examples:\n"
      "  dtrain generate runs/gpt \"Once upon\"\n"
      "  dtrain generate Qwen2.5-0.5B \"The capital of France is\"\n"
      "  dtrain generate tuned --template qwen \"Why is the sky blue?\" --temperature 0.7\n"
      "  dtrain generate tuned --file prompts.txt --json > answers.jsonl");
  Arguments arguments;
  AddReadingOptions(app, arguments.reading);
  AddPromptOptions(app, arguments);
  AddChoiceOptions(app, arguments);
  if (const auto code = dtrain::ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  return EndOfProgram(kProgram, [&] { return Run(arguments); });
}
