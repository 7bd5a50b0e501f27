# SPDX-License-Identifier: Apache-2.0
"""From features to numbers: detection, false alarms, monotonicity, invariance, cross-talk, controls."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field

from voicetrace.judge.dimensions import score_features
from voicetrace.judge.result import Dimension

from . import defects, run

BAR = 0.75
INVARIANT = 0.05
FAMILIES = {f.name: f for f in defects.FAMILIES}
CONTROLS = {f.name: f for f in defects.CONTROLS}
NO_SPEECH = ("silence", "white_noise", "music", "empty")


@dataclass
class Numbers:
    """What one set of calls says of the judge."""

    set: str
    calls: int = 0
    clean: int = 0
    false_alarms: dict = field(default_factory=lambda: defaultdict(list))
    scores: dict = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))
    """Family, level, seed: the score of the dimension that should find it."""
    crosstalk: dict = field(default_factory=lambda: defaultdict(list))
    controls: dict = field(default_factory=lambda: defaultdict(list))
    changes: dict = field(default_factory=lambda: defaultdict(list))
    """Variant, dimension: how much the score changed."""
    flips: list = field(default_factory=list)
    no_speech: dict = field(default_factory=dict)

    def found(self, level_from_top):
        """Of each family: how many of the calls of a strength are below the bar, and of how many."""
        out = {}
        for family, levels in self.scores.items():
            level = len(FAMILIES[family].levels) - 1 - level_from_top
            values = list(levels.get(level, {}).values())
            out[family] = (sum(v is not None and v < BAR for v in values), len(values))
        return out

    def monotone(self):
        """Of neighbouring strengths of one seed: how many do not score higher with more, and of how many."""
        good, pairs = 0, 0
        for family, levels in self.scores.items():
            for level in range(len(FAMILIES[family].levels) - 1):
                for seed, score in levels.get(level, {}).items():
                    more = levels.get(level + 1, {}).get(seed)
                    if score is not None and more is not None:
                        pairs += 1
                        good += more <= score + 0.0005
        return good, pairs

    def worst_changes(self):
        """Of each variant and dimension: the largest change of a score."""
        return {key: max(values) for key, values in self.changes.items()}


def numbers_of(which, items, out, rubric):
    """Score every item's features."""
    n = Numbers(which)
    base = {}
    scored = [(item, score_features(run.features_of(item, out), rubric)) for item in items]
    for item, scores in scored:
        if item.family == "invariance" and not item.variant:
            base[item.seed] = scores
    for item, scores in scored:
        n.calls += 1
        bad = {d.value: s for d, s in scores.items() if s.score is not None and s.score < BAR}
        if item.family == "clean":
            n.clean += 1
            for name, score in bad.items():
                n.false_alarms[name].append(
                    (item.name, item.agent, item.telephone, score.score, score.reason)
                )
        elif item.family == "invariance" and item.variant:
            _change(n, item, base[item.seed], scores)
        elif item.family in FAMILIES:
            family = FAMILIES[item.family]
            own = [scores[Dimension(d)].score for d in family.dimensions]
            known = [s for s in own if s is not None]
            n.scores[item.family][item.level][item.seed] = min(known) if known else None
            for name in bad.keys() - set(family.dimensions) - set(family.also):
                n.crosstalk[(item.family, name)].append((item.name, bad[name].score, bad[name].reason))
        elif item.family in CONTROLS:
            n.controls[item.family].append({k: (item.name, s.score, s.reason) for k, s in bad.items()})
        elif item.family in NO_SPEECH:
            n.no_speech[item.family] = sorted(d.value for d, s in scores.items() if s.score is not None)
    return n


def _change(n, item, before, after):
    for dimension in Dimension:
        a, b = before[dimension].score, after[dimension].score
        if a is None and b is None:
            continue
        if a is None or b is None:
            n.flips.append((item.name, dimension.value, a, b))
        elif not (item.variant == "mulaw" and dimension is Dimension.CLARITY):
            n.changes[(item.variant, dimension.value)].append(round(abs(a - b), 4))


