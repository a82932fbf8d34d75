"""Several peers and ZeRO stages in one process, one after the other, each from the same weights.

It compares losses of a small model, for which importing the peers takes longer than training. Ways are
PEER:STAGE, as ddp:0, fsdp2:3, deepspeed:1, or PEER:STAGE:bf16; each has a facts file of its own,
FACTS.PEER-STAGE or FACTS.PEER-STAGE-bf16.
"""
import importlib

import twin


def main():
    parser = twin.argument_parser()
    parser.add_argument("--ways", nargs="+", required=True)
    args = parser.parse_args()
    with twin.process_group():
        for way in args.ways:
            peer, stage, *precision = way.split(":")
            make_peer = importlib.import_module(f"gpt_{peer}").make_peer
            overrides = [*args.set, f"zero_optimization.stage={stage}",
                         *[f"{name}.enabled=true" for name in precision]]
            twin.run(args, make_peer, overrides, f"{args.facts}.{way.replace(':', '-')}")


if __name__ == "__main__":
    main()
