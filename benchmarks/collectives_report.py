"""Makes tables and plots of the figures of collectives.py, for terminals and for docs.

They depend only on the figures: the same figures give the same bytes.
"""

import math
import pathlib
import re

KIB, MIB = 1 << 10, 1 << 20
GIGABIT_US = 8 / 1000  # microseconds for one byte at 1 Gbit/s

# Goals of all_reduce of two ranks: multiple of the floor, ratio to gloo and to MPI, microseconds.
GOALS = {
    4: {"us": 1, "gloo": 100},
    64 * KIB: {"multiple": 1.7, "gloo": 70, "mpi": 2},
    MIB: {"multiple": 1.4, "gloo": 10, "mpi": 1.8},
    4 * MIB: {"multiple": 1.4, "gloo": 10, "mpi": 2},
    25 * MIB: {"multiple": 1.3, "gloo": 4.5, "mpi": 2},
    100 * MIB: {"multiple": 1.3, "gloo": 5, "mpi": 3.5},
}
SHARED_GOAL = 1.3  # multiple of the single-copy floor, for 25 MiB
# Multiples of the floor, by bytes. With few bytes, one or two meetings take more time than the
# copies.
OTHERS_GOALS = {0: 3, 4 * KIB: 8, 64 * KIB: 2, MIB: 1.6, 25 * MIB: 1.4}
# The same for more ranks than cores. A meeting takes a turn of each rank on a core, and each
# piece has a meeting.
MANY_GOALS = {0: 2, 4: 3, 64 * KIB: 6, MIB: 3, 25 * MIB: 1.3}
# Multiples of the floor between two nodes: by number of ranks if only the machine limits the
# link (four ranks share two cores with the kernel's copies), and at 1 Gbit/s. SENT_GOAL:
# multiple of the least bytes.
UNSHAPED_GOALS, GIGABIT_GOAL, SENT_GOAL = {2: 1.5, 4: 3}, 1.2, 1.05
# The share of its speed that the all_reduce keeps, plus the share that is left for computing.
TOGETHER_GOAL = 0.95
# Processor time of a rank, as a multiple of the time of the floor.
CPU_GOAL = 1.5
NAMES = {"ours": "ours", "group": "ProcessGroup", "gloo": "gloo", "mpi": "OpenMPI"}


class Figures:
    def __init__(self, figures: dict) -> None:
        self.facts, self.records = figures, figures["records"]

    def rows(self, section: str, **about) -> dict:
        """Returns the figures of a section by (ranks, call, bytes), then by system."""
        found = {}
        for record in self.records:
            if (record["section"] == section
                and all(record.get(key) == value for key, value in about.items())):
                found.setdefault((record["ranks"], record["call"], record["bytes"]),
                                 {})[record["system"]] = record
        return found

    def meeting(self, section: str, ranks: int) -> float:
        return min(one["us"] for one in self.rows(section)[ranks, "meet", 0].values())


def size_text(count: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


def figure(value: float) -> str:
    """Returns the value with two or three digits: a busy machine does not repeat more of them."""
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def time_text(us: float | None) -> str:
    if us is None:
        return ""
    return f"{figure(us)} us" if us < 1000 else f"{figure(us / 1000)} ms"


def ratio_text(ratio: float | None) -> str:
    return "" if ratio is None else figure(ratio)


def table(head: list, rows: list) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |"
        for line in lines)


def us_of(row: dict, system: str) -> float | None:
    return row[system]["us"] if system in row else None


def peer_cells(row: dict, peers=("gloo", "mpi")) -> list:
    """Returns the time of each peer, and R, its time over ours."""
    cells = []
    for peer in peers:
        us = us_of(row, peer)
        cells += [time_text(us), ratio_text(us / row["ours"]["us"] if us else None)]
    return cells


def peer_heads(peers=("gloo", "mpi")) -> list:
    return [head for peer in peers for head in (NAMES[peer], "R")]


def floor_of(row: dict, meeting: float, kind: str = "floor") -> float:
    return max(meeting, min((one["us"] for name, one in row.items() if name.startswith(kind + " ")),
                            default=0))


def at_most(goal: float | None, value: float, unit: str = " x") -> str:
    """Returns the goal, and whether it is met."""
    return "" if goal is None else f"<= {goal}{unit}: " + ("met" if value <= goal else "missed")


def against(goal: dict, row: dict, multiple: float) -> str:
    """Returns the same for several goals at once."""
    wanted, missed = [], []
    ours = row["ours"]["us"]
    if "us" in goal:
        wanted.append(f"<= {goal['us']} us")
        if ours > goal["us"]:
            missed.append(wanted[-1])
    if "multiple" in goal:
        wanted.append(f"<= {goal['multiple']} x")
        if multiple > goal["multiple"]:
            missed.append(wanted[-1])
    for peer in ("gloo", "mpi"):
        if peer in goal and peer in row:
            wanted.append(f"{NAMES[peer]} R >= {goal[peer]}")
            if row[peer]["us"] / ours < goal[peer]:
                missed.append(wanted[-1])
    if not wanted:
        return ""
    return ", ".join(wanted) + (": met" if not missed else "; missed: " + ", ".join(missed))


