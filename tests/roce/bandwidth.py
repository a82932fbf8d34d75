"""dtrain's bandwidth over soft-RoCE beside ib_write_bw's, as init.sh measures both in turn.

A round is {"ib_write_bw_mb_s": MB/s of messages of 1 MiB, "lines": [{"what", "bytes", "mb_s"}], and
what bench/group_bandwidth.h says of the run}. Shares are of one round.
"""
import json
import statistics

PROGRAMS = ("bench_comm_rdma", "roce_host")  # In the build's bin.
GOALS = {"send_receive": 0.9, "all_reduce_busbw": 0.6}  # Of ib_write_bw,
GOAL_BYTES = 1 << 20  # from messages of so many bytes on.


def arguments(rounds, sizes):
    """For guests that measure."""
    return f"rounds={rounds} sizes={','.join(map(str, sizes))}"


def _words_after(guests, section, word):
    """Of the one line in this section of any of the guests that begins with `word`."""
    found, codes = [], []
    for one in guests:
        lines, code = one.section(section)
        codes.append(code)
        found += [line[len(word) + 1:] for line in lines if line.startswith(f"{word} ")]
    if len(found) != 1 or any(code != 0 for code in codes):
        said = "\n".join(one.text() for one in guests)
        raise ValueError(f"{section}: {len(found)} lines \"{word} ...\", want 1; exit codes "
                         f"{codes}, want 0. The guests said:\n{said}")
    return found[0]


def read_rounds(guests, rounds):
    """The rounds that these guests printed. ValueError, with all they said: one did not succeed."""
    return [{"ib_write_bw_mb_s": float(_words_after(guests, f"write_bw-{i}", "WRITE_BW")),
             **json.loads(_words_after(guests, f"group_bw-{i}", "JSON"))} for i in range(rounds)]


def summary(rounds):
    """[{"what", "bytes", "mb_s", "share", "share_least", "share_most"}]: medians over rounds."""
    rows = []
    for i, line in enumerate(rounds[0]["lines"]):
        speeds = [r["lines"][i]["mb_s"] for r in rounds]
        shares = [speed / r["ib_write_bw_mb_s"] for speed, r in zip(speeds, rounds)]
        rows.append({"what": line["what"], "bytes": line["bytes"],
                     "mb_s": statistics.median(speeds), "share": statistics.median(shares),
                     "share_least": min(shares), "share_most": max(shares)})
    return rows


def target_of(row):
    """The share that this row of a summary should reach; None: there is no goal for its size."""
    return GOALS[row["what"]] if row["bytes"] >= GOAL_BYTES else None


def table(rounds):
    """Lines that show a summary."""
    limits = [r["ib_write_bw_mb_s"] for r in rounds]
    lines = [f"ib_write_bw: {statistics.median(limits):.1f} MB/s ({min(limits):.1f}-"
             f"{max(limits):.1f}), medians of {len(rounds)} rounds with least-most",
             f"{'':18}{'bytes':>12}{'MB/s':>10}{'of ib_write_bw':>26}{'goal':>7}"]
    for row in summary(rounds):
        target = target_of(row)
        spread = f"({row['share_least']:.0%}-{row['share_most']:.0%})"
        verdict = "" if target is None else \
            f"{target:7.0%} {'ok' if row['share'] >= target else 'short'}"
        lines.append(f"{row['what']:18}{row['bytes']:12}{row['mb_s']:10.1f}{row['share']:12.0%} "
                     f"{spread:>13}{verdict}")
    return lines
