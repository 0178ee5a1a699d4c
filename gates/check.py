"""Says whether an answer does a task: `check.py says WORD...` or `check.py calls NAME key=value ...`; it is on stdin.

The answer is {"finish_reason", "message": {"content", "reasoning", "tool_calls": [{"id", "name", "arguments"}]}}.
Values are compared as JSON where they are JSON (`days=3`), as text otherwise. Status 0: right; else a line
says why not.
"""

import json
import sys


def value_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def says(message, words):
    content = message["content"] or ""
    for word in words:
        if word not in content:
            return f"the answer does not say {word}: {content[:80]!r}"
    return None


def calls(message, words):
    name, wanted = words[0], dict(pair.split("=", 1) for pair in words[1:])
    for call in message["tool_calls"]:
        if call["name"] != name:
            continue
        found = call["arguments"]
        if all(found.get(key) == value_of(text) for key, text in wanted.items()):
            return None
    return f"no call of {name} with {wanted}: {json.dumps(message['tool_calls'])[:120]}"


def main(argv):
    message = json.load(sys.stdin)["message"]
    problem = {"says": says, "calls": calls}[argv[0]](message, argv[1:])
    if problem:
        print(problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
