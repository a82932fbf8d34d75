"""Rounds in which several programs take turns, so that a change of the machine's speed affects all of
them: the order within a round, and the spread of a figure over the rounds."""
import statistics

PERCENTILE_ROUNDS_MIN = 20  # Percentiles of fewer rounds would be their least and most.


def rotated(items, number):
    """The order of round `number`: each round begins with the next item."""
    items = list(items)
    first = number % len(items)
    return items[first:] + items[:first]


def back_and_forth(items, number):
    """The order of round `number`: every second round is reversed."""
    return list(items) if number % 2 == 0 else list(reversed(items))


def spread(values):
    """The median with the 10th and 90th percentiles, or with the range where rounds are few."""
    values = sorted(values)
    found = {"median": statistics.median(values), "rounds": len(values)}
    if len(values) < PERCENTILE_ROUNDS_MIN:
        return {**found, "least": values[0], "most": values[-1]}
    last = len(values) - 1
    return {**found, "p10": values[round(0.1 * last)], "p90": values[round(0.9 * last)]}


def ends_of(spread_found):
    """(low, high) of a result of `spread`."""
    low, high = ("least", "most") if "least" in spread_found else ("p10", "p90")
    return spread_found[low], spread_found[high]


def spread_text(found, digits=3):
    """A text such as "1.03 (range of 9 rounds 0.98 to 1.07)"."""
    low, high = ends_of(found)
    what = f"range of {found['rounds']} rounds" if "least" in found else "10th to 90th percentile"
    return f"{found['median']:.{digits}f} ({what} {low:.{digits}f} to {high:.{digits}f})"
