#include "runtime/plan/data/token_sampler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/numeric/prng.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

// Above any real run, and low enough that sums of a few cannot overflow.
constexpr int64_t kFieldMax = int64_t{1} << 48;

absl::StatusOr<std::vector<SkipRange>> Merged(std::vector<SkipRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const SkipRange& a, const SkipRange& b) { return a.begin < b.begin; });
  std::vector<SkipRange> merged;
  for (const SkipRange& range : ranges) {
    if (range.begin < 0 || range.end < range.begin || range.end > kFieldMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "data skip range [%d, %d) is not an interval of samples", range.begin, range.end));
    }
    if (range.begin == range.end) {
      continue;
    }
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

absl::StatusOr<int64_t> IntegerField(const Json& json, const char* name) {
  const auto field = json.find(name);
  if (field == json.end()) {
    return absl::InvalidArgumentError(absl::StrFormat("data cursor has no \"%s\"", name));
  }
  const absl::StatusOr<int64_t> value = JsonInteger(*field);
  if (!value.ok() || *value < 0 || *value > kFieldMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data cursor: \"%s\" is %s, want an integer from 0 to 2^48", name, DumpJson(*field)));
  }
  return *value;
}

absl::StatusOr<std::vector<MixedPart>> MixtureField(const Json& json) {
  std::vector<MixedPart> parts;
  const auto field = json.find("mixture");
  if (field == json.end()) {
    return parts;
  }
  if (!field->is_array() || field->size() > static_cast<size_t>(MixturePattern::kPartsMax)) {
    return absl::InvalidArgumentError("data cursor: \"mixture\" is not a list of parts");
  }
  for (const Json& pair : *field) {
    if (!pair.is_array() || pair.size() != 2) {
      return absl::InvalidArgumentError("data cursor: \"mixture\" holds something not a pair");
    }
    DT_ASSIGN_OR_RETURN(const int64_t windows, JsonInteger(pair[0]));
    DT_ASSIGN_OR_RETURN(const int64_t share, JsonInteger(pair[1]));
    parts.push_back({windows, share});
  }
  return parts;
}

}  // namespace

Json DataCursor::ToJson() const {
  Json ranges = Json::array();
  for (const SkipRange& range : skip) {
    ranges.push_back(Json::array({range.begin, range.end}));
  }
  Json json{{"step", step},
            {"seed", seed},
            {"epoch", epoch},
            {"windows", windows},
            {"global_batch", global_batch},
            {"sequence_length", sequence_length},
            {"skip", std::move(ranges)}};
  for (const MixedPart& part : mixture) {
    json["mixture"].push_back(Json::array({part.windows, part.share}));
  }
  return json;
}

absl::StatusOr<DataCursor> DataCursor::FromJson(const Json& json) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError("data cursor is not a JSON object");
  }
  DataCursor cursor;
  DT_ASSIGN_OR_RETURN(cursor.step, IntegerField(json, "step"));
  // The seed uses all 64 bits, so it is read as unsigned.
  const auto seed = json.find("seed");
  if (seed == json.end() || !seed->is_number_integer() ||
      (!seed->is_number_unsigned() && seed->get<int64_t>() < 0)) {
    return absl::InvalidArgumentError("data cursor: \"seed\" is missing or not an integer");
  }
  cursor.seed = seed->get<uint64_t>();
  DT_ASSIGN_OR_RETURN(cursor.epoch, IntegerField(json, "epoch"));
  DT_ASSIGN_OR_RETURN(cursor.windows, IntegerField(json, "windows"));
  DT_ASSIGN_OR_RETURN(cursor.global_batch, IntegerField(json, "global_batch"));
  DT_ASSIGN_OR_RETURN(cursor.sequence_length, IntegerField(json, "sequence_length"));
  const auto skip = json.find("skip");
  if (skip == json.end() || !skip->is_array()) {
    return absl::InvalidArgumentError("data cursor: \"skip\" is missing or not a list");
  }
  for (const Json& pair : *skip) {
    if (!pair.is_array() || pair.size() != 2) {
      return absl::InvalidArgumentError("data cursor: \"skip\" holds something not a pair");
    }
    DT_ASSIGN_OR_RETURN(const int64_t begin, JsonInteger(pair[0]));
    DT_ASSIGN_OR_RETURN(const int64_t end, JsonInteger(pair[1]));
    cursor.skip.push_back({begin, end});
  }
  DT_ASSIGN_OR_RETURN(cursor.skip, Merged(std::move(cursor.skip)));
  DT_ASSIGN_OR_RETURN(cursor.mixture, MixtureField(json));
  return cursor;
}

