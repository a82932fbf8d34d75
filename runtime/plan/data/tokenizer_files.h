// The small files that make a tokenizer, in a model's folder and beside a corpus, which may lie
// behind a store. Functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "runtime/plan/data/data_store.h"

namespace dtrain::plan {

// Files as {name, text}.
using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// The files of a model's folder that belong to its tokenizer and to generation. Those that are not
// there are left out.
absl::StatusOr<NamedTexts> ReadTokenizerFiles(const std::string& folder);

// The same of a tokenizer that is named by its folder or by its file, as Tokenizer::Load takes it.
absl::StatusOr<NamedTexts> FilesOfTokenizer(const std::string& path);

// The folder for the tokenizer of the corpus in `folder`. It has a name of its own because a corpus
// may lie in a folder that has a tokenizer already.
std::string CorpusTokenizerFolder(const std::string& folder);

// The member of corpus.json that names these files, because web servers give no lists.
inline constexpr char kTokenizerFilesKey[] = "tokenizer_files";
// Its value: the names.
Json TokenizerFileNames(const NamedTexts& files);

// The folder or address in which a token file lies.
std::string CorpusFolderOf(const std::string& token_path);

// The files of the tokenizer that is kept in the corpus at `folder`, on this host or at an address
// behind `store`, where corpus.json names them. Empty: there are none. The errors of reading what
// is there; InvalidArgument: corpus.json names what is no file of a tokenizer.
absl::StatusOr<NamedTexts> ReadCorpusTokenizer(const std::string& folder, DataStore* store);

// Writes `files` to that folder, in place of those of an earlier corpus. Without files, removes it.
absl::Status WriteCorpusTokenizer(const std::string& folder, const NamedTexts& files);

}  // namespace dtrain::plan
