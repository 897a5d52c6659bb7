#!/usr/bin/env python3
"""Counts what hot kernels keep on the stack inside their innermost loops.

    spills.py OBJDUMP COMPILER OBJECT...

The kernels' accumulators belong in registers; a compiler that reorders sums or fetches early puts
them on the stack, which costs up to half of the speed and no test of results notices. spills.txt,
beside this file, says how many references to the stack a loop may have; more is a failure. Objects
that are not of a SIMD level are passed over. COMPILER, as in "GNU 12.2.0", is the one that built
them: the counts are those of one release, and with another the script only reports (exit 77).
"""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SYMBOL = re.compile(r"^[0-9a-f]+ <(.+)>:$")
LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
JUMP = re.compile(r"^(j\w+|b\.\w+|b|cbn?z|tbn?z)$")
TARGET = re.compile(r"\b([0-9a-f]+) <")
WORK = re.compile(r"fmadd|maddubs|pdpbusd|^sdot$|^fmla$")  # what a kernel is there to do
FRAME = re.compile(r"%rsp,%rbp|\bmov\s+x29, sp")


def functions(objdump, path):
    """Pairs of a name and its instructions, (address, mnemonic, operands)."""
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", path], check=True,
                          capture_output=True, text=True).stdout
    name, body = None, []
    for line in text.splitlines():
        symbol = SYMBOL.match(line)
        if symbol:
            if name:
                yield name, body
            name, body = symbol.group(1).split(".")[0], []
        found = LINE.match(line)
        if found:
            body.append((int(found.group(1), 16), found.group(2), found.group(3)))
    if name:
        yield name, body


def innermost_loops(body):
    """Ranges of addresses that end with a jump back to their start, do some of the work and hold no
    other such range."""
    start = body[0][0]
    work = [address for address, mnemonic, _ in body if WORK.search(mnemonic)]
    loops = set()
    for address, mnemonic, operands in body:
        target = JUMP.match(mnemonic) and TARGET.search(operands)
        low = int(target.group(1), 16) if target else address
        if start <= low < address and any(low <= w <= address for w in work):
            loops.add((low, address))
    return [a for a in loops
            if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]


def on_stack(body):
    """Whether an instruction's operands are a place on the stack."""
    frame = any(FRAME.search(mnemonic + " " + operands) for _, mnemonic, operands in body)
    return re.compile(r"\(%rsp|\[sp" + (r"|\(%rbp|\[x29" if frame else "")).search


def worst_loop(body):
    test = on_stack(body)
    return max((sum(low <= address <= high and bool(test(operands))
                    for address, _, operands in body)
                for low, high in innermost_loops(body)), default=0)


def read_table():
    """Rows of spills.txt: compiler, file, pattern of functions, most references."""
    rows = []
    with open(os.path.join(HERE, "spills.txt"), encoding="utf-8") as f:
        for line in f:
            fields = line.split("#")[0].split()
            if fields and fields[0] == "compiler":
                compiler = " ".join(fields[1:])
            elif fields:
                rows.append((fields[0], re.compile(fields[1]), int(fields[2])))
    return compiler, rows


def main():
    objdump, built_by, *objects = sys.argv[1:]
    compiler, rows = read_table()
    levels = {re.search(r"_(avx2|avx512|neon)$", row[0]).group(1) for row in rows}
    seen, failures = set(), 0
    for path in objects:
        stem = os.path.basename(path).split(".")[0]
        if not any(stem.endswith("_" + level) for level in levels):
            continue
        for name, body in functions(objdump, path):
            row = next((r for r in rows if r[0] == stem and r[1].fullmatch(name)), None)
            if not row:
                continue
            seen.add(row)
            count = worst_loop(body)
            if count > row[2]:
                failures += 1
            if count > row[2] or "-v" in os.environ.get("SPILLS", ""):
                print(f"{stem} {name}: {count} references to the stack in a loop, {row[2]} allowed")
    here = {os.path.basename(path).split(".")[0] for path in objects}
    for row in rows:
        if row not in seen and row[0] in here:
            print(f"{row[0]}: no function is named {row[1].pattern}")
            failures += 1
    print(f"{len(seen)} rows of spills.txt, {failures} failures")
    if not seen:
        return 1
    if not built_by.startswith(compiler + "."):
        print(f"built by {built_by}, the counts are those of {compiler}: reported only")
        return 77
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