def markdown(n, speed):
    """The report as a page."""
    strongest, middle = n.found(0), n.found(1)
    good, pairs = n.monotone()
    lines = [
        f"# Voice Judge benchmark: the {n.set} set",
        "",
        f"{n.calls} calls, {n.clean} of them clean; synthetic and recorded voices, planted defects.",
        "",
        "| measure | bar | measured |",
        "| --- | --- | --- |",
    ]
    alarms = {d.value: len(n.false_alarms.get(d.value, ())) for d in Dimension}
    worst = max(alarms.values()) / max(1, n.clean)
    lines.append(f"| clean calls with a Warning or worse, worst dimension | <= 2 % | {worst:.1%} |")
    for label, bar, found in (("strongest", 0.95, strongest), ("middle", 0.85, middle)):
        hit, of = (sum(x[k] for x in found.values()) for k in (0, 1))
        missed = sorted(f for f, (h, o) in found.items() if o and h / o < bar)
        below = ", ".join(missed) or "none"
        lines.append(f"| {label} strength found | >= {bar:.0%} of each | {hit}/{of}; below: {below} |")
    lines.append(
        f"| more of a defect never scores higher | >= 98 % | {good}/{pairs} ({good / max(1, pairs):.1%}) |"
    )
    changed = n.worst_changes()
    over = sorted(f"{v}/{d} {x:.3f}" for (v, d), x in changed.items() if x > INVARIANT)
    most = max(changed.values(), default=0.0)
    above = ", ".join(over) or "none"
    lines.append(f"| score change under a harmless change | <= {INVARIANT} | {most:.3f}; above: {above} |")
    some = {k: v for k, v in n.no_speech.items() if v}
    lines.append(f"| silence, noise, music, nothing: scores | none | {some or 'none'} |")
    lines += [f"| {name} | {bar} | {value} |" for name, bar, value in speed]
    lines += [
        "",
        "## Detection",
        "",
        "| family | dimension | strengths | found, weakest to strongest | median score |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, family in FAMILIES.items():
        cells, medians = [], []
        for level in range(len(family.levels)):
            values = list(n.scores[name].get(level, {}).values())
            cells.append(f"{sum(v is not None and v < BAR for v in values)}/{len(values)}")
            known = [v for v in values if v is not None]
            medians.append(f"{statistics.median(known):.2f}" if known else "null")
        shown = " ".join(str(level) for level in family.levels)
        lines.append(
            f"| {name} | {', '.join(family.dimensions)} | {shown} | {' '.join(cells)} | {' '.join(medians)} |"
        )
    lines += ["", "## False alarms on clean calls", "", "| dimension | calls |", "| --- | --- |"]
    lines += [f"| {d} | {c}/{n.clean} |" for d, c in alarms.items()]
    lines += [f"- {d}: {x}" for d, all_ in sorted(n.false_alarms.items()) for x in all_]
    lines += [
        "",
        "## Controls: no defect of the agent's",
        "",
        "| control | calls below the bar | where |",
        "| --- | --- | --- |",
    ]
    for name, calls in n.controls.items():
        bad = [c for c in calls if c]
        where = "; ".join(f"{k} {s:.2f}: {r}" for c in bad for k, (_, s, r) in c.items())
        lines.append(f"| {name} | {len(bad)}/{len(calls)} | {where} |")
    lines += [
        "",
        "## Cross-talk: other dimensions below the bar",
        "",
        "| family | dimension | calls | example |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {f} | {d} | {len(x)} | {x[0][1]:.2f}: {x[0][2]} |" for (f, d), x in sorted(n.crosstalk.items())
    ]
    lines += [
        "",
        "## Invariance: the largest change",
        "",
        "| change | dimension | largest |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {v} | {d} | {x:.3f} |" for (v, d), x in sorted(changed.items()) if x > 0]
    lines += [f"- {name}: {d} went from {a} to {b}" for name, d, a, b in n.flips]
    return "\n".join(lines) + "\n"


def plot(n, path):
    """Each family's scores by strength, one dot a call."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = [f for f in FAMILIES if n.scores[f]]
    columns = 5
    figure, axes = plt.subplots(-(-len(names) // columns), columns, figsize=(14, 10), sharey=True)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, names, strict=False):
        for low, high, colour in (
            (0.75, 1.02, "#d9f0d3"),
            (0.5, 0.75, "#fff7bc"),
            (0.25, 0.5, "#fdd0a2"),
            (-0.02, 0.25, "#fcbba1"),
        ):
            axis.axhspan(low, high, color=colour, lw=0)
        for level, scores in n.scores[name].items():
            values = [v for v in scores.values() if v is not None]
            spread = [level + 0.06 * (k - len(values) / 2) for k in range(len(values))]
            axis.plot(spread, values, "o", ms=4, color="#333333", alpha=0.7)
        axis.set_title(f"{name}\n{', '.join(FAMILIES[name].dimensions)}", fontsize=8)
        axis.set_xticks(
            range(len(FAMILIES[name].levels)), [str(v) for v in FAMILIES[name].levels], fontsize=7
        )
        axis.set_ylim(-0.02, 1.02)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
