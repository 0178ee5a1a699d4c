"""File modes as chmod writes them: octal text, a number, or symbolic clauses such as u=rw,g=r,o= or a+X."""

import os
import stat

from bringup.agent.task import Failure

_READ, _WRITE, _EXECUTE = 4, 2, 1
_SHIFT = {"u": 6, "g": 3, "o": 0}
_SPECIAL = {"u": stat.S_ISUID, "g": stat.S_ISGID, "o": stat.S_ISVTX}


def parse(mode, current, is_directory):
    """The permission bits that `mode` asks for, given the current bits. Raises Failure for a bad mode."""
    if isinstance(mode, int) and not isinstance(mode, bool):
        return mode
    text = str(mode).strip()
    try:
        return int(text, 8)
    except ValueError:
        pass
    bits = current
    for clause in text.split(","):
        bits = _clause(clause.strip(), bits, is_directory, text)
    return bits


def _clause(clause, bits, is_directory, whole):
    position = 0
    while position < len(clause) and clause[position] in "ugoa":
        position += 1
    who, rest = clause[:position], clause[position:]
    if not rest or rest[0] not in "+-=":
        raise Failure("mode must be in octal or symbolic form", found=whole, expected="0644 or u=rw,g=r,o=r")
    by_umask = not who
    users = "ugo" if not who or "a" in who else who
    while rest:
        operator, rest = rest[0], rest[1:]
        end = 0
        while end < len(rest) and rest[end] not in "+-=":
            end += 1
        letters, rest = rest[:end], rest[end:]
        if any(letter not in "rwxXstugo" for letter in letters):
            raise Failure("bad symbolic permission for mode: %s" % whole)
        # what is copied from a class (g=u) is what stood there before this clause
        start = bits
        for user in users:
            asked = _bits(user, letters, start, is_directory, by_umask)
            if operator == "=":
                bits = (bits & ~((7 << _SHIFT[user]) | _SPECIAL[user])) | asked
            elif operator == "+":
                bits |= asked
            else:
                bits &= ~asked
    return bits


def _bits(user, letters, current, is_directory, by_umask):
    shift = _SHIFT[user]
    out = 0
    for letter in letters:
        if letter == "r":
            out |= _READ << shift
        elif letter == "w":
            out |= _WRITE << shift
        elif letter == "x" or (letter == "X" and (is_directory or current & 0o111)):
            out |= _EXECUTE << shift
        elif letter in "ugo":
            out |= ((current >> _SHIFT[letter]) & 7) << shift
        elif (letter == "s" and user in "ug") or (letter == "t" and user == "o"):
            out |= _SPECIAL[user]
    if by_umask:
        out &= ~(umask() & 0o777)
    return out


def umask():
    """This process's umask."""
    value = os.umask(0)
    os.umask(value)
    return value


def octal(bits):
    """`0644` for 0o644, as results and diffs show it."""
    return "0%03o" % bits
