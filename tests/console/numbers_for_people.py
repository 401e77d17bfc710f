"""How the console should write numbers, said a second time."""

SPACE = "\u00a0"


def three(x):
    """Three digits, as a person would write them."""
    return f"{x:.2f}" if x < 9.995 else f"{x:.1f}" if x < 99.95 else f"{x:.0f}"


def scaled(x, units):
    unit = 0
    while unit < len(units) - 1 and x >= 999.5:
        x, unit = x / 1000, unit + 1
    return x, units[unit]


def count(n):
    if n < 10000:
        return f"{round(n):,}"
    x, unit = scaled(n, ["", "k", "M", "G"])
    return three(x) + SPACE + unit


def size(n):
    x, unit = scaled(n, ["B", "kB", "MB", "GB"])
    return (f"{x:.0f}" if unit == "B" else three(x)) + SPACE + unit


def percent(share):
    return f"{100 * share:.1f}{SPACE}%"


def span(seconds):
    return f"{max(0, int(seconds))}{SPACE}s" if seconds < 90 else f"{int(seconds // 60)}{SPACE}min"
