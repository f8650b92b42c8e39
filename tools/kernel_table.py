"""Registers, shared memory and spills of every kernel in a library, as CSV.

python tools/kernel_table.py build/liblinattn.so bench/results/kernels.csv

Needs cuobjdump on the path or from the package nvidia-cuda-cuobjdump.
Exit status 1 if a kernel uses local memory.
"""

import csv
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ARCHITECTURE = re.compile(r"^arch = (\S+)")
FUNCTION = re.compile(r"^ Function (\S+):$")
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
LENGTH = re.compile(r"\d+")  # of the next part of a mangled name
# Of a template, a number or a type of linattn.h.
ARGUMENT = re.compile(r"L([a-z]+|NS_4TypeE)(\d+)E")
TYPES = ["none", "f32", "bf16", "f16"]
STATES = ["f32", "bf16", "any"]
# Kernel -> what its template arguments are.
ARGUMENTS = {
    "recurrent_forward_portable": ("variant", "shape"),
    "chunk_prepare_portable": ("type", "K", "channel"),
    "chunk_scan_portable": ("type", "K", "channel", "delta", "parts"),
    "chunk_gradient_prepare_portable": ("bf16", "K", "channel"),
    "chunk_states_portable": ("K", "channel", "delta"),
    "chunk_gradient_channel_portable": ("K", "delta"),
    "chunk_gradient_token_portable": ("K", "delta"),
    "chunk_cut_sm90": ("delta",),
    "chunk_prepare_sm90": ("bf16", "delta"),
    "chunk_prepare_channel_sm90": ("delta", "anchored"),
    "chunk_scan_sm90": ("bf16", "delta", "channel"),
}

Row = dict[str, str | int]


def decode_variant(number: int) -> str:
    """The name of a row of ``decode.config.h``'s variants."""
    layout = "VK" if number & 1 else "KV"
    update = "delta" if number & 8 else "additive"
    gate = "channel" if number & 16 else "head"
    return f"{layout} {STATES[number >> 1 & 3]} {update} {gate}"


def split_name(mangled: str) -> tuple[str, list[tuple[str, int]]]:
    """The last part of a nested name, and its template arguments with their types."""
    at, name = len("_ZN"), mangled
    while length := LENGTH.match(mangled, at):
        name = mangled[length.end() : length.end() + int(length[0])]
        at = length.end() + int(length[0])
    values = []
    if mangled[at : at + 1] == "I":
        at += 1
        while argument := ARGUMENT.match(mangled, at):
            values.append((argument[1], int(argument[2])))
            at = argument.end()
    return name, values


def instance(mangled: str) -> tuple[str, str]:
    """Kernel and what its template arguments say."""
    kernel, values = split_name(mangled)
    names = ARGUMENTS.get(kernel, ())
    if len(names) != len(values):
        return kernel, " ".join(str(value) for _, value in values)
    words = []
    for name, (kind, value) in zip(names, values, strict=True):
        if name == "variant":
            words.append(decode_variant(value))
        elif name == "type":
            words.append(TYPES[value])
        elif name == "bf16":
            words.append("bf16" if value else "f16")
        elif kind == "b":
            words.append(name if value else f"no {name}")
        else:
            words.append(f"{name}={value}")
    return kernel, " ".join(words)


def cuobjdump() -> str | None:
    if found := shutil.which("cuobjdump"):
        return found
    package = find_spec("nvidia")
    for place in package.submodule_search_locations or () if package else ():
        for file in sorted(Path(place).glob("**/bin/cuobjdump")):
            return str(file)
    return None


def parse(text: str) -> list[Row]:
    rows: list[Row] = []
    architecture = name = ""
    for line in text.splitlines():
        if match := ARCHITECTURE.match(line):
            architecture = match[1]
        elif match := FUNCTION.match(line):
            name = match[1]
        elif match := USAGE.search(line):
            register, stack, shared, local = map(int, match.groups())
            kernel, what = instance(name)
            rows.append(
                {
                    "kernel": kernel,
                    "instance": what,
                    "architecture": architecture,
                    "registers": register,
                    "static_shared_bytes": shared,
                    "stack_bytes": stack,
                    "local_bytes": local,
                }
            )
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def kernels(library: str) -> list[Row]:
    tool = cuobjdump()
    if tool is None:
        raise FileNotFoundError("cuobjdump is not installed (package nvidia-cuda-cuobjdump)")
    done = subprocess.run(
        [tool, "--dump-resource-usage", library], check=True, capture_output=True, text=True
    )
    return parse(done.stdout)


def spills(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["stack_bytes"] or row["local_bytes"]]


def main() -> int:
    library, target = sys.argv[1:]
    rows = kernels(library)
    with open(target, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    spilled = spills(rows)
    for row in spilled:
        print("uses local memory:", ", ".join(str(value) for value in row.values()))
    print(f"{len(rows)} kernels, {len(spilled)} with local memory, in {target}")
    return bool(spilled)


if __name__ == "__main__":
    sys.exit(main())
