#include "runtime/plan/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/plan/stable_hash.h"
#include "runtime/plan/tokenizer/json_fields.h"
#include "runtime/plan/tokenizer/pipeline_tokenizer.h"
#include "runtime/plan/tokenizer/ranks/tekken_file.h"
#include "runtime/plan/tokenizer/tokenizer_file.h"
#include "runtime/plan/tokenizer/unicode/byte_alphabet.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"
#include "runtime/plan/tokenizer/unigram/unigram.h"
#include "runtime/plan/tokenizer/wordpiece/word_piece.h"

namespace dtrain::plan {
namespace {

constexpr uint32_t kSpaceMarkCodePoint = 0x2581;

using Ids = absl::flat_hash_map<std::string, uint32_t>;

// Ids with few gaps; a file of two tokens with the id 2^24 must not take gigabytes.
absl::Status FillTokens(const TokenizerFile& file, Ids* ids, std::vector<std::string>* tokens) {
  uint32_t id_max = 0;
  for (const auto& [token, id] : file.vocab) {
    id_max = std::max(id_max, id);
    if (!ids->emplace(token, id).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("model.vocab has the token \"%s\" twice", token.substr(0, 100)));
    }
  }
  if (id_max > 2 * file.vocab.size() + 65536) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model.vocab has %d tokens, but the id %d; ids must be nearly without gaps",
                        file.vocab.size(), id_max));
  }
  tokens->resize(file.vocab.empty() ? 0 : id_max + 1);
  for (const auto& [token, id] : file.vocab) {
    std::string& place = (*tokens)[id];
    if (!place.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("model.vocab has the id %d for \"%s\" and \"%s\"", id,
                          place.substr(0, 100), token.substr(0, 100)));
    }
    place = token;
  }
  return absl::OkStatus();
}

// `tokenizers` numbers added tokens itself: by the vocabulary, else one after the other.
absl::Status ReadAdded(const Json& rest, const Ids& ids, PipelineTokenizerParts* parts) {
  if (!rest.contains("added_tokens") || rest["added_tokens"].is_null()) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const Json* const rows, ArrayField(rest, "the document", "added_tokens"));
  auto next = static_cast<uint32_t>(ids.size());
  Ids known;
  for (size_t i = 0; i < rows->size(); ++i) {
    const std::string where = absl::StrFormat("added_tokens[%d]", i);
    DT_ASSIGN_OR_RETURN(AddedToken token, AddedToken::FromJson((*rows)[i], where));
    if (token.content.empty()) {
      continue;
    }
    const auto in_vocab = ids.find(token.content);
    const uint32_t id = in_vocab != ids.end() ? in_vocab->second : next;
    if (id != token.id || !known.emplace(token.content, id).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: the token \"%s\" has the id %d, but by the vocabulary and the tokens before it the "
          "id is %d; number added tokens in their order behind the vocabulary, each once",
          where, token.content.substr(0, 100), token.id, id));
    }
    if (in_vocab == ids.end()) {
      ++next;
    }
    if (id >= parts->tokens.size()) {
      parts->tokens.resize(id + 1);
    }
    parts->tokens[id] = token.content;
    parts->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> IdOf(const Ids& ids, const std::string& token, const char* what) {
  const auto found = ids.find(token);
  if (found == ids.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: the token \"%s\" is not in model.vocab", what, token.substr(0, 100)));
  }
  return found->second;
}

absl::Status FillMerges(const TokenizerFile& file, const Ids& ids, BpeParts* bpe) {
  bpe->merges.reserve(file.merges.size());
  std::string both;
  for (const auto& [left, right] : file.merges) {
    both = left;
    both += right;
    BpeMerge merge{};
    DT_ASSIGN_OR_RETURN(merge.left, IdOf(ids, left, "model.merges"));
    DT_ASSIGN_OR_RETURN(merge.right, IdOf(ids, right, "model.merges"));
    DT_ASSIGN_OR_RETURN(merge.result, IdOf(ids, both, "model.merges"));
    bpe->merges.push_back(merge);
  }
  return absl::OkStatus();
}

std::string ByteToken(int byte) { return absl::StrFormat("<0x%02X>", byte); }

// The tokens that words begin with.
void FillSymbols(const TokenizerFile& file, const Ids& ids, bool bytes, BpeParts* bpe) {
  bpe->bytes_first = bytes;
  for (int byte = 0; byte < 256; ++byte) {
    std::string text = ByteToken(byte);
    if (bytes) {
      text.clear();
      AppendCodePoint(LetterOfByte(static_cast<uint8_t>(byte)), &text);
    }
    const auto found = ids.find(text);
    bpe->byte_ids[static_cast<size_t>(byte)] = found == ids.end() ? kNoToken : found->second;
  }
  for (const auto& [token, id] : file.vocab) {
    if (!bytes && !token.empty() && Utf8Length(token[0]) == token.size()) {
      size_t at = 0;
      bpe->character_ids.emplace(NextCodePoint(token, &at), id);
    }
  }
}

