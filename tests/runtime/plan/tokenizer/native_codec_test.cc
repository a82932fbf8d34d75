// Ids and texts equal those of SentencePiece's own library, for models that it trained.
#include "runtime/plan/tokenizer/sentencepiece/native_codec.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_codec.h"
#include "runtime/plan/tokenizer/sentencepiece/sentencepiece_proto.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"
#include "tests/runtime/plan/tokenizer/train_sentencepiece.h"

namespace dtrain::plan::native_codec_test {
namespace {

constexpr unsigned kSeed = 20261127;

// Parts of which texts are made: words, composed and compatible characters, white space, spaces of
// SentencePiece, control characters, pieces' own names and characters that no model has seen.
const std::vector<std::string>& Parts() {
  static const std::vector<std::string> parts = {"the ",
                                                 "training",
                                                 " of",
                                                 "model",
                                                 "aaa",
                                                 "aa",
                                                 "a",
                                                 "b",
                                                 "ab",
                                                 "  ",
                                                 " ",
                                                 "\t",
                                                 "\n",
                                                 "\r\n",
                                                 "é",
                                                 "e\u0301",
                                                 "ﬁ",
                                                 "½",
                                                 "①",
                                                 "Å",
                                                 "Ω",
                                                 "привет ",
                                                 "мир",
                                                 "世界",
                                                 "世",
                                                 "界 ",
                                                 "がぎ",
                                                 "か\u3099",
                                                 "ｱ",
                                                 "한글",
                                                 "\u1112\u1161\u11ab",
                                                 "😀",
                                                 "👩‍💻",
                                                 "\u2581",
                                                 "\u2581\u2581",
                                                 "\u00a0",
                                                 "\u3000",
                                                 "\u200b",
                                                 "<s>",
                                                 "<0x41>",
                                                 "<unk>",
                                                 "\x01",
                                                 "\x7f",
                                                 "\ufffd",
                                                 "A\u030a",
                                                 "ẛ\u0323",
                                                 "123",
                                                 "4.5",
                                                 "𝔘",
                                                 "\u0958",
                                                 "नमस्ते ",
                                                 "ß",
                                                 "İ",
                                                 "..."};
  return parts;
}

std::string RandomText(std::mt19937& random, size_t parts_max) {
  std::string text;
  for (size_t n = random() % (parts_max + 1); n > 0; --n) {
    if (random() % 8 == 0) {
      const auto any = static_cast<uint32_t>(random() % 0x30000);
      AppendCodePoint(any >= 0xd800 && any < 0xe000 ? 'x' : any, &text);
    } else {
      text += Parts()[random() % Parts().size()];
    }
  }
  return text;
}

// The file of a rule that turns "ab" into "c" in decoded texts.
std::string DenormalizationRules() {
  const std::string path = absl::StrCat(testing::TempDir(), "/native_codec_test.tsv");
  std::ofstream(path) << "61 62\t63\n";
  return path;
}

std::string Trained(const std::string& flags) {
  const std::string folder = testing::TempDir();
  const std::string input = absl::StrCat(folder, "/sentences.txt");
  {
    std::mt19937 random(kSeed);
    std::ofstream file(input);
    for (int line = 0; line < 400; ++line) {
      for (int part = 0; part < 12; ++part) {
        file << Parts()[random() % 30] << (random() % 3 == 0 ? " " : "");
      }
      file << "\n";
    }
  }
  return TrainSentencePiece(absl::StrCat(flags, " --input=", input, " --hard_vocab_limit=false"),
                            absl::StrCat(folder, "/native_codec_test"));
}

std::unique_ptr<NativeCodec> NativeCodecOf(const std::string& model) {
  auto proto = ParseSentencePieceProto(model);
  return proto.ok() ? NativeCodec::Create(*std::move(proto)) : nullptr;
}

void ExpectSameTexts(const SentencePieceCodec& codec, const SentencePieceCodec& library) {
  std::mt19937 random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint32_t> ids;
    for (size_t n = random() % 12; n > 0; --n) {
      // Half of them from the start, where special pieces and bytes are.
      const size_t end = random() % 2 == 0 ? std::min<size_t>(300, codec.size()) : codec.size();
      ids.push_back(static_cast<uint32_t>(random() % end));
    }
    ASSERT_EQ(codec.Decode(ids), library.Decode(ids)) << "seed " << kSeed << ", texts " << i;
  }
}

void ExpectSameAsTheLibrary(const std::string& model) {
  const std::unique_ptr<NativeCodec> codec = NativeCodecOf(model);
  ASSERT_NE(codec, nullptr);
  std::string error;
  const auto library = SentencePieceCodec::OfLibrary(model, &error);
  ASSERT_NE(library, nullptr) << error;
  ASSERT_EQ(codec->size(), library->size());
  EXPECT_EQ(codec->begin_id(), library->begin_id());
  EXPECT_EQ(codec->end_id(), library->end_id());
  for (uint32_t id = 0; id < codec->size(); ++id) {
    ASSERT_EQ(codec->PieceOf(id), library->PieceOf(id));
    ASSERT_EQ(codec->IsControl(id), library->IsControl(id));
    ASSERT_EQ(codec->IdOf(codec->PieceOf(id)), library->IdOf(codec->PieceOf(id)));
  }
  EXPECT_EQ(codec->IdOf("no such piece"), library->IdOf("no such piece"));
  std::mt19937 random(kSeed);
  size_t longest = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = RandomText(random, i % 100 == 0 ? 400 : 12);
    std::vector<uint32_t> want;
    ASSERT_TRUE(library->Encode(text, &want, &error)) << error;
    std::vector<uint32_t> ids;
    ASSERT_TRUE(codec->Encode(text, &ids, &error)) << error;
    ASSERT_EQ(ids, want) << "seed " << kSeed << ": " << text;
    ASSERT_EQ(codec->Decode(ids), library->Decode(ids)) << "seed " << kSeed << ": " << text;
    longest = std::max(longest, ids.size());
  }
  EXPECT_GT(longest, 300U);
  ExpectSameTexts(*codec, *library);
}

