"""./dev bench classifier: the fused classifier beside LibTorch's linear and cross_entropy."""
import program


def all_goals(results):
    """The goals of a results file; bench_classifier has judged them."""
    return [(goal["name"], goal["measured"], goal["op"], goal["target"]) for goal in results["goals"]]


if __name__ == "__main__":
    program.measure("classifier", __doc__, "bench_classifier")