absl::Status ReadModel(const TokenizerFile& file, const Ids& ids, bool bytes, BpeParts* bpe) {
  const Json& model = file.rest["model"];
  DT_RETURN_IF_ERROR(
      OnlyFields(model, "model",
                 {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix", "dropout"}) {
    const Json value = model.value(name, Json());
    if (!value.is_null() && value != Json("") && value != Json(0) && value != Json(0.0)) {
      return absl::UnimplementedError(absl::StrFormat("model: \"%s\" is %s, which is not supported",
                                                      name, DumpJson(value).substr(0, 100)));
    }
  }
  DT_ASSIGN_OR_RETURN(bpe->fuse_unknown, BoolField(model, "model", "fuse_unk", false));
  DT_ASSIGN_OR_RETURN(bpe->byte_fallback, BoolField(model, "model", "byte_fallback", false));
  DT_ASSIGN_OR_RETURN(const bool whole_words, BoolField(model, "model", "ignore_merges", false));
  if (model.contains("unk_token") && !model["unk_token"].is_null()) {
    DT_ASSIGN_OR_RETURN(const std::string unknown, StringField(model, "model", "unk_token"));
    DT_ASSIGN_OR_RETURN(bpe->unknown, IdOf(ids, unknown, "model.unk_token"));
  }
  FillSymbols(file, ids, bytes, bpe);
  if (bytes && bpe->byte_fallback &&
      std::count(bpe->byte_ids.begin(), bpe->byte_ids.end(), kNoToken) != 0) {
    return absl::UnimplementedError(
        "model: byte_fallback with a byte-level vocabulary that lacks bytes is not supported");
  }
  if (whole_words) {
    for (const auto& [token, id] : file.vocab) {
      const auto word = bytes ? BytesOfLetters(token) : std::optional<std::string>(token);
      if (word.has_value()) {
        bpe->whole_words.emplace(*word, id);
      }
    }
  }
  return FillMerges(file, ids, bpe);
}

// Where a vocabulary of characters never merges across U+2581, text may be cut before it: its words
// are then encoded once and remembered. The set has the characters after which it may not be cut;
// nullopt: nowhere.
std::optional<std::set<uint32_t>> NeverCutAfter(const TokenizerFile& file, const BpeParts& bpe) {
  if (bpe.bytes_first || !bpe.whole_words.empty() ||
      bpe.character_ids.count(kSpaceMarkCodePoint) == 0) {
    return std::nullopt;
  }
  std::set<uint32_t> never_after;
  for (const auto& [left, right] : file.merges) {
    if (absl::StartsWith(left, "<0x") || absl::StartsWith(right, "<0x")) {
      return std::nullopt;  // Merged bytes: their text is not the characters'.
    }
    const std::string both = left + right;
    uint32_t previous = 0;
    for (size_t i = 0; i < both.size();) {
      const uint32_t c = NextCodePoint(both, &i);
      if (c == kSpaceMarkCodePoint && previous != 0) {
        never_after.insert(previous);
      }
      previous = c;
    }
  }
  return never_after;
}

// The ids of a special token of a template.
absl::Status AddTemplateToken(const Json& processor, const std::string& name,
                              std::vector<uint32_t>* ids) {
  const std::string where = absl::StrCat("post_processor.special_tokens.", name.substr(0, 100));
  const Json tokens = processor.value("special_tokens", Json());
  if (!tokens.is_object() || !tokens.contains(name)) {
    return absl::InvalidArgumentError(absl::StrCat(where, " is missing"));
  }
  DT_ASSIGN_OR_RETURN(const Json* const found, ArrayField(tokens[name], where, "ids"));
  for (const Json& id : *found) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat(where, " has an id that is no id"));
    }
    ids->push_back(id.get<uint32_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadTemplate(const Json& json, const std::string& where,
                          PipelineTokenizerParts* parts) {
  DT_RETURN_IF_ERROR(OnlyFields(json, where, {"single", "pair", "special_tokens"}));
  DT_ASSIGN_OR_RETURN(const Json* const single, ArrayField(json, where, "single"));
  int texts = 0;
  for (const Json& part : *single) {
    if (part.is_object() && part.contains("Sequence")) {
      DT_ASSIGN_OR_RETURN(const std::string text, StringField(part["Sequence"], where, "id"));
      texts += text == "A" ? 1 : 2;  // "B", a second text, is none of a single one.
    } else if (part.is_object() && part.contains("SpecialToken")) {
      DT_ASSIGN_OR_RETURN(const std::string name, StringField(part["SpecialToken"], where, "id"));
      DT_RETURN_IF_ERROR(AddTemplateToken(json, name, texts > 0 ? &parts->after : &parts->before));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": a part of \"single\" is neither Sequence nor SpecialToken"));
    }
  }
  return texts == 1
             ? absl::OkStatus()
             : absl::UnimplementedError(absl::StrCat(
                   where,
                   ": a template \"single\" in which the text (\"A\") does not stand once is "
                   "not supported"));
}