absl::StatusOr<TokenSampler> TokenSampler::Create(absl::Span<const int64_t> tokens_per_file,
                                                  const SamplerOptions& options,
                                                  std::vector<SkipRange> skip) {
  const SamplerPart part{{tokens_per_file.begin(), tokens_per_file.end()}, 1};
  return Create({&part, 1}, options, std::move(skip));
}

absl::StatusOr<TokenSampler> TokenSampler::Create(absl::Span<const SamplerPart> parts,
                                                  const SamplerOptions& options,
                                                  std::vector<SkipRange> skip) {
  if (options.sequence_length < 1 || options.global_batch < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequence length %d and global batch %d must be at least 1",
                        options.sequence_length, options.global_batch));
  }
  TokenSampler sampler;
  sampler.options_ = options;
  DT_ASSIGN_OR_RETURN(sampler.skip_, Merged(std::move(skip)));
  sampler.windows_before_.push_back(0);
  std::vector<double> weights;
  for (const SamplerPart& part : parts) {
    const int64_t first = sampler.windows_;
    int64_t tokens_in_all = 0;
    for (const int64_t tokens : part.tokens_per_file) {
      sampler.windows_ += std::max<int64_t>(0, tokens - 1) / options.sequence_length;
      sampler.windows_before_.push_back(sampler.windows_);
      tokens_in_all += tokens;
    }
    sampler.parts_.push_back({first, sampler.windows_ - first});
    weights.push_back(part.weight);
    if (sampler.windows_ == first && part.weight > 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%d tokens in %d files%s hold no sample: data.sequence_length %d needs %d tokens in one "
          "file",
          tokens_in_all, part.tokens_per_file.size(),
          parts.size() > 1 ? absl::StrFormat(" of part %d", weights.size() - 1) : "",
          options.sequence_length, options.sequence_length + 1));
    }
  }
  DT_ASSIGN_OR_RETURN(MixturePattern pattern, MixturePattern::Create(weights));
  if (parts.size() > 1) {
    sampler.pattern_ = std::make_shared<const MixturePattern>(std::move(pattern));
  }
  return sampler;
}

double TokenSampler::steps_per_epoch() const {
  int64_t drawn = pattern_ == nullptr ? windows_ : 0;
  for (size_t i = 0; pattern_ != nullptr && i < parts_.size(); ++i) {
    drawn += pattern_->shares()[i] > 0 ? parts_[i].windows : 0;
  }
  return static_cast<double>(drawn) / static_cast<double>(options_.global_batch);
}

int64_t TokenSampler::RowNumber(int64_t step, int64_t position) const {
  int64_t number = step * options_.global_batch + position;
  for (const SkipRange& range : skip_) {
    if (number < range.begin) {
      break;
    }
    number += range.end - range.begin;
  }
  return number;
}

SampleLocation TokenSampler::At(int64_t step, int64_t position) const {
  DT_CHECK(step >= 0 && position >= 0 && position < options_.global_batch)
      << "step " << step << ", position " << position;
  const int64_t number = RowNumber(step, position);
  if (pattern_ == nullptr) {
    return InPart(0, number);
  }
  const MixturePattern::Draw draw = pattern_->At(number);
  return InPart(draw.part, draw.index);
}