TEST(NativeCodecTest, BytePairsWithByteFallback) {
  ExpectSameAsTheLibrary(Trained("--model_type=bpe --vocab_size=420 --byte_fallback=true"));
}

TEST(NativeCodecTest, BytePairsWithUnknownPieces) {
  ExpectSameAsTheLibrary(Trained("--model_type=bpe --vocab_size=150"));
}

TEST(NativeCodecTest, BytePairsWhenAllSpacesStay) {
  ExpectSameAsTheLibrary(
      Trained("--model_type=bpe --vocab_size=420 --byte_fallback=true "
              "--normalization_rule_name=identity --add_dummy_prefix=false "
              "--remove_extra_whitespaces=false --allow_whitespace_only_pieces=true"));
}

TEST(NativeCodecTest, BytePairsWhenPiecesCrossWords) {
  ExpectSameAsTheLibrary(
      Trained("--model_type=bpe --vocab_size=300 --split_by_whitespace=false "
              "--normalization_rule_name=nfkc_cf"));
}

TEST(NativeCodecTest, UnigramWithByteFallback) {
  ExpectSameAsTheLibrary(Trained("--model_type=unigram --vocab_size=420 --byte_fallback=true"));
}

TEST(NativeCodecTest, UnigramWithUnknownPieces) {
  ExpectSameAsTheLibrary(
      Trained("--model_type=unigram --vocab_size=120 --unk_surface=? --bos_piece=[B] --eos_id=-1"));
}

TEST(NativeCodecTest, UnigramWhenAllSpacesStay) {
  ExpectSameAsTheLibrary(
      Trained("--model_type=unigram --vocab_size=150 --normalization_rule_name=identity "
              "--remove_extra_whitespaces=false --split_by_whitespace=false"));
}

TEST(NativeCodecTest, LeavesOtherModelsToTheLibrary) {
  const std::string bpe = " --model_type=bpe --vocab_size=150";
  const std::string unigram = " --model_type=unigram --vocab_size=100";
  for (const std::string& flags :
       {std::string("--model_type=char"), "--user_defined_symbols=ab" + bpe,
        "--treat_whitespace_as_suffix=true" + bpe, "--user_defined_symbols=ab" + unigram,
        "--denormalization_rule_tsv=" + DenormalizationRules() + unigram}) {
    EXPECT_EQ(NativeCodecOf(Trained(flags)), nullptr) << flags;
  }
}

TEST(NativeCodecTest, NoDamageOfAModelBreaksTheCodec) {
  for (const char* const flags :
       {"--model_type=bpe --vocab_size=150", "--model_type=unigram --vocab_size=120"}) {
    const std::string model = Trained(flags);
    for (size_t size = 1; size < model.size(); size += 1 + size / 16) {
      (void)ParseSentencePieceProto(absl::string_view(model).substr(0, size));
    }
    std::mt19937 random(kSeed);
    int encoded = 0;
    for (int i = 0; i < 60; ++i) {
      std::string damaged = model;
      for (int j = 0; j < 8; ++j) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      const auto codec = NativeCodecOf(damaged);
      for (int text = 0; codec != nullptr && text < 20; ++text) {
        std::vector<uint32_t> ids;
        std::string error;
        ASSERT_TRUE(codec->Encode(RandomText(random, 12), &ids, &error));
        for (const uint32_t id : ids) {
          ASSERT_LT(id, codec->size()) << "seed " << kSeed;
        }
        (void)codec->Decode(ids);
        ++encoded;
      }
    }
    EXPECT_GT(encoded, 0) << flags;
  }
}

}  // namespace
}  // namespace dtrain::plan::native_codec_test
