// ReadCorpusTokenizer: the tokenizer that is kept beside the training data.
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "dtrain/token_loader.h"
#include "runtime/data/training_store.h"
#include "runtime/plan/data/token_corpus.h"
#include "runtime/plan/data/token_mask.h"
#include "runtime/plan/data/tokenizer_files.h"
#include "runtime/plan/data/training_data.h"

namespace dtrain {

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadCorpusTokenizer(Job& job) {
  const std::vector<plan::CorpusPart> parts = plan::TrainingParts(job.config());
  DT_ASSIGN_OR_RETURN(const auto store, OpenTrainingStore(parts, job));
  std::set<std::string> folders;
  for (const plan::CorpusPart& part : parts) {
    DT_ASSIGN_OR_RETURN(const auto paths, plan::ExpandTokenPaths(part.patterns, store.get()));
    for (const std::string& path : paths) {
      // Where nobody looks for a mask, a file that is not there is an error of the server.
      if (!plan::MayHaveMask(path) || !folders.insert(plan::CorpusFolderOf(path)).second) {
        continue;
      }
      DT_ASSIGN_OR_RETURN(plan::NamedTexts files,
                          plan::ReadCorpusTokenizer(plan::CorpusFolderOf(path), store.get()));
      if (!files.empty()) {
        return files;
      }
    }
  }
  return plan::NamedTexts();
}

}  // namespace dtrain
