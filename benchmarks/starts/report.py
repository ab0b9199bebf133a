"""Presents samples as a table for each group, as pictures and as a file."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.harness.effort import Say
from benchmarks.harness.result import Table, save, spread
from benchmarks.starts.contenders import CONTENDERS, Contender
from benchmarks.starts.picture import draw
from benchmarks.starts.sample import Sample, ratios, values

HEADERS = [
    "",
    "first result (s)",
    "of cold",
    "of warm",
    "first compiled (s)",
    "of cold",
    "from the process's start (s)",
    "step (ms)",
    "of torch.compile's",
    "CPU s",
    "peak MB: client; daemon; worker",
    "kept (MB)",
    "n",
]


def tables(samples: Sequence[Sample]) -> str:
    """Return a Markdown table for each group: medians and extremes; ratios within a turn."""
    parts = []
    for group in dict.fromkeys(sample.group for sample in samples):
        mine = [sample for sample in samples if sample.group == group]
        rows = [
            _row(CONTENDERS[name], [sample for sample in mine if sample.contender == name], mine)
            for name in CONTENDERS
            if any(sample.contender == name for sample in mine)
        ]
        parts.append(Table(group.title, HEADERS, rows).text())
        parts += _remarks(mine)
    return "\n\n".join(parts)


def _row(contender: Contender, samples: Sequence[Sample], group: Sequence[Sample]) -> list[str]:
    good = [sample for sample in samples if sample.outcome == "ok"]
    bad = sorted({sample.outcome for sample in samples if sample.outcome != "ok"})
    if not good:
        return [contender.title, f"**{', '.join(bad)}**", *[""] * (len(HEADERS) - 3), str(len(samples))]
    peaks = [_megabytes(good, role) for role in ("client", "daemon", "worker")]
    kept = [sample.artifact_bytes / 1e6 for sample in good if sample.artifact_bytes is not None]
    return [
        contender.title,
        spread(values(good, "first_s")),
        _ratio(good, group, "first_s", "plain-cold"),
        _ratio(good, group, "first_s", "plain-warm"),
        spread(values(good, "compiled_s")),
        _ratio(good, group, "compiled_s", "plain-cold"),
        spread(values(good, "process_s")),
        spread([1000 * value for value in values(good, "step_s")]),
        _ratio(good, group, "step_s", "plain-cold"),
        spread(values(good, "cpu_s")),
        "; ".join(peak or "–" for peak in peaks),
        f"{statistics.median(kept):.1f}" if kept else "",
        f"{len(good)}" + (f" ({len(samples) - len(good)} {', '.join(bad)})" if bad else ""),
    ]


def _ratio(mine: Sequence[Sample], group: Sequence[Sample], name: str, to: str) -> str:
    found = ratios(group, name, mine[0].contender, to)
    return f"{statistics.median(found):.2f}" if found else ""


def _megabytes(samples: Sequence[Sample], role: str) -> str:
    """Return the size of a role's largest process, the median over the samples."""
    found = [sample.memory[role][0] / 1e6 for sample in samples if sample.memory.get(role)]
    return f"{statistics.median(found):.0f}" if found else ""


def _remarks(samples: Sequence[Sample]) -> list[str]:
    lines = []
    for sample in samples:
        title = CONTENDERS[sample.contender].title
        if sample.outcome != "ok":
            why = " ".join(sample.error.split())
            lines.append(f"- {title}: {sample.outcome}: `{why}`")
        if sample.note:
            lines.append(f"- {title}: {sample.note}")
        if sample.swap:
            swap = sample.swap
            lines.append(
                f"- {title}: the longest step around the swap took "
                f"{1000 * swap['longest_s']:.1f} ms, {swap['longest_s'] / swap['eager_s']:.2f} of a median eager one, "
                f"{swap['longest_s'] / swap['compiled_s']:.2f} of a compiled one"
            )
    return ["\n".join(dict.fromkeys(lines))] if lines else []


def publish(samples: Sequence[Sample], quick: bool, say: Say, *, docs: bool = False) -> None:
    """Print the tables; write the pictures and the raw samples to files."""
    print(f"\n{tables(samples)}\n")
    for path in draw(samples, docs=docs):
        say(f"timeline: {path}")
    say(f"raw samples: {save({'samples': [asdict(sample) for sample in samples]}, quick, 'starts')}")
