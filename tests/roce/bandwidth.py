"""dtrain's bandwidth over soft-RoCE beside ib_write_bw's, as init.sh measures both in turn.

A round is {"ib_write_bw": [{"bytes": of its messages, "mb_s"}], "lines": [{"what", "bytes", "mb_s"}],
and what bench/group_bandwidth.h says of the run}. Shares are of one round, and of ib_write_bw's
messages of the same size.
"""
import json
import statistics

PROGRAMS = ("bench_comm_rdma", "roce_host")  # Names in the build's bin.
GOALS = {"send_receive": 0.9, "all_reduce_busbw": 0.6}  # Shares of ib_write_bw's rate,
GOAL_BYTES = 1 << 20  # for messages of at least this size.


def arguments(rounds, sizes):
    """Arguments for guests that measure."""
    return f"rounds={rounds} sizes={','.join(map(str, sizes))}"


def _words_after(guests, section, word, count=1):
    """The values of the `count` lines in this section, of any guest, that begin with `word`."""
    found, codes = [], []
    for one in guests:
        lines, code = one.section(section)
        codes.append(code)
        found += [line[len(word) + 1:] for line in lines if line.startswith(f"{word} ")]
    if len(found) != count or any(code != 0 for code in codes):
        said = "\n".join(one.text() for one in guests)
        raise ValueError(f"{section}: {len(found)} lines \"{word} ...\", want {count}; exit codes "
                         f"{codes}, want 0. The guests said:\n{said}")
    return found


def _read_round(guests, i):
    group = json.loads(_words_after(guests, f"group_bw-{i}", "JSON")[0])
    sizes = {line["bytes"] for line in group["lines"]}
    peers = [{"bytes": int(size), "mb_s": float(speed)} for size, speed in
             map(str.split, _words_after(guests, f"write_bw-{i}", "WRITE_BW", len(sizes)))]
    return {"ib_write_bw": peers, **group}


def _peer_speed(one_round, size):
    return next(line["mb_s"] for line in one_round["ib_write_bw"] if line["bytes"] == size)


def read_rounds(guests, rounds):
    """The rounds that these guests printed. ValueError with all output if one did not succeed."""
    return [_read_round(guests, i) for i in range(rounds)]


def summary(rounds):
    """[{"what", "bytes", "mb_s", "ib_write_bw_mb_s", "share", "share_least", "share_most"}]: medians
    over rounds."""
    rows = []
    for i, line in enumerate(rounds[0]["lines"]):
        speeds = [r["lines"][i]["mb_s"] for r in rounds]
        peers = [_peer_speed(r, line["bytes"]) for r in rounds]
        shares = [speed / peer for speed, peer in zip(speeds, peers)]
        rows.append({"what": line["what"], "bytes": line["bytes"],
                     "mb_s": statistics.median(speeds),
                     "ib_write_bw_mb_s": statistics.median(peers),
                     "share": statistics.median(shares),
                     "share_least": min(shares), "share_most": max(shares)})
    return rows


def target_of(row):
    """The share that this row of a summary should reach; None: there is no goal for its size."""
    return GOALS[row["what"]] if row["bytes"] >= GOAL_BYTES else None


def verdict_of(share, target):
    """The verdict for bench/report.py; a rate above ib_write_bw's was not limited by it."""
    return "no bound" if share > 1 else "ok" if share >= target else "short"


def table(rounds):
    """Lines that show a summary."""
    lines = [f"medians of {len(rounds)} rounds, shares with least-most",
             f"{'':18}{'bytes':>12}{'MB/s':>10}{'ib_write_bw':>13}{'share':>25}{'goal':>7}"]
    for row in summary(rounds):
        target = target_of(row)
        spread = f"({row['share_least']:.0%}-{row['share_most']:.0%})"
        verdict = "" if target is None else f"{target:7.0%} {verdict_of(row['share'], target)}"
        lines.append(f"{row['what']:18}{row['bytes']:12}{row['mb_s']:10.1f}"
                     f"{row['ib_write_bw_mb_s']:13.1f}{row['share']:11.0%} "
                     f"{spread:>13}{verdict}")
    return lines
