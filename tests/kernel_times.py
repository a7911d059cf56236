#!/usr/bin/env python3
"""kernel_times.py LAST < CSV: sums up by kernel what Nsight Compute measured in one step: from after a launch of LAST to the next.

Prints a line for each kernel, the longest first: its name, a tab, its time and launches. For tests/gpu.sh.
"""

import csv
import sys


def main():
    rows = csv.DictReader(line for line in sys.stdin if line.startswith('"'))
    unit = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0}
    launches = [(row["Kernel Name"], float(row["Metric Value"].replace(",", "")) * unit[row["Metric Unit"]]) for row in rows]
    ends = [at for at, (name, _) in enumerate(launches) if sys.argv[1] in name]
    if len(ends) < 2:
        sys.exit(f"kernel_times.py: {len(launches)} launches hold no whole step")
    step = launches[ends[0] + 1 : ends[1] + 1]
    kernels = {}
    for name, time in step:
        kernels.setdefault(name[:60], []).append(time)
    print(f"all\t{sum(time for _, time in step):.0f} us in {len(step)} launches")
    for name, times in sorted(kernels.items(), key=lambda kernel: -sum(kernel[1])):
        print(f"{name}\t{sum(times):.0f} us in {len(times)} launches")


if __name__ == "__main__":
    main()
