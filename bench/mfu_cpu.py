"""./dev bench mfu: what share of this CPU's fastest product a training of GPT-2's shape reaches."""
import program

if __name__ == "__main__":
    program.measure("mfu", __doc__, "dtrain-bench-mfu", "--preset", "gpt2-124m", "--device", "cpu",
                    "--steps", "5")
