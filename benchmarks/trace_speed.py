"""Time and memory to divide a large Kineto trace, beside HolisticTraceAnalysis's temporal breakdown of the same file.

    python benchmarks/trace_speed.py --hta-python /path/to/venv/bin/python            # 1 GB
    python benchmarks/trace_speed.py --hta-python ... --megabytes 100

Each tool runs in a process of its own, one after the other, on the same generated file, which lies in the page cache.
HolisticTraceAnalysis is wanted in an environment of its own (pip install HolisticTraceAnalysis==0.5.0).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

OURS = """
import json, sys
from ioprobe.live.traces.kineto import read_kineto
from ioprobe.live.traces.partition import partitions
found = partitions(read_kineto(sys.argv[1]))[0]
names = ("compute", "communication", "transfer", "data_stall", "other_idle")
print(json.dumps({n: getattr(found, n + "_s") / found.window_s for n in names}))
"""
THEIRS = """
import json, sys
from hta.trace_analysis import TraceAnalysis
frame = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/").get_temporal_breakdown(visualize=False)
print(json.dumps({k: float(frame[k].iloc[0]) for k in frame.columns if k.endswith("pctg")}))
"""


def measure(python: str, code: str, trace: Path) -> tuple[float, float, str]:
    """Return seconds, peak resident bytes and the last line printed."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen([python, "-c", code, str(trace)], stdout=out, cwd=ROOT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - start
        out.seek(0)
        text = out.read().strip()
    if child.returncode:
        raise SystemExit(f"{python} failed with exit code {child.returncode}")
    return wall, usage.ru_maxrss * 1024, text.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hta-python", help="interpreter with HolisticTraceAnalysis; without it only ioprobe is timed")
    parser.add_argument("--megabytes", type=int, default=1000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        # In a process of its own: a child's peak memory counts from what its parent held when it was forked.
        command = [sys.executable, ROOT / "fixtures/traces/generate.py", trace, "--megabytes", str(chosen.megabytes)]
        planted = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        size = trace.stat().st_size
        print(f"trace: {size / 1e9:.2f} GB; planted: {json.dumps({k: round(v, 4) for k, v in planted.items()})}")
        wall, peak, text = measure(sys.executable, OURS, trace)
        print(f"ioprobe: {wall:.1f} s, {size / wall / 1e6:.0f} MB/s, peak {peak / 1e9:.2f} GB; {text}")
        if chosen.hta_python:
            other, other_peak, text = measure(chosen.hta_python, THEIRS, trace)
            print(f"HolisticTraceAnalysis: {other:.1f} s, peak {other_peak / 1e9:.2f} GB; {text}")
            print(f"ratio: ioprobe is {other / wall:.1f} times as fast, in {peak / other_peak:.2f} of the memory")


if __name__ == "__main__":
    main()
