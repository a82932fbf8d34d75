#include "runtime/plan/data/training_data.h"

#include "base/status.h"
#include "runtime/plan/data/token_sampler.h"

namespace dtrain::plan {

std::vector<CorpusPart> TrainingParts(const Config& config) {
  std::vector<CorpusPart> parts;
  for (const DataPart& part : config.data_parts()) {
    parts.push_back({part.files, part.weight});
  }
  return parts;
}

absl::StatusOr<double> StepsPerEpoch(const Config& config) {
  if (config.data_train().empty()) {
    return absl::NotFoundError("data.train names no token file");
  }
  DT_ASSIGN_OR_RETURN(const TokenFormat format, TokenFormatFromName(config.data_format()));
  auto corpus = TokenCorpus::Open(TrainingParts(config), format);
  DT_RETURN_IF_ERROR(Annotate(corpus.status(), "data.train"));
  auto sampler = TokenSampler::Create(corpus->parts(), {.sequence_length = config.sequence_length(),
                                                        .global_batch = config.global_batch(),
                                                        .seed = config.seed()});
  DT_RETURN_IF_ERROR(Annotate(sampler.status(), "data.train"));
  return sampler->steps_per_epoch();
}

}  // namespace dtrain::plan