# --- tables by section ---


def two(figures: Figures) -> str:
    meeting = figures.meeting("two", 2)
    rows, shared, used = [], [], []
    for (ranks, call, size), row in figures.rows("two").items():
        if call == "meet":
            continue
        floor, single = floor_of(row, meeting), floor_of(row, meeting, "single")
        multiple = row["ours"]["us"] / floor
        rows.append([size_text(size), time_text(us_of(row, "ours")), time_text(us_of(row, "group")),
                     *peer_cells(row), time_text(floor), figure(multiple),
                     against(GOALS.get(size, {}), row, multiple)])
        in_place = row["shared"]["us"]
        goal = ""
        if size == 25 * MIB:
            goal = f"<= {SHARED_GOAL} x" + (
                ": met" if in_place / single <= SHARED_GOAL else ": missed")
        shared.append([size_text(size), time_text(in_place), time_text(single),
                       figure(in_place / single), figure(row["ours"]["us"] / in_place), goal])
        if size >= 64 * KIB:
            used.append([size_text(size),
                         *(figure(row[name]["cpu_us"] * 1000 / (size / KIB)) if name in row else ""
                           for name in ("ours", "shared", "group", "gloo", "mpi")),
                         figure(floor * 1000 / (size / KIB)),
                         at_most(CPU_GOAL, row["ours"]["cpu_us"] / floor)])
    return "\n\n".join([
        "all_reduce, 2 ranks on 2 cores, f32 sum:",
        table(["size", "ours", "ProcessGroup", *peer_heads(), "floor", "multiple", "goal"], rows),
        "The same in tensors of `shared_empty()`; the floor is a single copy:",
        table(["size", "shared", "floor", "multiple", "staged / shared", "goal"], shared),
        "Processor time of a rank, waiting included, in ns for each KiB:",
        table(["size", "ours", "shared", "ProcessGroup", "gloo", "OpenMPI", "floor", "goal"], used),
    ])


def others(figures: Figures) -> str:
    meeting = figures.meeting("others", 2)
    rows = []
    for (ranks, call, size), row in figures.rows("others").items():
        if call == "meet":
            continue
        floor = floor_of(row, meeting)
        multiple = row["ours"]["us"] / floor
        goal = {"multiple": OTHERS_GOALS[size]} if size in OTHERS_GOALS else {}
        rows.append([call, size_text(size) if size else "", time_text(us_of(row, "ours")),
                     time_text(us_of(row, "group")), *peer_cells(row), time_text(floor),
                     figure(multiple), against(goal, row, multiple)])
    return "\n\n".join([
        "The other collectives, 2 ranks on 2 cores; the size is that of a rank's larger buffer:",
        table(["collective", "size", "ours", "ProcessGroup", *peer_heads(), "floor", "multiple",
               "goal"], rows)])


def many(figures: Figures) -> str:
    rows = []
    for (ranks, call, size), row in figures.rows("many").items():
        if call == "meet":
            continue
        floor = floor_of(row, figures.meeting("many", ranks))
        multiple = row["ours"]["us"] / floor
        rows.append([str(ranks), call, size_text(size) if size else "",
                     time_text(us_of(row, "ours")), *peer_cells(row), time_text(floor),
                     figure(multiple), at_most(MANY_GOALS.get(size), multiple)])
    return "\n\n".join([
        f"More ranks, on {figures.facts['cores']} cores:",
        table(["ranks", "collective", "size", "ours", *peer_heads(), "floor", "multiple", "goal"],
              rows)])


def network(figures: Figures) -> str:
    wire = figures.rows("wire")
    rows = []
    for rate in ("", "1gbit"):
        for (ranks, call, size), row in figures.rows("network", rate=rate).items():
            # each of two nodes sends 2(n-1)/n of the size
            least = size * GIGABIT_US if rate and size >= 64 * KIB else row["floor"]["us"]
            sent = {name: one["sent"] / size
                    for name, one in wire.get((ranks, call, size), {}).items() if size >= 64 * KIB}
            multiple = row["ours"]["us"] / least
            rows.append([str(ranks), "1 Gbit/s" if rate else "unshaped", size_text(size),
                         time_text(us_of(row, "ours")), *peer_cells(row), time_text(least),
                         ratio_text(multiple),
                         at_most(GIGABIT_GOAL if rate else UNSHAPED_GOALS.get(ranks), multiple),
                         *(ratio_text(sent.get(name)) for name in ("ours", "gloo", "mpi")),
                         at_most(SENT_GOAL, sent["ours"]) if "ours" in sent else ""])
    return "\n\n".join([
        "all_reduce, 2 nodes in network namespaces. A node must send and receive 2(n-1)/n of the "
        "size. Floor: at 1 Gbit/s the\n"
        "time which that takes on the wire, without headers, which are another 4 %; else, and for "
        "4 B, the time in which the\n"
        "same processes exchange as much over bare connections. The last columns: bytes that the "
        "busier node sent, over that\n"
        "least.",
        table(["ranks", "link", "size", "ours", *peer_heads(), "floor", "multiple", "goal",
               "sent: ours", "gloo", "OpenMPI", "goal"], rows)])


