"""How the tables of docs/PERFORMANCE.md write numbers, verdicts and rows."""
import report

SHORT = "**short**"


def only(files):
    """The results of the one file."""
    (found,) = files.values()
    return found


def table(head, rows, sides=""):
    """Lines of Markdown; `sides`: l or r for each column."""
    marks = [{"r": "---:"}.get(side, "---") for side in sides.ljust(len(head), "l")]
    return [f"| {' | '.join(head)} |".replace("  ", " "), f"|{'|'.join(marks)}|",
            *(f"| {' | '.join(row)} |".replace("  ", " ") for row in rows)]


def amount(value):
    """Three digits where a number is small."""
    return f"{value:.3f}" if value < 1.1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def percent(share, digits=0):
    return f"{100 * share:.{digits}f} %"


def minutes_text(seconds):
    """Whole seconds, such as "47 s", "8 min" or "7 min 23 s"."""
    minutes, rest = divmod(seconds, 60)
    return " ".join(([f"{minutes} min"] if minutes else []) + ([f"{rest} s"] if rest or not minutes else []))


def bytes_of(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def verdict_of(ok):
    return "ok" if ok else SHORT


def cell_of(goal):
    """A goal's verdict; "" of none."""
    return "" if goal is None else {"short": SHORT}.get(goal["verdict"], goal["verdict"])


def goal_named(results, start, whole=False, missing=False):
    """The one goal of the file whose name begins with `start`, or is it; None where it may be
    missing."""
    found = [goal for goal in results["goals"]
             if (goal["name"] == start if whole else goal["name"].startswith(start))]
    if len(found) != 1 and not (missing and not found):
        raise ValueError(f"{len(found)} goals of {results['bench']} begin with {start!r}, not one")
    return found[0] if found else None


def counted(verdicts):
    """"69 of 75 ok, 6 **short**, 2 no bound"; the first number is of those that have a bound."""
    if not verdicts:
        return "no bound"
    bound = [verdict for verdict in verdicts if verdict != report.NO_BOUND]
    text = f"{bound.count('ok')} of {len(bound)} ok"
    if short := bound.count("short"):
        text += f", {short} {SHORT}"
    unbound = len(verdicts) - len(bound)
    return text + (f", {unbound} no bound" if unbound else "")
