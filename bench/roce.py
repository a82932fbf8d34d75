"""./dev bench roce: all-reduce and send/receive over soft-RoCE beside ib_write_bw.

The ranks run in one qemu guest, both on its one device ("alone"), and in two guests as two hosts
("pair"). In every round both programs run once, in turning order, with several messages in flight;
shares are of one round and of ib_write_bw's messages of that size, table and goals show their
median. Emulated (without KVM) this says something of the host's CPU, nothing
of a NIC. A run replaces the setups that it took in the results file and leaves the other.
"""
import argparse
import os
import sys

from comm import label_of
from report import begin, how_taken, judged, measured_before, of_probe, print_goals, write_results

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [f"{SOURCE}/tests/roce", f"{SOURCE}/tests/testing"]

import bandwidth  # noqa: E402
import guest  # noqa: E402
from lab import Lab  # noqa: E402

SETUPS = ("alone", "pair")
# Without KVM and on a busy machine everything takes ten times as long.
BOOT_BOUND_S, ROUND_BOUND_S = 300, 300


def rounds_of(lab, setup, rounds, sizes):
    seconds = BOOT_BOUND_S + rounds * ROUND_BOUND_S
    asked = bandwidth.arguments(rounds, sizes)
    guests, ended = lab.alone("alone", seconds, asked) if setup == "alone" else \
        lab.pair(("left", "right"), seconds, asked)
    try:
        return bandwidth.read_rounds(list(guests.values()), rounds)
    except ValueError as error:
        if all(ended.values()):
            sys.exit(f"bench: {error}")
        sys.exit(f"bench: {hang_of(setup, guests, ended, seconds)}")


def hang_of(setup, guests, ended, seconds):
    """The error line if some guests had not powered off when their time was over."""
    def said(done):
        return " and ".join(f"{role} (last said {next(reversed(one.lines), 'nothing')!r})"
                            for role, one in guests.items() if ended[role] == done)

    hung = f"setup {setup}: {said(False)} had not ended after {seconds} s, killed"
    if any(ended.values()):
        return f"{hung}; it may have waited for {said(True)}, which had ended before"
    return f"{hung}; ask for fewer --rounds, or run them while the machine is idle"


def goals_of(setup, rounds):
    return [of_probe(f"comm.roce_{setup}_{row['what']}_{label_of(row['bytes'])}_of_ib_write_bw",
                     row["share"], bandwidth.target_of(row))
            for row in bandwidth.summary(rounds) if bandwidth.target_of(row) is not None]


def all_goals(results):
    """The goals of a results file."""
    setups = results["setups"]
    return [goal for name in SETUPS if name in setups
            for goal in goals_of(name, setups[name]["rounds"])]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", type=int, default=[65536, 1 << 20, 4 << 20],
                        help="bytes, multiples of 4")
    parser.add_argument("--setups", nargs="+", default=list(SETUPS), choices=SETUPS)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: allowed: from 1 on")
    if wrong := [size for size in args.sizes if size < 4 or size % 4 != 0]:
        parser.error(f"--sizes {wrong[0]}: allowed: multiples of 4 bytes, from 4 on")
    if len(set(args.sizes)) < len(args.sizes):
        parser.error(f"--sizes {args.sizes}: each at most once")
    kernel = guest.kernel_of(SOURCE)
    if reason := guest.why_not(kernel):
        sys.exit(f"bench: no soft-RoCE guest here: {reason}")
    args.json = begin("roce", args.json)
    setups = {name: setup for name, setup in measured_before(args.json).get("setups", {}).items()
              if "ib_write_bw" in setup["rounds"][0]}  # Others are from an older form of this bench.
    with Lab(kernel, [f"{args.bin}/{program}" for program in bandwidth.PROGRAMS]) as lab:
        for name in args.setups:
            rounds = rounds_of(lab, name, args.rounds, args.sizes)
            setups[name] = {"accelerator": lab.accelerator[1], "rounds": rounds,
                            "summary": bandwidth.summary(rounds), **how_taken()}
            print("\n".join([f"\n{name}, {lab.accelerator[1]}", *bandwidth.table(rounds)]),
                  flush=True)
            # Written after each setup: if the pair hangs, the results of one guest alone are kept.
            write_results(args.json, "roce", setups=setups, goals=judged(all_goals({"setups": setups})))
    print_goals(all_goals({"setups": setups}))


if __name__ == "__main__":
    main()
