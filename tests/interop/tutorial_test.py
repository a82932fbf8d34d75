"""Each command of docs/TUTORIAL.md and docs/DATA.md does what the page says: from text to tokens, to a training, to a
tuned model, and on two hosts with real sshd. The commands are read from the pages, and the programs are those of an
installed dtrain. Models are smaller and runs shorter than on the pages.

Slurm takes long to start: its command is shown by --dry-run here, and interop_slurm_launch_test gives such a command
to a real Slurm of two nodes."""
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import pyarrow
import pyarrow.parquet
from pages import code_blocks, read
import end_to_end
from end_to_end import TIME_BOUND_S
from generate_test import VOCABULARY, save_tokenizer
from ports import free_port

SOURCE, BUILD, CMAKE = (os.environ[f"DTRAIN_{name}"] for name in ("SOURCE", "BUILD", "CMAKE"))
sys.path[:0] = [f"{SOURCE}/bench", f"{SOURCE}/bench/launches"]

import links  # noqa: E402
import ssh_hosts  # noqa: E402

WHY_NOT = ssh_hosts.why_not()
MODEL = "Qwen2.5-0.5B-Instruct"  # A small model with random weights takes its place.
STEPS_MAX = 6
SMALL = {"eval_interval": 0, "data.sequence_length": 32, "model.vocab_size": VOCABULARY, "model.hidden_size": 32,
         "model.intermediate_size": 64, "model.num_hidden_layers": 1, "model.max_position_embeddings": 256,
         "sample.tokens": 0}
# Commands that another test, or a benchmark, runs: the file, and what it has of them.
ELSEWHERE = (
    (r"pip install dist/dtrain-.*\.whl", "tests/package/wheel_test.py", '"-m", "pip", "install"'),
    (r"dtrain train", "tests/package/wheel_test.py", '/bin/dtrain", "train"'),
    (r"\./dev train", "bench/builds/fresh_clone.py", '"./dev", "train"'),
    (r"cmake -B build -DCMAKE_PREFIX_PATH=\$\(dtrain env --prefix\)", "tests/package/clean_root_test.py",
     "share/dtrain/examples/minimal /project"),
    (r"cmake --build build", "tests/package/clean_root_test.py", "for program in build/minimal"),
    (r"dtrain bench mfu --preset gpt2-124m --device cpu --steps 5", "tests/interop/bench_mfu_test.py", "--preset"),
)


def commands_of(text):
    """Single commands of shell lines, without comments."""
    lines = [re.sub(r"\s+#\s.*", "", line).strip() for line in text.replace("\\\n", " ").splitlines()]
    return [re.sub(r"\s+", " ", part) for line in lines for part in line.split(" && ") if part]


def shortened(command):
    """A training of the page with a small model and few steps."""
    steps = min([STEPS_MAX, *(int(n) for n in re.findall(r"train_steps=(\d+)", command))])
    return command + "".join(f" --set {key}={value}" for key, value in {**SMALL, "train_steps": steps}.items())


def is_on_two_hosts(command):
    return command.startswith("dtrain launch ") and ("--hostfile" in command or "--nnodes" in command)


