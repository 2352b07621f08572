"""trace.py TRACE STEP: draws a step of a trace (`trainer train --trace`) as SVG.

Each rank has a lane for its training and one for its communication.
"""

import json
import sys

WIDTH, LABELS, LANE, TOP = 720, 150, 26, 56
COLOURS = {
    "input": "#0072B2",
    "forward": "#D55E00",
    "backward": "#009E73",
    "exposed communication": "#C05B95",
    "optimizer": "#CC8B00",
    "bucket": "#56A7DE",
}

with open(sys.argv[1]) as file:
    events = [event for event in json.load(file) if "dur" in event]
step = int(sys.argv[2])
root = {
    name: [event for event in events if event["pid"] == 0 and event["name"] == name]
    for name in ("forward", "optimizer")
}
begin = root["forward"][step]["ts"]
end = root["optimizer"][step]["ts"] + root["optimizer"][step]["dur"]
scale = (WIDTH - LABELS - 12) / (end - begin)
shapes, lanes = [], set()
for event in events:
    start, stop = max(event["ts"], begin), min(event["ts"] + event["dur"], end)
    colours = [colour for name, colour in COLOURS.items() if event["name"].startswith(name)]
    if start >= stop or not colours:
        continue
    lane = 2 * event["pid"] + event["tid"]
    lanes.add(lane)
    shapes.append(
        f'<rect x="{LABELS + (start - begin) * scale:.1f}" y="{TOP + lane * LANE}" '
        f'width="{max((stop - start) * scale, 1.5):.1f}" height="{LANE - 6}" fill="{colours[0]}" '
        'stroke="#FFFFFF" stroke-width="0.5"/>'
    )
for lane in sorted(lanes):
    what = f"rank {lane // 2}, {'communication' if lane % 2 else 'training'}"
    y = TOP + lane * LANE + 14
    shapes.append(f'<text x="{LABELS - 8}" y="{y}" text-anchor="end">{what}</text>')
x = 12
for name, colour in COLOURS.items():
    shapes.append(f'<rect x="{x:.0f}" y="30" width="12" height="10" fill="{colour}"/>')
    shapes.append(f'<text x="{x + 16:.0f}" y="39">{name}</text>')
    x += 36 + 6.6 * len(name)
size = f'width="{WIDTH}" height="{TOP + len(lanes) * LANE + 10}"'
print(f"""<svg {size} xmlns="http://www.w3.org/2000/svg" role="img" font-family="sans-serif" \
font-size="12" fill="#1C1E21">
<title>A step of two ranks</title>
<rect {size} fill="#FFFFFF"/>
<text x="10" y="18" font-size="15" font-weight="bold">One step of rank 0, \
{(end - begin) / 1000:.1f} ms</text>""")
print("\n".join(shapes), "</svg>", sep="\n")