absl::Status ReadPostProcessor(const Json& json, const std::string& where, int depth,
                               PipelineTokenizerParts* parts) {
  if (json.is_null()) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const std::string type, TypeOf(json, where));
  if (type == "ByteLevel") {  // Changes offsets alone.
    return absl::OkStatus();
  }
  if (!parts->before.empty() || !parts->after.empty()) {
    // The second one of `tokenizers` takes what the first one made for a pair of texts.
    if (type == "TemplateProcessing" || type == "RobertaProcessing" || type == "BertProcessing") {
      return absl::UnimplementedError(absl::StrFormat(
          "%s: \"%s\" behind another post-processor that adds tokens is not supported", where,
          type));
    }
  }
  if (type == "TemplateProcessing") {
    return ReadTemplate(json, where, parts);
  }
  if (type == "Sequence" && depth < 8) {
    DT_ASSIGN_OR_RETURN(const Json* const processors, ArrayField(json, where, "processors"));
    for (size_t i = 0; i < processors->size(); ++i) {
      DT_RETURN_IF_ERROR(ReadPostProcessor((*processors)[i], absl::StrFormat("%s[%d]", where, i),
                                           depth + 1, parts));
    }
    return absl::OkStatus();
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    for (const char* name : {"cls", "sep"}) {  // ["text", id]
      DT_ASSIGN_OR_RETURN(const Json* const pair, ArrayField(json, where, name));
      if (pair->size() != 2 || !(*pair)[1].is_number_unsigned()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: \"%s\" is not a token and its id", where, name));
      }
      (name[0] == 'c' ? parts->before : parts->after).push_back((*pair)[1].get<uint32_t>());
    }
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrFormat(
      "%s: the post-processor \"%s\" is not supported; supported are TemplateProcessing, "
      "ByteLevel, RobertaProcessing, BertProcessing and Sequence",
      where, type.substr(0, 100)));
}

// For Metaspace's "first" `tokenizers` seeks the start by a place in the text as it was before the
// normalizer. Here it is the first part of the normalized text, which is the same with some rules.
absl::Status CheckStart(const PipelineTokenizerParts& parts) {
  if (!parts.pre_tokenizer.marks_start()) {
    return absl::OkStatus();
  }
  if (parts.normalizer.may_drop_start()) {
    return absl::UnimplementedError(
        "pre_tokenizer: Metaspace with the prepend_scheme \"first\" is not supported beside a "
        "normalizer that may leave out a text's first characters (Strip, StripAccents, "
        "BertNormalizer, Replace by nothing)");
  }
  const bool is_cut = parts.pre_tokenizer.cuts_before_start_is_marked() ||
                      std::any_of(parts.added.begin(), parts.added.end(),
                                  [](const AddedToken& token) { return token.normalized; });
  return is_cut && parts.normalizer.may_part_start()
             ? absl::UnimplementedError(
                   "pre_tokenizer: Metaspace with the prepend_scheme \"first\" is not supported "
                   "beside a normalizer that may make several characters of one, where the text is "
                   "cut before by another pre-tokenizer or an added token (\"normalized\": true)")
             : absl::OkStatus();
}

// Models that encode words by other rules than byte pairs.
absl::Status ReadWordModel(const TokenizerFile& file, const UnigramPieces* pieces,
                           PipelineTokenizerParts* parts) {
  const Json& model = file.rest["model"];
  if (parts->pre_tokenizer.bytes()) {
    return absl::UnimplementedError(
        "pre_tokenizer: ByteLevel is supported before the model BPE alone");
  }
  if (pieces != nullptr) {
    parts->kind = "Unigram";
    DT_ASSIGN_OR_RETURN(parts->words, Unigram::FromJson(model, *pieces));
  } else {
    parts->kind = "WordPiece";
    DT_ASSIGN_OR_RETURN(parts->words, WordPiece::FromJson(model, file.vocab));
  }
  return absl::OkStatus();
}

absl::Status ReadBpe(const TokenizerFile& file, const Ids& ids, PipelineTokenizerParts* parts) {
  const bool bytes = parts->pre_tokenizer.bytes();
  DT_RETURN_IF_ERROR(ReadModel(file, ids, bytes, &parts->bpe));
  if (auto never_after = NeverCutAfter(file, parts->bpe); never_after.has_value()) {
    parts->pre_tokenizer.AddCutsBeforeSpaceMark(*std::move(never_after));
  }
  parts->kind = bytes                      ? "byte-level BPE"
                : parts->bpe.byte_fallback ? "BPE with byte fallback"
                                           : "BPE";
  return absl::OkStatus();
}

