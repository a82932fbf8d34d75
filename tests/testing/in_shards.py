"""Runs a googletest program's tests in several processes at once: `in_shards.py COUNT PROGRAM [ARGUMENT...]`.

For programs whose tests mostly wait, for a limit to be over say: what takes them a minute one after the
other, with a few seconds of CPU time, takes a fraction of it side by side. Each process has every
COUNT-th test. Their output follows one after the other. Exits with the first code that is not 0.
"""
import os
import subprocess
import sys
import tempfile


def main():
    count, command = int(sys.argv[1]), sys.argv[2:]
    shards = []
    for index in range(count):
        output = tempfile.TemporaryFile()
        environment = {**os.environ, "GTEST_TOTAL_SHARDS": str(count), "GTEST_SHARD_INDEX": str(index)}
        shards.append((output, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                                stderr=subprocess.STDOUT, env=environment)))
    codes = []
    for output, process in shards:
        codes.append(process.wait())
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        sys.stdout.buffer.flush()
        output.close()
        if codes[-1] < 0:
            print(f"in_shards.py: process {len(codes)} of {count} was ended by signal {-codes[-1]}",
                  flush=True)
    sys.exit(next((code if code > 0 else 128 - code for code in codes if code), 0))


if __name__ == "__main__":
    main()
