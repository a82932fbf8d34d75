"""The packages on a bare Debian system without anything of a build: no compiler, no Abseil, no LibTorch
except the torch that they are given. Part of ./dev test long; the systems are made once."""
import os
import tempfile
import unittest

import clean_root
import dockerfile
import end_to_end
from installed import SITE_PACKAGES, SOURCE, make_packages

# `set -e` ignores commands after "!".
REFUSE = 'refuse() { if "$@"; then exit 9; fi; }\n'
# torch as pip would install it, without a download of gigabytes: links to the packages of this tree.
ENVIRONMENT = """
python3 -m venv /opt/v
for package in /opt/site-packages/*; do
  [ -e "/opt/v/lib/python3.11/site-packages/${package##*/}" ] ||
    ln -s "$package" /opt/v/lib/python3.11/site-packages/
done
rm -f /opt/v/lib/python3.11/site-packages/*.pth
/opt/v/bin/pip install --no-index /packages/dtrain-*.whl
"""
FEW_STEPS = "--set train_steps=3 --set eval_interval=0 --set sample.bytes=0"
TRAIN = f"mkdir /empty && cd /empty && $BIN/dtrain train {FEW_STEPS} && find . -name rank-0.jsonl | grep ."
OUTSIDE = """
cp -r /opt/v/share/dtrain/examples/minimal /project && cd /project
cmake -B build -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=$(/opt/v/bin/dtrain env --prefix)
cmake --build build
export PKG_CONFIG_PATH=$(/opt/v/bin/dtrain env --prefix)/lib/pkgconfig
g++ $(pkg-config --cflags dtrain) -fsyntax-only minimal.cc
g++ build/CMakeFiles/minimal.dir/minimal.cc.o $(pkg-config --libs dtrain) -o linked
/opt/v/bin/dtrain data prepare --out data /opt/v/include
cat >config.json <<'END'
{"train_batch_size": 8, "train_steps": 20, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
 "data": {"train": ["data/train.bin"], "validation": ["data/val.bin"], "sequence_length": 64},
 "model": {"hidden": 32}}
END
for program in build/minimal ./linked; do
  /opt/v/bin/dtrain launch --nproc-per-node 2 --run-dir run-${program##*/} -- $program config.json
  /opt/v/bin/dtrain checkpoint verify run-${program##*/}/checkpoints
done
"""