class Tutorial(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.mkdtemp(prefix="dtrain-tutorial-")
        cls.addClassCleanup(shutil.rmtree, cls.home)
        [install] = [block for block in code_blocks("docs/TUTORIAL.md", "bash") if "--install" in block]
        install = install.replace("cmake ", f"{CMAKE} ", 1).replace("build/release", BUILD, 1)
        cls.environment = {**{k: v for k, v in os.environ.items() if not k.startswith("DTRAIN_")},
                           "HOME": cls.home, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(["bash", "-ec", f"{{ {install.strip()}; }} > /dev/null; echo $PATH"], env=cls.environment,
                              stdout=subprocess.PIPE, text=True, timeout=TIME_BOUND_S, check=True)
        cls.environment["PATH"] = done.stdout.strip()
        cls.prefix = f"{cls.home}/dtrain"

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=self.home)
        os.makedirs(f"{self.home}/books", exist_ok=True)
        for name in ("FAILURES", "CONFIG", "SECURITY", "MODELS"):
            shutil.copy(f"{SOURCE}/docs/{name}.md", f"{self.home}/books")
        [config] = [block for block in code_blocks("docs/TUTORIAL.md", "json") if '"train_steps"' in block]
        self.write("config.json", config)

    def sh(self, command, before=()):
        result = subprocess.run([*before, "bash", "-c", command], cwd=self.folder, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIME_BOUND_S,
                                check=False, env=self.environment)
        self.assertEqual(result.returncode, 0, f"{command}\n{result.stdout}")
        return result.stdout

    def write(self, name, text):
        with open(f"{self.folder}/{name}", "w", encoding="utf-8") as file:
            file.write(text)

    def exists(self, *names):
        for name in names:
            self.assertTrue(glob.glob(f"{self.folder}/{name}"), name)

    def is_run_elsewhere(self, command):
        for pattern, test, part in ELSEWHERE:
            if re.fullmatch(pattern, command):
                self.assertIn(part, read(test))
                return True
        return False

    def make_model(self):
        """The model of the tutorial's first training, as the folder of a published one."""
        [trained] = glob.glob(f"{self.folder}/runs/books/checkpoints/step-*/model")
        shutil.copytree(trained, f"{self.folder}/{MODEL}")
        save_tokenizer(f"{self.folder}/{MODEL}")
        self.write(f"{MODEL}/chat_template.jinja", "<|im_start|>You are Qwen, created by Alibaba Cloud.")
        [sample] = re.findall(r'^\{"prompt".*\}$', read("docs/TUTORIAL.md"), re.MULTILINE)
        self.assertEqual(set(json.loads(sample)), {"prompt", "completion"})
        self.write("chats.jsonl", f"{sample}\n" + "".join(
            json.dumps({"prompt": f"{i}?", "completion": f"{i}."}) + "\n" for i in range(20)))

    def run_command(self, command):
        """Runs a command of the tutorial's blocks, and gives what it prints."""
        if command.startswith("sbatch "):
            words = shlex.split(command)
            launch = words[words.index("--wrap") + 1]
            return self.sh(launch.replace("dtrain launch", "dtrain launch --dry-run", 1))
        if "-- build/minimal" in command:  # The program is in the package too.
            os.makedirs(f"{self.folder}/build", exist_ok=True)
            os.symlink(f"{self.prefix}/bin/dtrain-minimal", f"{self.folder}/build/minimal")
            return self.sh(f"{command} --set train_steps=2 --set eval_interval=0")
        if command.startswith("dtrain launch "):
            output = self.sh(shortened(command))
            self.assertIn("exit code 0 (done)", output)
            if command.endswith("--run-dir runs/books -- dtrain-gpt config.json"):
                self.make_model()
            return output
        return self.sh(command)

    def run_named_command(self, command):
        """Runs a command that stands within a line, or asks for its --help if only its name is there."""
        command = command.replace("runs/gpt", "runs/books").replace("NAME", "oci")
        if command.endswith("..."):
            command = command.replace(" launch", " launch --dry-run", 1).replace("...", "-- true")
        elif re.fullmatch(r"dtrain( [a-z-]+)+", command) and "doctor" not in command:
            command += " --help"
        elif command.startswith("dtrain status"):
            command = f"! {command} 2>&1 | grep -v 'no job'"  # The run has ended.
        elif command == "dtrain doctor":
            command = f"{command} | grep -i libtorch"  # Its exit code is about this machine.
        return self.sh(command)

    def test_commands_of_the_tutorial(self):
        ran = []
        for command in commands_of("".join(code_blocks("docs/TUTORIAL.md", "bash"))):
            if "--install" in command or command.startswith("export ") or is_on_two_hosts(command):
                continue
            if not self.is_run_elsewhere(command):
                output = self.run_command(command)
                if command.startswith(("dtrain eval", "dtrain plan")):
                    self.assertRegex(output, r"loss|rank")
                ran.append(command)
        self.assertGreaterEqual(len(ran), 18)
        self.exists("data/books/train.bin", "data/words/val.bin", "vocabulary/tokenizer.json",
                    "runs/books/metrics/rank-1.jsonl", "tuned/config.json", "tuned/*.safetensors",
                    "tuned/tokenizer.json", "runs/traced/trace/rank-0.json", "runs/micro-4/metrics/rank-0.jsonl")
        self.assertEqual(os.stat(f"{self.folder}/token").st_mode & 0o77, 0)
        for command in re.findall(r"`(dtrain [^`]+)`", read("docs/TUTORIAL.md")):
            if "--measure" not in command and not self.is_run_elsewhere(command) and not any(
                    each.startswith(command) for each in ran):
                self.run_named_command(command)

    def test_values_that_the_tutorial_sets_are_accepted(self):
        found = re.findall(r"`[^`\n]*?(--set [^`\n]*)`", read("docs/TUTORIAL.md"))
        found = [span for span in found if "KEY=VALUE" not in span]
        self.assertGreaterEqual(len(found), 8)
        for span in found:
            sets = shlex.split(span)
            self.assertEqual(set(sets[::2]), {"--set"}, span)
            self.sh(f"dtrain config check config.json --world-size 2 {shlex.join(sets)}")

    @unittest.skipIf(WHY_NOT, f"LOUD SKIP: no hosts with sshd here: {WHY_NOT}")
    def test_commands_for_two_hosts(self):
        commands = commands_of("".join(code_blocks("docs/TUTORIAL.md", "bash")))
        prepare = next(command for command in commands if command.startswith("dtrain data prepare"))
        [over_ssh, *by_hand] = [command for command in commands if is_on_two_hosts(command)]
        self.assertEqual(len(by_hand), 2)
        self.sh(prepare)
        self.sh(next(command for command in commands if command.startswith("(umask")))
        [listed] = re.findall(r"^```\n(node0 slots=.*?)^```", read("docs/TUTORIAL.md"), re.MULTILINE | re.DOTALL)
        names = dict(zip(("node0", "node1"), ssh_hosts.NAMES))
        self.write("hosts", re.sub(r"node\d", lambda found: names[found[0]], listed).replace("slots=4", "slots=1"))
        port = free_port()
        [measure] = re.findall(r"`(dtrain launch [^`]+ --measure)[^`]*`", read("docs/TUTORIAL.md"))
        with links.Link() as link, ssh_hosts.SshHosts(link) as hosts:
            over_ssh, measure = (
                command.replace("dtrain launch", f"dtrain launch --launcher-args '{hosts.ssh_options}'", 1)
                for command in (over_ssh, measure))
            self.assertRegex(self.sh(measure, before=("ip", "netns", "exec", link.spaces[0])), "(?i)latenc")
            self.check_two_nodes([(link.spaces[0], over_ssh)], "ssh")
            self.check_two_nodes([(space, command.replace("node0:29500", f"{links.ADDRESSES[0]}:{port}"))
                                  for space, command in zip(link.spaces, by_hand)], "by-hand")

    def check_two_nodes(self, commands, name):
        """Runs commands in namespaces at once; together they must train with one rank on each of two nodes."""
        running = []
        for space, command in commands:
            command = shortened(command.replace("--nproc-per-node 4", "--nproc-per-node 1")).replace(
                "/shared/runs/books", f"runs/{name}")
            running.append(subprocess.Popen(["ip", "netns", "exec", space, "bash", "-c", command], cwd=self.folder,
                                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT, text=True, env=self.environment))
        said = []
        for process in running:
            self.addCleanup(process.kill)
            said.append(process.communicate(timeout=TIME_BOUND_S)[0])
        self.assertEqual([process.returncode for process in running], [0] * len(running), "\n".join(said))
        self.assertIn("2 ranks on 2 nodes", said[0])
        self.exists(f"runs/{name}/checkpoints/step-*/MANIFEST.json", f"runs/{name}/metrics/rank-1.jsonl")

    def test_commands_of_the_page_on_data(self):
        os.mkdir(f"{self.folder}/Qwen3-0.6B")
        save_tokenizer(f"{self.folder}/Qwen3-0.6B")
        shutil.copytree(f"{self.home}/books", f"{self.folder}/more")
        with pyarrow.CompressedOutputStream(f"{self.folder}/text.jsonl.zst", "zstd") as file:
            file.write("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(40)).encode())
        self.write("chats.jsonl", "".join(
            json.dumps({"prompt": f"{i}?", "completion": f"{i}."}) + "\n" for i in range(20)))
        os.mkdir(f"{self.folder}/wikipedia")
        for part in range(2):
            pyarrow.parquet.write_table(pyarrow.table({"text": [f"article {part} {i}" for i in range(40)]}),
                                        f"{self.folder}/wikipedia/train-{part}.parquet")
        indented = "".join(re.findall(r"^    (dtrain .*\n(?:     .*\n)*)", read("docs/DATA.md"), re.MULTILINE))
        commands = commands_of(indented + "".join(code_blocks("docs/DATA.md", "bash")))
        self.assertGreaterEqual(len(commands), 3)
        shown = ""
        for command in commands:
            output = self.sh(command)
            self.exists("data/train.bin", "data/val.bin")
            shown += output if command.startswith("dtrain data show") else ""
        self.assertRegex(shown, r"(?m)^\s*\+")  # What is trained on.


if __name__ == "__main__":
    end_to_end.main()