SampleLocation TokenSampler::InPart(int part, int64_t number) const {
  const auto& [first_window, windows] = parts_[static_cast<size_t>(part)];
  const int64_t epoch = number / windows;
  auto window = static_cast<uint64_t>(number % windows);
  if (options_.shuffle) {
    // Part 0 has the order that a corpus of one part has always had.
    const uint64_t part_seed =
        part == 0 ? options_.seed : MixBits(options_.seed + static_cast<uint64_t>(part));
    const uint64_t epoch_seed = MixBits(part_seed ^ MixBits(static_cast<uint64_t>(epoch)));
    window = IndexPermutation(static_cast<uint64_t>(windows), epoch_seed)(window);
  }
  const int64_t index = first_window + static_cast<int64_t>(window);
  const auto next = std::upper_bound(windows_before_.begin(), windows_before_.end(), index);
  const auto file = static_cast<int>(next - windows_before_.begin()) - 1;
  const int64_t in_file = index - windows_before_[static_cast<size_t>(file)];
  return {file, in_file * options_.sequence_length, epoch};
}

std::vector<SampleLocation> TokenSampler::MicroBatch(int64_t step, int64_t micro_step,
                                                     const RankSlice& slice) const {
  const int64_t row = slice.world_size * slice.micro_batch;
  DT_CHECK(row > 0 && options_.global_batch % row == 0 &&
           micro_step < options_.global_batch / row && slice.rank < slice.world_size)
      << "rank " << slice.rank << " of " << slice.world_size << ", micro-batch "
      << slice.micro_batch << ", micro-step " << micro_step;
  const int64_t begin = slice.place(micro_step) * slice.micro_batch;
  std::vector<SampleLocation> samples;
  samples.reserve(static_cast<size_t>(slice.micro_batch));
  for (int64_t i = 0; i < slice.micro_batch; ++i) {
    samples.push_back(At(step, begin + i));
  }
  return samples;
}

DataCursor TokenSampler::CursorAt(int64_t step) const {
  DataCursor cursor;
  cursor.step = step;
  cursor.seed = options_.seed;
  cursor.epoch = RowNumber(step, 0) / windows_;
  cursor.windows = windows_;
  cursor.global_batch = options_.global_batch;
  cursor.sequence_length = options_.sequence_length;
  cursor.skip = skip_;
  for (size_t i = 0; pattern_ != nullptr && i < parts_.size(); ++i) {
    cursor.mixture.push_back({parts_[i].windows, pattern_->shares()[i]});
  }
  return cursor;
}

int64_t TokenSampler::StepAfter(const DataCursor& cursor) const {
  if (cursor.global_batch == options_.global_batch) {
    return cursor.step;
  }
  const int64_t samples = cursor.step * cursor.global_batch;
  return (samples + options_.global_batch - 1) / options_.global_batch;
}

absl::Status TokenSampler::CheckCursor(const DataCursor& cursor, bool other_batch) const {
  const auto differs = [](const char* what, const std::string& saved, const std::string& now) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the saved data position was taken with %s %s, this run has %s; restore the old value or "
        "start a fresh run",
        what, saved, now));
  };
  if (cursor.seed != options_.seed) {
    return differs("seed", absl::StrFormat("%d", cursor.seed),
                   absl::StrFormat("%d", options_.seed));
  }
  const struct {
    const char* what;
    int64_t saved;
    int64_t now;
  } fields[] = {{"corpus windows", cursor.windows, windows_},
                {"train_batch_size", other_batch ? options_.global_batch : cursor.global_batch,
                 options_.global_batch},
                {"data.sequence_length", cursor.sequence_length, options_.sequence_length}};
  for (const auto& field : fields) {
    if (field.saved != field.now) {
      return differs(field.what, absl::StrFormat("%d", field.saved),
                     absl::StrFormat("%d", field.now));
    }
  }
  if (cursor.mixture != CursorAt(0).mixture) {
    const auto text = [](const std::vector<MixedPart>& parts) {
      return absl::StrCat("[",
                          absl::StrJoin(parts, ", ",
                                        [](std::string* out, const MixedPart& p) {
                                          absl::StrAppendFormat(out, "%d of %d", p.share,
                                                                MixturePattern::kPlaces);
                                        }),
                          "]");
    };
    return differs("shares of the parts of data.train", text(cursor.mixture),
                   text(CursorAt(0).mixture));
  }
  if (cursor.step > kFieldMax / std::max(options_.global_batch, cursor.global_batch)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the saved data position stands at step %d, beyond any run of global batch %d", cursor.step,
        std::max(options_.global_batch, cursor.global_batch)));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::plan
