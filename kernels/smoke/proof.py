"""The library's dot product against exact arithmetic, and its regular expression against Python's."""

import ctypes
import fractions
import json
import os
import random
import re
import sys

library = ctypes.CDLL(os.path.join(os.environ["OUT"], "lib", "libsmoke.so"))
library.smoke_dot.restype = ctypes.c_double
random.seed(7)
count = 4099
row = ctypes.c_float * count
a, b = row(*[random.gauss(0, 1) for _ in range(count)]), row(*[random.gauss(0, 1) for _ in range(count)])
exact = float(sum(fractions.Fraction(x) * fractions.Fraction(y) for x, y in zip(a, b)))  # noqa: B905
found = library.smoke_dot(a, b, ctypes.c_size_t(count))
error = abs(found - exact) / max(abs(exact), 1e-30)
text = "#include <a.h>\n# include <b/c.h>\n#include \"d.h\"\n"
if not error < 1e-9:
    print(json.dumps({"message": "the dot product differs from the reference by %.3g" % error}))
    sys.exit(1)
if library.smoke_includes(text.encode()) != len(re.findall(r"#\s*include\s*<([^>]+)>", text)):
    print(json.dumps({"message": "the regular expression differs from the reference"}))
    sys.exit(1)
print(json.dumps({"proof": "dot product of %d against exact arithmetic, error %.1g" % (count, error),
                  "figures": {"error": error}}))
