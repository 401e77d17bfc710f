"""docs/accuracy/README.md, from whatever results there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterable

from . import memory, plots, prose
from .grid import CONTROL, TABLES_CLAIMS, F32, FLIGHTS_CLAIMS, FROZEN, SYNTHETIC_CLAIMS, Line
from .results import Results
from .statistics import Interval, deviation, interval, paired

FEW = 3  # seeds that are needed to say anything
NARROW = 10  # "no loss" needs an interval this much narrower than what the large tables carry


def write(out: Path, names: Iterable[str]) -> None:
    """The page and its plots."""
    parts = [prose.HEAD]
    for name in names:
        results = Results(out / f"{name}.jsonl")
        if results.by_key:
            parts.append(data_section(out, name, results))
    if found := memory.read(out / "memory.jsonl"):
        parts.append(memory_section(found))
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text("\n".join(parts))


def data_section(out: Path, name: str, results: Results) -> str:
    lines = dict(results.lines())
    any_result = next(iter(results.by_key.values()))
    settings = any_result["settings"]
    f32, frozen = lines.get(F32, {}), lines.get(FROZEN, {})
    carry = paired(column(f32, "auc"), column(frozen, "auc"))
    about = prose.ABOUT.get(name, f"The file `{name}`, in Criteo's layout.")
    text = [f"## {name.capitalize()}", "", about, "", prose.paragraph(prose.SETTINGS, **settings), ""]
    if f32:
        aucs, losses = list(column(f32, "auc").values()), list(column(f32, "log_loss").values())
        spread = {"auc_spread": deviation(aucs), "low": min(aucs), "high": max(aucs), "loss_spread": deviation(losses)}
        text.append(prose.paragraph(prose.F32, seeds=len(aucs), auc=mean(aucs), loss=mean(losses), **spread))
    if carry:
        text.append(prose.paragraph(prose.CARRY, carry=plus_minus(carry, signed=False), tenth=carry.mean / NARROW))
    control = paired(column(lines.get(CONTROL, {}), "auc"), column(f32, "auc"))
    shows = control is not None and control.half is not None and control.mean + control.half < 0
    if control is not None and not shows:
        text.append(prose.paragraph(prose.CONTROL_IS_NOT_SEEN, control=CONTROL.name, difference=plus_minus(control)))
    text.append("")
    claims = SYNTHETIC_CLAIMS if name == "synthetic" else TABLES_CLAIMS if name.endswith("-tables") else FLIGHTS_CLAIMS
    first = [line for line in claims if line in lines]
    others = sorted((line for line in lines if line not in claims), key=order)
    text += table(sorted(first, key=order), lines, f32, carry, shows)
    plots.loss_against_bytes(out / f"{name}-loss.svg", name, lines)
    text += ["", f"![Difference in AUC to f32 against bytes]({name}-loss.svg)", ""]
    if plots.cache_size(out / f"{name}-cache.svg", name, lines):
        text += [f"![Hit rate and write-backs per update against the size of the cache]({name}-cache.svg)", ""]
    if others:
        text += [
            "### The rest of the grid",
            "",
            "Fewer seeds: tendencies.",
            "",
            *table(others, lines, f32, carry, shows),
            "",
        ]
    return "\n".join(text)


def order(line: Line) -> tuple[Any, ...]:
    """f32, what is not trained, then from high to low precision."""
    precisions = ["f32", "f16", "bf16", "int8", "int4", "int2"]
    return (
        line.freeze,
        precisions.index(line.precision),
        line.quantizer or "",
        line.state_precision != "f32",
        line.of_seen,
        line.rounding != "stochastic",
        line.cache,
        line.policy,
    )


def table(
    chosen: list[Line],
    lines: dict[Line, dict[int, dict[str, Any]]],
    f32: dict[int, dict[str, Any]],
    carry: Interval | None,
    shows: bool,
) -> list[str]:
    rows = [
        "| line | seeds | AUC | AUC - f32 | log loss - f32 | | hits | write-backs per update | MB | ratio | large |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in chosen:
        found = lines[line]
        difference = paired(column(found, "auc"), column(f32, "auc"))
        loss = paired(column(found, "log_loss"), column(f32, "log_loss"))
        one = next(iter(found.values()))
        is_f32 = line.precision == "f32"
        cells = [
            line.name,
            str(len(found)),
            f"{mean(column(found, 'auc').values()):.4f}",
            "" if line == F32 or difference is None else plus_minus(difference),
            "" if line == F32 or loss is None else plus_minus(loss),
            verdict(line, difference, carry, shows) + diverged(found),
            "" if is_f32 or not line.cache else percent(column(found, "hit_rate").values()),
            "" if is_f32 else decimal(column(found, "write_backs_per_update").values()),
            f"{one['bytes'] / 1e6:.2f}" if one["bytes"] < 1e8 else f"{one['bytes'] / 1e6:.0f}",
            f"{one['f32_bytes'] / one['bytes']:.2f}",
            f"{one['large_f32_bytes'] / one['large_bytes']:.2f}" if one["large_bytes"] else "",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def verdict(line: Line, difference: Interval | None, carry: Interval | None, shows: bool) -> str:
    """What may be said about a line. `shows`: the data can tell f32 from what must lose."""
    if line == F32:
        return "the partner"
    if line.freeze:
        return "what they carry"
    if difference is None or carry is None:
        return "no partner yet"
    if difference.half is None or difference.count < FEW:
        return "too few seeds to tell"
    if carry.mean <= (carry.half or 0.0):
        return "the large tables carry nothing"
    if difference.mean + difference.half < 0:
        return f"loses {-difference.mean / carry.mean:.1%}"
    if max(difference.half, difference.half - difference.mean) * NARROW >= carry.mean - (carry.half or 0.0):
        return "interval too wide to tell"
    return "no loss" if shows else "not told from f32, nor is the control"


def diverged(found: dict[int, dict[str, Any]]) -> str:
    """How many seeds came to no model at all: they count with an AUC of 0.5 and without a log loss."""
    count = sum(bool(result.get("diverged")) for result in found.values())
    return f"; {count} of {len(found)} diverged" if count else ""


def memory_section(found: list[tuple[memory.Case, dict[str, float]]]) -> str:
    text = [prose.MEMORY]
    for case, figures in found:
        quantizer = case.quantizer or {"int8": "symmetric", "int4": "affine"}.get(case.precision, "")
        cells = [
            str(case.dim),
            f"{case.precision} {quantizer}".strip(),
            f"{case.cache:g} %" if case.cache else "none",
            case.optimizer,
            "none" if case.optimizer == "sgd" else case.state_precision,
            *(f"{figures[name]:,.0f}" for name in ("bytes", "cache_bytes", "f32_bytes")),
            f"{ratio(figures):.3f}",
        ]
        text.append("| " + " | ".join(cells) + " |")
    text += ["", "What is required of them:", "", "| required | measured | |", "|---|---|---|"]
    for need in memory.REQUIREMENTS:
        asked = f"dim {need.dim}, {need.precision}, {need.cache:g} %, {need.optimizer}: at least {need.ratio:g}"
        for case, figures in found:
            if need.asks(case):
                extra = [case.quantizer, "bf16 state" if case.state_precision == "bf16" else None]
                how = " and ".join(word for word in extra if word) or "the defaults"
                holds = "holds" if ratio(figures) >= need.ratio else "**does not hold**"
                text.append(f"| {asked} | {ratio(figures):.3f} with {how} | {holds} |")
    return "\n".join([*text, ""])


def ratio(figures: dict[str, float]) -> float:
    return figures["f32_bytes"] / figures["bytes"]


def column(found: dict[int, dict[str, Any]], name: str) -> dict[int, float]:
    return {seed: result[name] for seed, result in found.items() if result[name] is not None}


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return interval(values).mean if values else float("nan")


def percent(values: Iterable[float]) -> str:
    values = list(values)
    return f"{mean(values):.1%}" if values else ""


def decimal(values: Iterable[float]) -> str:
    values = list(values)
    return f"{mean(values):.3f}" if values else ""


def plus_minus(value: Interval, signed: bool = True) -> str:
    number = f"{value.mean:+.4f}" if signed else f"{value.mean:.4f}"
    return number if value.half is None else f"{number} ± {value.half:.4f}"
