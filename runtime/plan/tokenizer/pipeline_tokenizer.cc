#include "runtime/plan/tokenizer/pipeline_tokenizer.h"

#include "base/status.h"
#include "runtime/plan/tokenizer/unicode/byte_alphabet.h"

namespace dtrain::plan {
namespace {

std::vector<AddedToken> Sought(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> sought;
  for (const AddedToken& token : tokens) {
    if (token.normalized == normalized) {
      sought.push_back(token);
    }
  }
  return sought;
}

std::vector<std::string> Texts(const std::vector<AddedToken>& tokens) {
  std::vector<std::string> texts;
  for (const AddedToken& token : tokens) {
    texts.push_back(token.content);
  }
  return texts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PipelineTokenizer>> PipelineTokenizer::Create(
    PipelineTokenizerParts parts) {
  std::vector<std::string> patterns;
  for (const AddedToken& token : Sought(parts.added, /*normalized=*/true)) {
    std::string storage;
    DT_ASSIGN_OR_RETURN(const absl::string_view normalized,
                        parts.normalizer.Apply(token.content, &storage));
    patterns.emplace_back(normalized);
  }
  return std::unique_ptr<PipelineTokenizer>(
      new PipelineTokenizer(std::move(parts), std::move(patterns)));
}

PipelineTokenizer::PipelineTokenizer(PipelineTokenizerParts parts,
                                     std::vector<std::string> patterns)
    : parts_(std::move(parts)),
      bpe_(std::move(parts_.bpe)),
      in_text_(Sought(parts_.added, false), Texts(Sought(parts_.added, false))),
      in_normalized_(Sought(parts_.added, true), patterns),
      special_(parts_.tokens.size()) {
  for (size_t id = 0; id < parts_.tokens.size(); ++id) {
    if (!parts_.tokens[id].empty()) {
      ids_.emplace(parts_.tokens[id], static_cast<uint32_t>(id));
    }
  }
  size_t at = 0;
  for (const AddedToken& token : parts_.added) {
    special_[token.id] = token.special;
    if (token.normalized) {
      decoded_as_.insert_or_assign(token.id, patterns[at++]);
    }
  }
  vocab_size_ = static_cast<uint32_t>(parts_.tokens.size());
  identity_ = parts_.identity;
}

std::optional<uint32_t> PipelineTokenizer::TokenId(absl::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

bool PipelineTokenizer::IsSpecial(uint32_t id) const {
  return id < special_.size() && special_[id];
}

absl::Status PipelineTokenizer::EncodePiece(absl::string_view text, bool is_start,
                                            bool special_tokens, BpeScratch* scratch,
                                            std::vector<uint32_t>* ids) const {
  std::string storage;
  DT_ASSIGN_OR_RETURN(const absl::string_view normalized, parts_.normalizer.Apply(text, &storage));
  return in_normalized_.ForEachPart(
      normalized, special_tokens, [&](absl::string_view part, const AddedToken* token) {
        if (token != nullptr) {
          ids->push_back(token->id);
          return absl::OkStatus();
        }
        return parts_.pre_tokenizer.ForEachWord(
            part, is_start && part.data() == normalized.data(), [&](absl::string_view word) {
              if (parts_.words == nullptr) {
                bpe_.EncodeWord(word, scratch, ids);
              } else {
                scratch->cache.AppendTokens(word, ids,
                                            [&] { parts_.words->EncodeWord(word, ids); });
              }
            });
      });
}

absl::Status PipelineTokenizer::EncodeUtf8(absl::string_view text, const EncodeOptions& options,
                                           std::vector<uint32_t>* ids) const {
  if (options.add_template) {
    ids->insert(ids->end(), parts_.before.begin(), parts_.before.end());
  }
  std::unique_ptr<BpeScratch> scratch = scratches_.Borrow();
  const absl::Status status = in_text_.ForEachPart(
      text, options.special_tokens, [&](absl::string_view part, const AddedToken* token) {
        if (token != nullptr) {
          ids->push_back(token->id);
          return absl::OkStatus();
        }
        return EncodePiece(part, part.data() == text.data(), options.special_tokens, scratch.get(),
                           ids);
      });
  scratches_.GiveBack(std::move(scratch));
  DT_RETURN_IF_ERROR(status);
  if (options.add_template) {
    ids->insert(ids->end(), parts_.after.begin(), parts_.after.end());
  }
  return absl::OkStatus();
}

std::string PipelineTokenizer::DecodeIds(absl::Span<const uint32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const uint32_t id : ids) {
    if (id >= parts_.tokens.size() || parts_.tokens[id].empty() || (skip_special && special_[id])) {
      continue;
    }
    const auto found = decoded_as_.find(id);
    tokens.push_back(found == decoded_as_.end() ? parts_.tokens[id] : found->second);
  }
  return parts_.decoder.Decode(std::move(tokens));
}

}  // namespace dtrain::plan