class CleanRoot(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        if reason := clean_root.why_not():
            raise unittest.SkipTest(reason)
        cls.packages_object = tempfile.TemporaryDirectory(prefix="dtrain-packages-")
        cls.packages = cls.packages_object.name
        make_packages(cls.packages)

    @classmethod
    def tearDownClass(cls):
        cls.packages_object.cleanup()

    def run_in(self, kind, command, expect=0, **folders):
        places = {self.packages: "/packages", SITE_PACKAGES: "/opt/site-packages"}
        code, output = clean_root.run(kind, REFUSE + command, {**places, **folders})
        self.assertEqual(code, expect, output[-6000:])
        return output

    def test_the_wheel_trains_where_there_is_no_compiler_and_no_python_is_left(self):
        output = self.run_in("bare", ENVIRONMENT + """
            refuse command -v g++
            refuse command -v cmake
            rm -rf /usr/bin/python3* /usr/lib/python3 /usr/lib/python3.11  # No Python runs in a rank.
            refuse /opt/v/bin/python -c 1
            BIN=/opt/v/bin
            """ + TRAIN)
        self.assertIn("step 3", output)

    def test_the_debian_package_names_its_libraries_and_takes_libtorch_from_where_it_says(self):
        output = self.run_in("bare", """
            apt-get update -q
            apt-get install -q -y --no-install-recommends /packages/dtrain_*.deb
            refuse dtrain-gpt config.json
            dpkg -s dtrain | grep '/usr/lib/dtrain/torch'
            dpkg -s dtrain | grep '^Recommends: libcurl4, liburing2, '
            DTRAIN_TORCH=/opt/site-packages/torch dtrain-gpt --help >/dev/null
            ln -s /opt/site-packages/torch /usr/lib/dtrain/torch
            BIN=/usr/bin
            """ + TRAIN + """
            rm /usr/lib/dtrain/torch
            apt-get purge -q -y dtrain
            refuse ls -d /usr/lib/dtrain
            refuse ls -d /usr/share/dtrain
            refuse ls -d /usr/bin/dtrain
            """)
        self.assertIn("dtrain-gpt: LibTorch not found", output)
        self.assertIn("step 3", output)

    def test_the_archive_runs_where_it_is_unpacked_and_after_a_move(self):
        output = self.run_in("bare", """
            mkdir /opt/a && tar xzf /packages/dtrain-*.tar.gz -C /opt/a
            mv /opt/a/dtrain-* /home/dtrain
            BIN=/home/dtrain/bin
            export DTRAIN_TORCH=/opt/site-packages/torch
            """ + TRAIN)
        self.assertIn("step 3", output)

    def test_a_project_outside_is_built_from_the_wheel_and_trains(self):
        output = self.run_in("compiler", ENVIRONMENT + OUTSIDE)
        self.assertEqual(output.count("exit code 0 (done)"), 2, output[-3000:])

    def test_another_torch_is_refused_when_the_wheel_is_installed(self):
        output = self.run_in("bare", """
            python3 -m venv /opt/v
            cd /opt/v/lib/python3.11/site-packages
            mkdir -p torch/lib torch-2.9.1.dist-info
            touch torch/lib/libtorch_cpu.so
            echo "__version__ = '2.9.1+cpu'" >torch/version.py
            printf 'Metadata-Version: 2.1\\nName: torch\\nVersion: 2.9.1\\n' >torch-2.9.1.dist-info/METADATA
            touch torch-2.9.1.dist-info/RECORD
            refuse /opt/v/bin/pip install --no-index /packages/dtrain-*.whl
            /opt/v/bin/pip install --no-index --no-deps /packages/dtrain-*.whl
            refuse /opt/v/bin/dtrain-gpt config.json
            """)
        self.assertIn("2.9.1+cpu, but this dtrain is built with", output)

    def on_a_small_disk(self, folder, out, **variables):
        """Makes packages while a disk of 4 MB is mounted at `folder`; gives the output and the files left."""
        os.makedirs(folder)
        script = 'mount -t tmpfs -o size=4m none "$1"; out=$2; shift 2; "$@"; c=$?; ls -A "$out"; exit $c'
        before = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "small", folder, out]
        return make_packages(out, "--only", "wheel", expect=None, before=before, **variables).strip()

    def test_a_full_disk_is_said_in_one_line_and_leaves_no_half_package(self):
        with tempfile.TemporaryDirectory(prefix="dtrain-full-") as folder:
            os.makedirs(f"{folder}/out")
            said = self.on_a_small_disk(f"{folder}/small", f"{folder}/out", TMPDIR=f"{folder}/small")
            self.assertRegex(said, r"^\./dev package: .* MB free and .* MB are needed.*TMPDIR[^\n]*$")
            said = self.on_a_small_disk(f"{folder}/target", f"{folder}/target")
            self.assertRegex(said, rf"^\./dev package: No space left on device: {folder}/target;[^\n]*$")

    def test_the_image_for_cpus_is_what_its_commands_make(self):
        last = dockerfile.stages(f"{SOURCE}/docker/cpu.Dockerfile")[-1]
        commands = ["mkdir /tmp/dist && cp /packages/*.whl /tmp/dist"]
        for name, rest in last:
            if name == "RUN":
                commands.append(rest)
            elif name == "COPY" and "site-packages/" in rest:
                target = rest.split()[-1]
                commands.append(f"for p in /opt/site-packages/*; do [ -e {target}${{p##*/}} ] || "
                                f"ln -s $p {target}; done")
            elif name == "ENV":
                commands.append(f"export {rest}")
        output = self.run_in("bare", "\n".join(commands) + f"\nmkdir /work && cd /work\ndtrain train {FEW_STEPS}")
        self.assertIn("step 3", output)


if __name__ == "__main__":
    end_to_end.main()
