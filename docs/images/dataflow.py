"""Draw docs/images/dataflow.svg: how durations, engines, server, trace, replay, theory and report are connected.

Boxes have their own background, so that the picture is readable on light and dark pages.
Run: python docs/images/dataflow.py
"""

from pathlib import Path

WIDTH, HEIGHT = 900, 330
BOX = (150, 62)
BOXES = {  # name: (column, row, kind, what it says)
    "durations": (0, 0, "input", "seconds per job"),
    "schedule": (1, 0, "made", "who finishes when"),
    "engine": (0, 2, "input", "processes, cluster"),
    "server": (1, 2, "made", "events → commands"),
    "trace": (2, 1, "centre", "one row per job"),
    "replay": (3, 0, "made", "the numbers, in lanes"),
    "theory": (3, 2, "made", "bounds, steps, limits"),
    "report": (4, 1, "result", "page, plots, tables"),
}
ARROWS = [
    ("durations", "schedule"),
    ("schedule", "trace"),
    ("engine", "server"),
    ("server", "engine"),
    ("server", "trace"),
    ("trace", "replay"),
    ("trace", "theory"),
    ("trace", "report"),
    ("replay", "report"),
    ("theory", "report"),
]
FILLS = {"input": "#e3ecf7", "made": "#eef0f4", "centre": "#fde3b5", "result": "#dcefdc"}
COLUMN, ROW, LEFT, TOP = 180, 118, 15, 20


def corner(name: str) -> tuple[int, int]:
    column, row, *_ = BOXES[name]
    return LEFT + column * COLUMN, TOP + row * ROW


def box(name: str) -> str:
    x, y = corner(name)
    kind, words = BOXES[name][2:]
    return (
        f'<rect x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="8" fill="{FILLS[kind]}" stroke="#8a94a6"/>'
        f'<text x="{x + BOX[0] / 2}" y="{y + 26}" class="name">{name}</text>'
        f'<text x="{x + BOX[0] / 2}" y="{y + 46}" class="words">{words}</text>'
    )


def arrow(start: str, end: str) -> str:
    (x0, y0), (x1, y1) = corner(start), corner(end)
    both = (end, start) in ARROWS  # shift two arrows between the same boxes, so that both are visible
    shift = (10 if x0 < x1 else -10) if both else 0
    forward = x0 < x1
    a = (x0 + (BOX[0] if forward else 0), y0 + BOX[1] / 2 + shift)
    b = (x1 + (0 if forward else BOX[0]), y1 + BOX[1] / 2 + shift)
    if y0 < y1:
        b = (b[0], y1 + BOX[1] / 3)
    elif y0 > y1:
        b = (b[0], y1 + 2 * BOX[1] / 3)
    gap = 3 if forward else -3
    return f'<line x1="{a[0]}" y1="{a[1]}" x2="{b[0] - gap:.0f}" y2="{b[1]:.1f}" marker-end="url(#tip)"/>'


def picture() -> str:
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif">',
        "<title>Durations give a schedule, engines drive the server; both give a trace; replay, theory and the report "
        "read it</title>",
        "<style>.name{font-size:17px;font-weight:600}.words{font-size:12.5px}text{text-anchor:middle;fill:#1d2430}"
        "line{stroke:#8a94a6;stroke-width:2}</style>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L10 5L0 10z" fill="#8a94a6"/></marker></defs>',
        *(arrow(*ends) for ends in ARROWS),
        *(box(name) for name in BOXES),
        "</svg>",
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    target = Path(__file__).with_suffix(".svg")
    target.write_text(picture(), encoding="utf-8")
    print(f"wrote {target.name}")
