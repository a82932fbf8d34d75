"""Markdown."""


def table(head, rows):
    """Lines of a table; cells are texts."""
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}",
            *(f"| {' | '.join(row)} |" for row in rows)]
