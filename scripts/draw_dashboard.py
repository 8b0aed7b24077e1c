"""Makes a picture of a Grafana dashboard from the answers of a Prometheus, without Grafana.

    python3 scripts/draw_dashboard.py configs/grafana/candlepower.json http://127.0.0.1:9090 dashboard.svg [SECONDS]

The picture has the panels with their titles, lines and legends, for the last SECONDS (60).
"""

import json
import math
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from xml.sax.saxutils import escape

COLORS = ["#3871dc", "#e0752d", "#2f9e44", "#a352cc", "#c4162a", "#1f9e9e"]
COLUMN, ROW = 60, 26
LEFT, BOTTOM = 58, 40


def query(url, expression, seconds):
    end = time.time()
    form = {"query": expression, "start": end - seconds, "end": end, "step": max(1, seconds // 60)}
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{urllib.parse.urlencode(form)}") as response:
        return json.load(response)["data"]["result"]


def legend(pattern, labels):
    for name, value in labels.items():
        pattern = pattern.replace("{{" + name + "}}", value)
    return pattern


def shown(value, unit):
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "bytes":
        return f"{value / 2**20:.4g} MiB"
    return f"{value:.4g}"


def panel_lines(panel, url, seconds):
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", "15s")
        for name in ("$job", "$instance", "$model_name"):
            expression = expression.replace(name, ".*")
        for series in query(url, expression, seconds):
            points = [(float(at), float(value)) for at, value in series["values"]]
            points = [(at, value) for at, value in points if math.isfinite(value)]
            if points:
                yield legend(target["legendFormat"], series["metric"]), points


def draw_panel(panel, url, seconds):
    place, unit = panel["gridPos"], panel["fieldConfig"]["defaults"]["unit"]
    x, y = place["x"] * COLUMN, place["y"] * ROW
    width, height = place["w"] * COLUMN - 10, place["h"] * ROW - 10
    out = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="#fff" stroke="#ccc" rx="3"/>']
    out.append(f'<text x="{x + 8}" y="{y + 16}" font-weight="bold">{escape(panel["title"])}</text>')
    lines = list(panel_lines(panel, url, seconds))
    if not lines:
        out.append(f'<text x="{x + 8}" y="{y + 60}" fill="#c00">no data</text>')
        return out
    times = [at for _, points in lines for at, _ in points]
    first, last = min(times), max(max(times), min(times) + 1)
    top = max(value for _, points in lines for _, value in points) or 1
    inner_width, inner_height = width - LEFT - 10, height - BOTTOM - 26
    for part in (0, 0.5, 1):
        level = y + 26 + inner_height * (1 - part)
        out.append(f'<line x1="{x + LEFT}" x2="{x + LEFT + inner_width}" y1="{level}" y2="{level}" stroke="#eee"/>')
        out.append(f'<text x="{x + LEFT - 4}" y="{level + 4}" text-anchor="end" fill="#666">{shown(top * part, unit)}</text>')
    for index, (_, points) in enumerate(lines):
        path = " ".join(
            f"{x + LEFT + inner_width * (at - first) / (last - first):.1f},{y + 26 + inner_height * (1 - value / top):.1f}"
            for at, value in points
        )
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[index % len(COLORS)]}" stroke-width="1.5"/>')
    at = x + 8
    for index, (name, points) in enumerate(lines):
        text = f"{name}: {shown(points[-1][1], unit)}"
        row = index // 3
        if index % 3 == 0:
            at = x + 8
        level = y + height - BOTTOM + 22 + row * 14
        out.append(f'<text x="{at}" y="{level}" fill="{COLORS[index % len(COLORS)]}">{escape(text)}</text>')
        at += 7 * len(text) + 14
    return out


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__.strip())
    path, url, target = sys.argv[1:4]
    seconds = int(sys.argv[4]) if len(sys.argv) > 4 else 60
    with open(path) as file:
        dashboard = json.load(file)
    out, bottom = [], 0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        bottom = max(bottom, (place["y"] + place["h"]) * ROW)
        if panel["type"] == "row":
            out.append(f'<text x="4" y="{place["y"] * ROW + 18}" font-size="15" font-weight="bold">{escape(panel["title"])}</text>')
        else:
            out.extend(draw_panel(panel, url, seconds))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{24 * COLUMN}" height="{bottom}" font-family="sans-serif" font-size="11">'
    with open(target, "w") as file:
        file.write("\n".join([head, '<rect width="100%" height="100%" fill="#f7f7f7"/>', *out, "</svg>"]) + "\n")


if __name__ == "__main__":
    try:
        main()
    except urllib.error.URLError as error:
        sys.exit(f"no Prometheus answers at {sys.argv[2]}: {error.reason}; start one, or give the URL of another")
    except OSError as error:
        sys.exit(str(error))
