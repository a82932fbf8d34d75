#include "generate/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace {

namespace plan = dtrain::plan;

// REQUIRES: rows of one length.
dtrain::Batch BatchOf(const std::vector<EvalRow>& rows, plan::DocumentRule documents) {
  const auto count = static_cast<int64_t>(rows.size());
  const size_t length = rows.front().tokens.size() - 1;
  const auto make = [&] {
    return at::empty({count, static_cast<int64_t>(length)}, at::TensorOptions(at::kLong));
  };
  const bool has_documents =
      documents.token >= 0 ||
      std::any_of(rows.begin(), rows.end(), [](const EvalRow& row) { return !row.mask.empty(); });
  dtrain::Batch batch{make(), make()};
  at::Tensor positions = make();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto place = [&](at::Tensor& tensor) {
      return absl::MakeSpan(tensor.mutable_data_ptr<int64_t>() + i * length, length);
    };
    const std::vector<int64_t>& tokens = rows[i].tokens;
    std::copy(tokens.begin(), tokens.end() - 1, place(batch.tokens).begin());
    if (rows[i].mask.empty()) {
      plan::MarkDocuments(tokens, documents, place(positions), place(batch.targets));
    } else {
      plan::MarkSamples(tokens, rows[i].mask, place(positions), place(batch.targets));
    }
  }
  const auto* const targets = batch.targets.const_data_ptr<int64_t>();
  batch.targets_counted =
      batch.targets.numel() -
      std::count(targets, targets + batch.targets.numel(), dtrain::kIgnoredTarget);
  if (has_documents) {
    batch.document_lengths = dtrain::DocumentLengths(positions);
    batch.positions = std::move(positions);
  }
  return batch;
}

// Rows of one length, at most options.batch; empty behind the last one. `next`: a row that was
// read and belongs to the next batch.
absl::StatusOr<std::vector<EvalRow>> ReadBatch(EvalRows& source, int64_t count,
                                               std::optional<EvalRow>& next) {
  std::vector<EvalRow> rows;
  while (static_cast<int64_t>(rows.size()) < count) {
    std::optional<EvalRow> row = std::exchange(next, std::nullopt);
    if (!row.has_value()) {
      DT_ASSIGN_OR_RETURN(row, source.Next());
    }
    if (!row.has_value()) {
      break;
    }
    if (!rows.empty() && rows.front().tokens.size() != row->tokens.size()) {
      next = std::move(row);
      break;
    }
    rows.push_back(*std::move(row));
  }
  return rows;
}

}  // namespace

double Evaluated::perplexity() const { return std::exp(loss()); }

absl::StatusOr<Evaluated> EvaluateRows(GptImpl& model, EvalRows& rows,
                                       const EvaluateOptions& options,
                                       absl::FunctionRef<void(const Evaluated&)> progress) {
  const at::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const absl::Cleanup restore = [&] { model.train(was_training); };
  Evaluated total;
  std::optional<EvalRow> next;
  while (options.rows_max == 0 || total.rows < options.rows_max) {
    const int64_t wanted = options.rows_max == 0
                               ? options.batch
                               : std::min(options.batch, options.rows_max - total.rows);
    DT_ASSIGN_OR_RETURN(const std::vector<EvalRow> batch, ReadBatch(rows, wanted, next));
    if (batch.empty()) {
      break;
    }
    const dtrain::Loss loss = model.Loss(BatchOf(batch, options.documents));
    total.loss_sum += loss.sum.item<double>();
    total.tokens += loss.count;
    total.rows += static_cast<int64_t>(batch.size());
    progress(total);
  }
  if (total.tokens == 0) {
    return absl::InvalidArgumentError(
        "the data hold no token to predict: a text needs two tokens, instruction data a "
        "completion");
  }
  return total;
}
