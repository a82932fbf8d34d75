"""`dtrain data prepare` of Parquet files that pyarrow writes gives the same bytes as of the same rows as JSONL: every
codec, encoding and version of data pages that is read, in small and large pages and row groups."""
import itertools
import json
import os
import random
import subprocess
import tempfile
import unittest

import end_to_end
from time_bounds import bound_s

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    pa = None

BIN = os.environ["DTRAIN_BIN"]
ROWS = 1200
WORDS = ["the", "cat", "naïve", "привет", "世界", "🙂👍", "x = f(y)\n\t", '"quoted" \\ \x01\x7f', "\r\n", "\u2028", ""]
CODECS = ("none", "snappy", "gzip", "zstd", "lz4")
ENCODINGS = ("dictionary", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
MESSAGE = "messages.list.element"
TEXTS = ("text", f"{MESSAGE}.role", f"{MESSAGE}.content", f"{MESSAGE}.tags.list.element")


def text_of(rng, words):
    return " ".join(rng.choices(WORDS, k=words))


def records(seed):
    """Rows with nulls at each level, empty texts and lists, and columns that are not asked for."""
    rng = random.Random(seed)
    made = []
    for i in range(ROWS):
        turns = [{"role": ("user", "assistant")[j % 2], "content": f"{i} {j} {text_of(rng, 6)}",
                  "tags": None if j == 1 else [text_of(rng, 1) for _ in range((i + j) % 3)]}
                 for j in range(2 * (1 + i % 3))]
        made.append({"id": None if i % 5 == 0 else i, "text": None if i % 7 == 3 else text_of(rng, i % 40),
                     "score": i * 0.37, "nothing": None, "flag": i % 2 == 0,
                     "messages": [] if i % 11 == 5 else None if i % 11 == 6 else turns})
    return made


def without_nulls(value):
    """A null of a table is a member that is not there."""
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return [without_nulls(element) for element in value] if isinstance(value, list) else value


@unittest.skipIf(pa is None, "no pyarrow here; `./dev deps test` installs it")
class Parquet(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder_object = tempfile.TemporaryDirectory(prefix="dtrain-parquet-")
        cls.folder = cls.folder_object.name
        message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tags", pa.list_(pa.string()))])
        cls.schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("score", pa.float64()),
                                ("nothing", pa.null()), ("flag", pa.bool_()), ("messages", pa.list_(message))])
        cls.records = records(3)
        cls.table = pa.Table.from_pylist(cls.records, cls.schema)
        cls.lines = f"{cls.folder}/rows.jsonl"
        with open(cls.lines, "w", encoding="utf-8") as file:
            for record in cls.records:
                file.write(json.dumps(without_nulls(record), ensure_ascii=False) + "\n")

    @classmethod
    def tearDownClass(cls):
        cls.folder_object.cleanup()

    def prepare(self, name, *words, code=0, **options):
        """The bytes of the files and what is printed about them."""
        out = f"{self.folder}/{name}"
        result = subprocess.run([f"{BIN}/dtrain-data", "prepare", "--out", out, *words], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, timeout=bound_s(60), check=False, **options)
        printed = result.stdout.decode().replace(out, "OUT")
        self.assertEqual(result.returncode, code, printed)
        if code != 0:
            return printed
        files = {}
        for file in sorted(os.listdir(out)):
            if os.path.isfile(f"{out}/{file}"):  # The tokenizer has a folder.
                with open(f"{out}/{file}", "rb") as opened:
                    files[file] = opened.read()
        self.assertIn("train.bin", files)
        return files, [line for line in printed.splitlines() if "the first bad record" not in line]

    def write(self, name, table=None, **options):
        path = f"{self.folder}/{name}.parquet"
        pq.write_table(self.table if table is None else table, path, **options)
        return path

    def kinds(self):
        """Options of pyarrow's writer by a name."""
        for codec, version, encoding in itertools.product(CODECS, ("1.0", "2.0"), ENCODINGS):
            options = {"compression": codec, "data_page_version": version, "write_page_checksum": codec == "zstd"}
            if encoding != "dictionary":
                options |= {"use_dictionary": False, "column_encoding": dict.fromkeys(TEXTS, encoding)}
            if version == "1.0":
                options |= {"row_group_size": 250, "data_page_size": 1500, "write_batch_size": 40}
            yield f"{codec}-{version[0]}-{encoding}", options

    def test_every_kind_of_file_gives_the_bytes_of_jsonl(self):
        words = ("--text-key", "text", "--skip-bad", str(ROWS))
        texts = self.prepare("texts", *words, self.lines)
        words_of_chats = ("--template", "plain", "--sequence-length", "600", "--skip-bad", str(ROWS))
        chats = self.prepare("chats", *words_of_chats, self.lines)
        self.assertGreater(len(texts[0]["train.bin"]), 100000)
        self.assertGreater(len(chats[0]["train.bin"]), 100000)
        for number, (name, options) in enumerate(self.kinds()):
            with self.subTest(name):
                path = self.write(name, **options)
                # Each kind is read as one of the two, and both are read of each codec and encoding.
                of_chats = (number // len(ENCODINGS) + number) % 2 == 0
                prepared = self.prepare(f"of-{name}", *(words_of_chats if of_chats else words), path)
                self.assertEqual(prepared, chats if of_chats else texts)

    def test_lists_without_the_standards_names_and_large_types_are_read(self):
        words = ("--template", "plain", "--sequence-length", "600", "--skip-bad", str(ROWS))
        path = self.write("item", use_compliant_nested_type=False)
        message = pa.struct([("role", pa.dictionary(pa.int32(), pa.string())), ("content", pa.large_string())])
        rows = [{"messages": record["messages"] and [{"role": turn["role"], "content": turn["content"]}
                                                     for turn in record["messages"]]} for record in self.records]
        large = self.write("large", pa.Table.from_pylist(rows, pa.schema([("messages", pa.large_list(message))])))
        expected = self.prepare("expected", *words, self.lines)
        self.assertEqual(self.prepare("of-item", *words, path), expected)
        self.assertEqual(self.prepare("of-large", *words, large), expected)

    def test_pairs_are_read_beside_any_other_columns(self):
        rows = [{"prompt": f"{i}?", "completion": f"{i}!", "system": None if i % 2 else "be brief", "when": i}
                for i in range(200)]
        lines = f"{self.folder}/pairs.jsonl"
        with open(lines, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(without_nulls(row)) + "\n" for row in rows)
        schema = pa.schema([("when", pa.timestamp("ns")), ("prompt", pa.string()), ("completion", pa.string()),
                            ("system", pa.string())])
        path = self.write("pairs", pa.Table.from_pylist(rows, schema), use_deprecated_int96_timestamps=True)
        words = ("--template", "plain", "--sequence-length", "64")
        self.assertEqual(self.prepare("of-pairs", *words, path), self.prepare("pairs", *words, lines))

    def test_a_tools_call_is_refused_and_a_column_for_calls_without_one_is_not(self):
        def row(i, calls):
            return {"messages": [{"role": "user", "content": f"{i}?"},
                                 {"role": "assistant", "content": f"{i}.", "tool_calls": calls}]}
        call = pa.struct([("function", pa.struct([("name", pa.string())]))])
        message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(call))])
        rows = [row(i, None if i % 2 else []) for i in range(9)] + [row(9, [{"function": {"name": "f"}}])]
        path = self.write("calls", pa.Table.from_pylist(rows, pa.schema([("messages", pa.list_(message))])))
        words = ("--template", "plain", "--sequence-length", "64", path)
        self.assertIn("calls.parquet, row 10: message 1: it has \"tool_calls\"",
                      self.prepare("of-calls", *words, code=64))
        self.assertIn("records left out: 1 bad", "\n".join(self.prepare("of-calls", "--skip-bad", "1", *words)[1]))

    def test_folders_and_several_files_are_read_in_order(self):
        os.makedirs(f"{self.folder}/shards")
        for part in range(3):
            path = self.write(f"shards/{part}", self.table.slice(part * 400, 400))
        # As Spark leaves it, with one file in a cache that the folder has a link to.
        metadata = pq.read_metadata(path)
        metadata.set_file_path("2.parquet")
        metadata.write_metadata_file(f"{self.folder}/shards/_metadata")
        pq.write_metadata(self.table.schema, f"{self.folder}/shards/_common_metadata")
        for name in ("_SUCCESS", ".2.parquet.crc"):
            with open(f"{self.folder}/shards/{name}", "w", encoding="utf-8") as file:
                file.write("crc")
        os.rename(path, f"{self.folder}/blob")
        os.symlink("../blob", path)
        words = ("--text-key", "text", "--skip-bad", str(ROWS))
        files, _ = self.prepare("of-shards", *words, f"{self.folder}/shards")
        self.assertEqual(files, self.prepare("of-lines", *words, self.lines)[0])

    def test_what_is_not_read_is_refused_by_one_line(self):
        whole = self.write("whole")
        with open(whole, "rb") as file:
            content = file.read()
        cut = f"{self.folder}/cut.parquet"
        with open(cut, "wb") as file:
            file.write(content[:-1000])
        for words, texts in (
                ((cut,), ("cut.parquet", "it is cut")),
                ((whole, "--text-key", "body"), ("it has no column \"body\" (it has: id, text, score",)),
                ((whole, "--text-key", "score"), ("whole.parquet, row 1: its member \"score\" is a number",)),
                ((whole,), ("whole.parquet, row 4: it has no member \"text\"", "--skip-bad N")),
                ((self.write("brotli", compression="brotli"),), ("column \"text\" of row group 0", "BROTLI")),
                ((self.write("split", use_dictionary=False, column_encoding={
                    "score": "BYTE_STREAM_SPLIT"}), "--text-key", "score"), ("column \"score\"", "BYTE_STREAM_SPLIT")),
                ((self.write("chats", pa.table({"question": ["a"], "input": ["b"]})), "--template", "plain"),
                 ("it has no column \"messages\", nor \"prompt\" and \"completion\"", "(it has: question, input)")),
                (("-",), ("standard input is a Parquet file", "name the file"))):
            with self.subTest(texts), open(whole, "rb") as given:
                printed = self.prepare("refused", *words, code=64, stdin=given)
                self.assertTrue(any(all(text in line for text in texts) for line in printed.splitlines()), printed)


if __name__ == "__main__":
    end_to_end.main()
