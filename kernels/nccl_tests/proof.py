"""An all-reduce over all devices of the host: every value of every size must be the right sum."""

import glob
import json
import os
import re
import subprocess
import sys

tool = os.path.join(os.environ["OUT"], "bin", "all_reduce_perf")
count = len([path for path in glob.glob("/dev/nvidia*") if re.match(r"/dev/nvidia\d+$", path)])
if not count:
    print(json.dumps({"message": "there is no device to compute on"}))
    sys.exit(1)
argv = [tool, "-b", "1K", "-e", "256M", "-f", "16", "-g", str(count), "-n", "10", "-w", "2", "-c", "1"]
done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
print(done.stdout)
rows = [line.split() for line in done.stdout.splitlines() if re.match(r"\s*\d+\s+\d+\s+float\s+sum", line)]
right = re.search(r"Out of bounds values\s*:\s*0\s+OK", done.stdout)
if done.returncode or not right or not rows:
    wrong = re.search(r"Out of bounds values\s*:\s*(\d+)", done.stdout)
    told = "the sum differs from the reference in %s values" % wrong.group(1) if wrong and not right else (
        "all_reduce_perf ended with %d" % done.returncode)
    print(json.dumps({"message": told}))
    sys.exit(1)
busbw = float(rows[-1][7])
print(json.dumps({"proof": "all-reduce over %d device%s, every sum right in %d sizes" % (
    count, "" if count == 1 else "s", len(rows)), "figures": {"devices": count, "busbw_256M": busbw}}))