// Everything that decides tokens, hashed twice from different starts.
std::string IdentityOf(const TokenizerFile& file, const PipelineTokenizerParts& parts) {
  StableHash first;
  StableHash second;
  second.Add(1);
  const auto add = [&](absl::string_view text) {
    first.Add(text);
    second.Add(text);
  };
  Json rest = file.rest;
  for (const char* ignored :
       {"version", "truncation", "padding", "post_processor", "decoder", "added_tokens"}) {
    rest.erase(ignored);
  }
  add(DumpJson(rest));
  for (const std::string& token : parts.tokens) {
    add(token);
  }
  for (const auto& [left, right] : file.merges) {
    add(left);
    add(right);
  }
  for (const AddedToken& token : parts.added) {
    add(absl::StrFormat("%d %s %d%d%d%d%d", token.id, token.content, token.single_word,
                        token.lstrip, token.rstrip, token.normalized, token.special));
  }
  return absl::StrFormat("%016x%016x", first.value(), second.value());
}

absl::StatusOr<PipelineTokenizerParts> PartsOf(TokenizerFile file) {
  const Json& rest = file.rest;
  if (!rest.is_object() || !rest.contains("model") || !rest["model"].is_object()) {
    return absl::InvalidArgumentError(
        "there is no object \"model\"; a tokenizer.json of Hugging Face has one, and Mistral's "
        "tekken.json has \"config\" and \"vocab\"");
  }
  DT_RETURN_IF_ERROR(OnlyFields(rest, "the document",
                                {"version", "truncation", "padding", "added_tokens", "normalizer",
                                 "pre_tokenizer", "post_processor", "decoder", "model"}));
  const Json type = rest["model"].value("type", Json("BPE"));
  const bool is_bpe = type == Json("BPE");
  const bool is_unigram = type == Json("Unigram");
  if (!is_bpe && !is_unigram && type != Json("WordPiece")) {
    return absl::UnimplementedError(
        absl::StrFormat("model: the type %s is not supported; supported are BPE (byte-level, or "
                        "with byte fallback), Unigram and WordPiece",
                        DumpJson(type).substr(0, 100)));
  }
  UnigramPieces pieces;
  if (is_unigram) {
    DT_ASSIGN_OR_RETURN(pieces, Unigram::ReadPieces(rest["model"]));
    file.vocab.clear();
    for (const auto& [text, score] : pieces) {
      file.vocab.emplace_back(text, static_cast<uint32_t>(file.vocab.size()));
    }
  }
  PipelineTokenizerParts parts;
  Ids ids;
  DT_RETURN_IF_ERROR(FillTokens(file, &ids, &parts.tokens));
  DT_RETURN_IF_ERROR(ReadAdded(rest, ids, &parts));
  DT_ASSIGN_OR_RETURN(parts.normalizer, Normalizer::FromJson(rest.value("normalizer", Json())));
  DT_ASSIGN_OR_RETURN(parts.pre_tokenizer,
                      PreTokenizer::FromJson(rest.value("pre_tokenizer", Json())));
  DT_RETURN_IF_ERROR(CheckStart(parts));
  DT_ASSIGN_OR_RETURN(parts.decoder, TokenDecoder::FromJson(rest.value("decoder", Json())));
  DT_RETURN_IF_ERROR(is_bpe ? ReadBpe(file, ids, &parts)
                            : ReadWordModel(file, is_unigram ? &pieces : nullptr, &parts));
  DT_RETURN_IF_ERROR(
      ReadPostProcessor(rest.value("post_processor", Json()), "post_processor", 0, &parts));
  for (const std::vector<uint32_t>* around : {&parts.before, &parts.after}) {
    for (const uint32_t id : *around) {
      if (id >= parts.tokens.size()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "post_processor: the id %d is outside the vocabulary of %d", id, parts.tokens.size()));
      }
    }
  }
  parts.identity = IdentityOf(file, parts);
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(absl::string_view text,
                                                             const std::string& name) {
  DT_ASSIGN_OR_RETURN(TokenizerFile file, ReadTokenizerFile(text, name));
  if (IsTekken(file.rest)) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> made = TokenizerFromTekken(file.rest);
    return made.ok() ? std::move(made) : Annotate(made.status(), name);
  }
  absl::StatusOr<PipelineTokenizerParts> parts = PartsOf(std::move(file));
  if (!parts.ok()) {
    return Annotate(parts.status(), name);
  }
  return PipelineTokenizer::Create(*std::move(parts));
}

}  // namespace dtrain::plan