def compute(figures: Figures) -> str:
    rows = []
    for (ranks, call, size), row in figures.rows("compute").items():
        for name, one in row.items():
            together = one["quiet_us"] / one["us"] + one["compute"]
            goal = (f">= {TOGETHER_GOAL}: " + ("met" if together >= TOGETHER_GOAL else "missed")
                    if name == "ours" else "")
            rows.append([size_text(size), NAMES[name], time_text(one["quiet_us"]),
                         time_text(one["us"]), f"{one['compute']:.0%}", f"{together:.2f}", goal])
    return "\n\n".join([
        "all_reduce, 2 ranks, while a process on each core computes. Computing gets so much of "
        "what it gets alone; together:\n"
        "its share and the all_reduce's share of the speed that it has alone:",
        table(["size", "system", "alone", "while computing", "computing gets", "together", "goal"],
              rows)])


def tuning(figures: Figures) -> str:
    tables = ["The engine with one choice changed; bold: the best of a line, and what is within "
              "3 % of it."]
    for choice in dict.fromkeys(record["choice"] for record in figures.records
                                if record["section"] == "tuning"):
        lines = []
        for (ranks, call, size), row in figures.rows("tuning", choice=choice).items():
            best = min(one["us"] for one in row.values())
            lines.append([str(ranks), call, size_text(size) if size else "", *(
                f"**{time_text(one['us'])}**" if one["us"] <= 1.03 * best else time_text(one["us"])
                for one in row.values())])
        tables.append(table(["ranks", f"{choice}:", "size", *row], lines))
    return "\n\n".join(tables)


def messages(figures: Figures) -> str:
    rows = {}
    for record in figures.records:
        if record["section"] == "messages":
            rows.setdefault(record["bytes"], {})[record["nodes"]] = record
    lines = []
    for size, by_nodes in rows.items():
        cells = [size_text(size)]
        for nodes, floor in ((1, "shared_us"), (2, "sockets_us")):
            one = by_nodes[nodes]
            cells += [time_text(one["ping_pong_us"]), time_text(one[floor]),
                      f"{one['one_way_gbs']:.1f} GB/s", f"{one['both_ways_gbs']:.1f} GB/s"]
        lines.append(cells)
    return table(["bytes", "one node: ping-pong", "floor", "one way", "both ways",
                  "two nodes: ping-pong", "floor", "one way", "both ways"], lines)


TABLES = {"two": two, "others": others, "many": many, "network": network, "compute": compute,
          "tuning": tuning, "messages": messages}


def facts_text(figures: Figures) -> str:
    facts = figures.facts
    peers = [f"gloo of PyTorch {facts['torch']}" if facts.get("torch") else "",
             f"OpenMPI {facts['mpi']}" if facts["mpi"] else ""]
    return (f"{facts['cores']} cores ({facts['processor']}), Linux {facts['kernel']}, load "
            f"{facts['load']} at the start; medians of {facts['rounds']} rounds; peers: "
            + (" and ".join(filter(None, peers)) or "none") + ".")


def sections_in(figures: Figures) -> list:
    there = {record["section"] for record in figures.records}
    return [name for name in TABLES if name in there]


def text(figures: Figures) -> str:
    return "\n\n".join([facts_text(figures),
                        *(TABLES[name](figures) for name in sections_in(figures))])


# --- plots ---

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 80, 140, 40, 44
STYLE = """<style>
text { font: 12px sans-serif; fill: #333 } .title { font-size: 14px; font-weight: bold }
.grid { stroke: #8884; stroke-width: 1 } .line { fill: none; stroke-width: 2 }
.s0 { stroke: #0969da } .s1 { stroke: #1a7f37 } .s2 { stroke: #bc4c00 } .s3 { stroke: #8250df } \
.s4, .s5 { stroke: #888; stroke-dasharray: 6 4 } .s5 { stroke-dasharray: 2 4 }
text.s0 { fill: #0969da; stroke: none } text.s1 { fill: #1a7f37; stroke: none } \
text.s2 { fill: #bc4c00; stroke: none }
text.s3 { fill: #8250df; stroke: none } text.s4, text.s5 { fill: #888; stroke: none }
@media (prefers-color-scheme: dark) { text { fill: #ddd } \
.s0 { stroke: #58a6ff } .s1 { stroke: #3fb950 } .s2 { stroke: #f0883e }
.s3 { stroke: #bc8cff } text.s0 { fill: #58a6ff } text.s1 { fill: #3fb950 } \
text.s2 { fill: #f0883e } text.s3 { fill: #bc8cff } }
</style>"""


