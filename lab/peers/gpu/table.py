"""The result as Markdown.

In: what `gpu_check.py` collected. Out: text. Invariant: what was not measured has a row that says why.
"""

SPEED_HEADS = (
    "network", "batch", "numbers", "program", "images/s", "ms a step", "memory, MiB", "of best PyTorch",
    "of copy bandwidth", "of matrix peak", "losses off",
)


def markdown(result):
    """All tables."""
    parts = [title(result), checks(result.get("verify", [])), speeds(result.get("rows", []))]
    parts.append(kernels(result.get("kernels", [])))
    parts.append(pairs(result.get("pairs", [])))
    parts.append(gaps(result.get("gaps", [])))
    return "\n\n".join(part for part in parts if part) + "\n"


def title(result):
    """The machine and its own rates."""
    gpu, peaks = result.get("gpu") or {}, result.get("peaks") or {}
    lines = [f"# GPU check: {gpu.get('name', 'no GPU')}", ""]
    lines.append(f"driver {gpu.get('driver_version', '-')}, PyTorch {result.get('pytorch') or '-'}, trainer {result.get('trainer') or '-'}")
    if peaks:
        bandwidth = number(peaks.get("copy_bytes_per_s"), 1e12, 2)
        rates = ", ".join(f"{name} {number(peaks.get(name + '_flops'), 1e12, 0)}" for name in ("tf32", "bf16", "f16"))
        lines.append(f"copy {bandwidth} TB/s (read and written); matrix products, TFLOP/s: {rates}")
    return "\n".join(lines)


def number(value, unit, digits):
    """A number in a unit, or a dash."""
    return "-" if value is None else f"{value / unit:.{digits}f}"


def cell(text):
    """A text that ends no column."""
    return str(text).replace("|", "/").replace("\n", " ")


def table(heads, rows):
    """Lines of a Markdown table."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines.extend(f"| {' | '.join(cell(value) for value in row)} |" for row in rows)
    return "\n".join(lines)


def checks(verifications):
    """One column a number format."""
    if not verifications:
        return ""
    names = []
    for verification in verifications:
        names.extend(check["name"] for check in verification["checks"] if check["name"] not in names)
    rows = []
    for name in names:
        cells = [name]
        for verification in verifications:
            check = next((check for check in verification["checks"] if check["name"] == name), None)
            cells.append(outcome(check))
        rows.append(cells)
    return table(["check", *(verification["dtype"] for verification in verifications)], rows)


def outcome(check):
    """A verdict with what was wrong, or why there is none."""
    if check is None:
        return "-"
    wrong = [f"{one['what']}: {one['got']} (tolerance {one['tolerance']})" for one in check.get("comparisons", []) if not one["passes"]]
    reason = "; ".join(filter(None, [check["found"], *wrong]))
    return f"{check['verdict']}: {reason}" if reason else check["verdict"]


def speeds(rows):
    """One line a measurement."""
    if not rows:
        return ""
    lines = []
    for row in rows:
        head = [row["model"], row["batch"], row["dtype"], row["contender"]]
        if row.get("gap"):
            lines.append([*head, f"gap: {row['gap']}", *[""] * (len(SPEED_HEADS) - 5)])
            continue
        off = row.get("losses_off")
        lines.append(
            [
                *head,
                number(row["images_per_second"], 1, 0),
                number(row["step_s"], 1e-3, 3),
                number(row.get("memory_bytes"), 2**20, 0),
                number(row.get("of_best_pytorch"), 1, 2),
                number(row.get("of_bandwidth"), 0.01, 1) + " %",
                number(row.get("of_matrix_peak"), 0.01, 1) + " %",
                "-" if off is None else f"{off:.0e}" + ("" if row.get("counts", True) else ", does not count"),
            ]
        )
    return table(SPEED_HEADS, lines)


def kernels(profiles):
    """Launches, and the kernels that take longest."""
    rows = []
    for profile in profiles:
        longest = ", ".join(f"{name} {share:.0%}" for name, share in profile["longest"])
        times = [number(profile.get(name), 1e-3, 3) for name in ("kernel_s", "idle_s")]
        rows.append([profile["program"], number(profile["launches_per_step"], 1, 0), *times, longest])
    heads = ["program", "launches a step", "in kernels, ms", "between them, ms", "longest kernels, share of kernel time"]
    return table(heads, rows) if rows else ""


def pairs(rows):
    """Two processes on the GPU."""
    lines = [[row["reduction"], number(row["images_per_second"], 1, 0)] for row in rows]
    return table(["two processes, reduction", "images/s"], lines) if rows else ""


def gaps(reasons):
    """What is missing."""
    return table(["not measured", "why"], reasons) if reasons else ""
