"""README and docs/ keep their promises: links lead somewhere, and keys, flags, codes and examples exist."""
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from pages import code_blocks, read

SOURCE = os.environ["DTRAIN_SOURCE"]
CMAKE = os.environ["DTRAIN_CMAKE"]
PAGES = ["README.md", *sorted(os.path.relpath(path, SOURCE)
                              for path in glob.glob(f"{SOURCE}/docs/**/*.md", recursive=True))]
# docs/notes/ tells of what was tried; keys and flags there may be gone.
CURRENT_PAGES = [page for page in PAGES if not page.startswith("docs/notes/")]
FREE_SECTIONS = {"model", "finetune", "sample"}  # Programs define their keys.
LAUNCH_ALIASES = {"--num-gpus", "--num-nodes"}   # DeepSpeed's names, which the launcher maps.
NAMED_FILE = re.compile(r"`([^`\s]*/[^`\s]*\.(?:h|cc|cu|py|md))`")


def anchors(page):
    """The names under which GitHub links to a page's headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", read(page), re.MULTILINE)}


class Pages(unittest.TestCase):
    maxDiff = None

    def test_links_lead_to_files_and_headings(self):
        wrong = []
        for page in PAGES:
            for link in re.findall(r"\]\(([^)\s]+)\)", read(page)):
                if re.match(r"[a-z]+:", link):
                    continue
                path, _, anchor = link.partition("#")
                target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
                if not os.path.exists(f"{SOURCE}/{target}"):
                    wrong.append(f"{page}: {link}: no such file")
                elif anchor and target.endswith(".md") and anchor not in anchors(target):
                    wrong.append(f"{page}: {link}: no such heading")
        self.assertEqual(wrong, [])

    def test_named_files_exist(self):
        """A path is relative to the root, to runtime/, to its public headers or to its own page."""
        wrong = []
        for page in PAGES:
            bases = ("", "runtime", "runtime/include", os.path.dirname(page))
            wrong += [f"{page}: {path}: no such file" for path in NAMED_FILE.findall(read(page))
                      if not any(glob.glob(os.path.join(SOURCE, base, path)) for base in bases)]
        self.assertEqual(wrong, [])

    def test_every_page_is_in_the_readmes_index(self):
        index = read("README.md")
        self.assertEqual([page for page in CURRENT_PAGES[1:] if f"]({page})" not in index], [])

    def test_configuration_keys_exist(self):
        keys = set(re.findall(r"^\| `([\w.]+)` \|", read("docs/CONFIG.md"), re.MULTILINE))
        self.assertGreater(len(keys), 100)
        sections = {key.split(".")[0] for key in keys if "." in key} - FREE_SECTIONS
        wrong = []
        for page in CURRENT_PAGES:
            text = read(page)
            named = re.findall(r"`([a-z_0-9]+(?:\.[a-z_0-9]+)+)`", text)
            named += re.findall(r"--set '?([a-z_0-9.]+)=", text)
            for name in named:
                known = (name in keys or name.endswith((".json", ".jsonl"))
                         or any(key.startswith(f"{name}.") for key in keys))
                if not known and (name.split(".")[0] in sections or "." not in name):
                    wrong.append(f"{page}: {name}")
        self.assertEqual(wrong, [])

    def test_launch_flags_exist(self):
        code = "".join(map(read, ("launcher/options.cc", "launcher/torchrun_flags.cc", "launcher/hosts/host_flags.cc")))
        flags = set(re.findall(r'"(?:-\w,)?(--[a-z-]+)"', code)) | LAUNCH_ALIASES
        wrong = []
        for page in CURRENT_PAGES:
            text = read(page).replace("\\\n", " ")
            for command in re.findall(r"^dtrain launch (.*)$", text, re.MULTILINE):
                own = command.split(" -- ")[0]
                wrong += [f"{page}: {flag}" for flag in re.findall(r"--[a-z-]+", own)
                          if flag not in flags]
        self.assertEqual(wrong, [])

    def test_exit_codes_are_those_of_the_source(self):
        rows = re.findall(r'\{(\d+), "([^"]+)",\s*Restart::k(\w+)\}', read("launcher/exit_table.h"))
        self.assertGreater(len(rows), 5)
        text = {"Never": "never", "Once": "once", "Yes": "yes", "Requeue": "requeue"}
        page = read("docs/FAILURES.md")
        for code, meaning, restart in rows:
            self.assertIn(f"| {code} | {meaning} | {text[restart]} |\n", page)

    def test_json_examples_are_json(self):
        blocks = [block for page in CURRENT_PAGES for block in code_blocks(page, "json")]
        self.assertGreaterEqual(len(blocks), 2)
        for block in blocks:
            json.loads(block)

    def test_readme_shows_the_minimal_program(self):
        shown = [re.sub(r"\s*//.*", "", line).strip() for line in code_blocks("README.md", "cpp")[0].split("\n")]
        lines = iter(re.sub(r"\s*//.*", "", line).strip()
                     for line in read("examples/minimal/minimal.cc").split("\n"))
        for line in filter(None, shown):
            self.assertIn(line, lines)  # In this order: `in` consumes the iterator.

    def test_readme_shows_the_minimal_cmake_file(self):
        text = re.sub(r"\A(#.*\n)+", "", read("examples/minimal/CMakeLists.txt"))
        self.assertEqual(code_blocks("README.md", "cmake"), [text])

    def flags_of_the_example(self, *words):
        """Compile flags of examples/minimal, configured beside a package that holds nothing."""
        with tempfile.TemporaryDirectory(prefix="dtrain-pages-") as folder:
            shutil.copytree(f"{SOURCE}/examples/minimal", f"{folder}/project")
            os.mkdir(f"{folder}/package")
            with open(f"{folder}/package/dtrainConfig.cmake", "w", encoding="utf-8") as file:
                file.write("add_library(dtrain::dtrain INTERFACE IMPORTED)\n")
            environment = {k: v for k, v in os.environ.items()
                           if not k.startswith("CMAKE_") and k != "CXXFLAGS"}
            subprocess.run([CMAKE, "-G", "Ninja", "-S", f"{folder}/project", "-B", f"{folder}/build",
                            f"-Ddtrain_DIR={folder}/package", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
                            *words], check=True, stdout=subprocess.DEVNULL, env=environment)
            with open(f"{folder}/build/compile_commands.json", encoding="utf-8") as file:
                return json.load(file)[0]["command"].split()

    def test_the_example_builds_optimised_code_unless_asked_otherwise(self):
        self.assertIn("-O3", self.flags_of_the_example())
        self.assertNotIn("-O3", self.flags_of_the_example("-DCMAKE_BUILD_TYPE=Debug"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