def plot(title: str, series: dict, tick) -> str:
    """Returns a plot as SVG, with two logarithmic axes. x: bytes.

    series: name to points. tick: returns the text of a power of ten of y.
    """
    # A missing peer does not change colours.
    places = {name: place for place, name in enumerate(series)}
    series = {name: points for name, points in series.items() if points}
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x_range = math.log2(min(xs)), max(math.log2(max(xs)), math.log2(min(xs)) + 1)
    y_range = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    y_range = y_range[0], max(y_range[1], y_range[0] + 1)

    def at_x(x):
        return LEFT + (
            (math.log2(x) - x_range[0]) / (x_range[1] - x_range[0]) * (WIDTH - LEFT - RIGHT))

    def at_y(y):
        return HEIGHT - BOTTOM - (
            (math.log10(y) - y_range[0]) / (y_range[1] - y_range[0]) * (HEIGHT - TOP - BOTTOM))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
           f'aria-label="{title}">', STYLE, f'<text class="title" x="{LEFT}" y="20">{title}</text>']
    for power in range(y_range[0], y_range[1] + 1):
        y = at_y(10**power)
        out.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
                   f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick(power)}</text>')
    for power in range(0, 40, 4):
        if x_range[0] <= power <= x_range[1]:
            x = at_x(2**power)
            out.append(f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
                       f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
                       f'{size_text(2**power)}</text>')
    last = 0.0
    # Labels do not overlap.
    for y, name in sorted((at_y(points[-1][1]), name) for name, points in series.items()):
        last = max(y + 4, last + 14)
        out.append(f'<text class="s{places[name]}" x="{WIDTH - RIGHT + 8}" '
                   f'y="{last:.1f}">{name}</text>')
    for name, points in series.items():
        path = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in points)
        out.append(f'<path class="line s{places[name]}" d="M{path}"/>')
    return "\n".join([*out, "</svg>", ""])


def plots(figures: Figures) -> dict:
    """Returns the plots of the section "two": the text of each file, by its name."""
    meeting = figures.meeting("two", 2)
    latency = {"ours": [], "ours, shared": [], "gloo": [], "OpenMPI": [], "floor": [],
               "single-copy floor": []}
    for (_, call, size), row in figures.rows("two").items():
        if call != "all_reduce":
            continue
        for name, us in (("ours", us_of(row, "ours")), ("ours, shared", us_of(row, "shared")),
                         ("gloo", us_of(row, "gloo")), ("OpenMPI", us_of(row, "mpi")),
                         ("floor", floor_of(row, meeting)),
                         ("single-copy floor", floor_of(row, meeting, "single"))):
            if us:
                latency[name].append((size, us))
    bandwidth = {name: [(size, size / us / 1e3) for size, us in points if size >= KIB]
                 for name, points in latency.items()}
    us = {-2: "10 ns", -1: "100 ns", 0: "1 us", 1: "10 us", 2: "100 us", 3: "1 ms", 4: "10 ms",
          5: "100 ms", 6: "1 s"}
    return {
        "all_reduce_time.svg": plot("all_reduce, 2 ranks: time by size", latency,
                                    lambda power: us[power]),
        "all_reduce_bandwidth.svg": plot("all_reduce, 2 ranks: bandwidth (size over time) by size",
                                         bandwidth, lambda power: f"{10.0**power:g} GB/s"),
    }


# --- docs ---


def into_docs(figures: Figures, page: pathlib.Path) -> None:
    """Writes the tables into the page, between <!-- measured: NAME --> and <!-- end of NAME -->.

    Sections without figures stay as they are.
    """
    parts = {name: TABLES[name](figures) for name in sections_in(figures)}
    if "two" in parts:
        parts["facts"] = facts_text(figures)
        folder = page.parent / page.stem
        folder.mkdir(exist_ok=True)
        for name, picture in plots(figures).items():
            (folder / name).write_text(picture)
    whole = page.read_text()
    for name, part in parts.items():
        whole, found = re.subn(rf"(<!-- measured: {name} -->\n).*?(<!-- end of {name} -->)",
                               lambda match: f"{match[1]}\n{part}\n\n{match[2]}", whole, flags=re.S)
        if found != 1:
            raise ValueError(f"{page} has no place for what was measured of '{name}'")
    page.write_text(whole)
