"""What the environment's own interpreter runs to look at its packages: versions, files, owners, compiled code.

It runs with -I and prints one JSON document: packages {name: version}, findings, files (how many were hashed),
imports {top: [names]}, compiled {import package: "name version"}, torch_of {the same: what its METADATA asks of torch},
foreign [compiled modules for another Python]. argv: the environment's folder, {packages, overlay, shared, last}.
"""

LOOK = r"""
import base64, csv, fnmatch, hashlib, importlib.machinery, json, os, re, sys
prefix, wanted = os.path.realpath(sys.argv[1]), json.loads(sys.argv[2])
site = os.path.join(prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
out = {"packages": {}, "findings": [], "path": sys.path, "files": 0, "torch_of": {}, "foreign": []}
def finding(check, summary, **more):
    out["findings"].append(dict(more, check=check, summary=summary))
def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()
owners, imports, tops, compiled = {}, {}, set(), {}
extension = re.compile(r"(^|/)(?!lib)[^/]+(\.cpython-[^/]*|\.abi3)?\.so$")
suffixes = importlib.machinery.EXTENSION_SUFFIXES
def counts(inside, top, path, label):
    # whether importing `top` loads this compiled file, or may
    if not top.isidentifier():
        return False
    if os.sep in inside:
        return os.path.isfile(os.path.join(site, top, "__init__.py"))
    if inside[len(top):] not in suffixes:
        out["foreign"].append("%s (%s)" % (inside, label))
        return False
    try:
        with open(path, "rb") as file:  # a library that is preloaded may bear a module's name
            return b"PyInit_" + top.encode() in file.read()
    except OSError:
        return True
def look(info):
    folder = os.path.join(site, info)
    meta, torch = {}, ""
    with open(os.path.join(folder, "METADATA"), encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip():
                break
            if line[0] not in " \t":
                key, _, value = line.partition(":")
                meta.setdefault(key.lower(), value.strip())
                asked = re.match(r"Requires-Dist:\s*torch\s*\(?\s*([<>=!~][^;)]*)", line, re.I)
                torch = torch or (asked.group(1).strip() if asked and "extra ==" not in line else "")
    name, version = plain(meta.get("name", info)), meta.get("version", "")
    out["packages"][name] = version
    tops.add(info)
    with open(os.path.join(folder, "RECORD"), newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    bad, missing = {}, []
    for row in rows:
        if not row:
            continue
        path = os.path.normpath(os.path.join(site, row[0]))
        inside = os.path.relpath(path, site)
        if not inside.startswith(".."):
            tops.add(inside.split(os.sep)[0])
            if not inside.startswith(info):
                owners.setdefault(inside, []).append((name, row[1] if len(row) > 1 else ""))
            if inside.endswith((".py", ".so")) and os.sep + "__pycache__" not in inside:
                imports.setdefault(inside.split(os.sep)[0], set()).add(name)
                top = inside.split(os.sep)[0].split(".")[0]
                label = "%s %s" % (name, version)
                if top not in compiled and extension.search(inside) and counts(inside, top, path, label):
                    compiled[top] = label
                    if torch:
                        out["torch_of"][top] = torch
        if len(row) < 2 or not row[1]:
            continue
        kind, _, digest = row[1].partition("=")
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            missing.append(inside)
            continue
        out["files"] += 1
        found = base64.urlsafe_b64encode(hashlib.new(kind, data).digest()).rstrip(b"=").decode()
        if found != digest.rstrip("="):
            bad[inside] = kind + "=" + found
    return name, bad, missing
changed = {}
overlay = set(wanted["overlay"])
for info in sorted(os.listdir(site)):
    if info.endswith(".dist-info") and info not in overlay:
        try:
            name, bad, missing = look(info)
        except OSError as error:
            finding("record", "%s has no readable RECORD or METADATA" % info, package=plain(info.split("-")[0]))
            continue
        if bad or missing:
            changed[name] = (bad, missing)
shared = {}
for path, who in owners.items():
    names = tuple(sorted(set(name for name, _ in who)))
    if len(names) < 2:
        continue
    digests = set(digest.rstrip("=") for _, digest in who)
    if os.path.basename(path) == "__init__.py" and len(digests) == 1:
        continue  # what several packages lay into one folder by agreement (nvidia/)
    winners = [name for name in names if name in wanted.get("last") or ()]
    if winners or any(fnmatch.fnmatch(path, pattern) for pattern in wanted.get("shared") or ()):
        # the bytes must be of the one that was installed last, where none was so named of any of them
        right = set(digest.rstrip("=") for name, digest in who if name in winners) or digests
        for name in names:
            bad, missing = changed.get(name, ({}, []))
            if name not in winners and bad.get(path) in right:
                del bad[path]
        continue
    seen = shared.setdefault(names, [0, 0, path])
    seen[0] += 1
    seen[1] += len(digests) > 1
for names, (count, differ, path) in sorted(shared.items()):
    one = count == 1
    finding("owners", "%d %s: %s" % (count, "file has two owners" if one else "files have two owners",
                                     " and ".join(names)), packages=list(names),
            expected="one owner for each import package", found="%s is owned by %s; %d of the files %s"
            % (path.split(os.sep)[0] + ("/" if os.sep in path else ""), " and ".join(names), differ,
               "differs" if differ == 1 else "differ"))
clashing = set(name for names in shared for name in names)
for name, (bad, missing) in sorted(changed.items()):
    if name not in clashing and (bad or missing):
        some = (sorted(bad) + missing)[0]
        finding("record", "%s: %d files are not as installed (%s)" % (name, len(bad) + len(missing), some),
                package=name, expected="the hashes of its RECORD",
                found="%d edited, %d missing" % (len(bad), len(missing)))
for name, version in sorted(wanted["packages"].items()):
    found = out["packages"].get(name)
    if found != version:
        finding("versions", "%s is not as locked" % name, package=name, expected=version, found=found or "missing")
for name in sorted(set(out["packages"]) - set(wanted["packages"])):
    finding("versions", "%s is not in the lock" % name, package=name, expected="nothing",
            found=out["packages"][name])
known = tops | overlay | {"_virtualenv.py", "_virtualenv.pth", "__pycache__", "RECORD"}
for entry in sorted(set(os.listdir(site)) - known):
    finding("strangers", "%s lies in site-packages and belongs to no package" % entry, expected="nothing of the kind",
            found=os.path.join(site, entry))
out["compiled"] = compiled
out["imports"] = dict((top, sorted(names)) for top, names in imports.items())
print(json.dumps(out))
"""
