"""Registers, shared memory and spills of every kernel in a library, as CSV.

python tools/kernel_table.py build/liblinattn.so bench/results/kernels.csv

Needs cuobjdump and nvdisasm on the path; the packages nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm bring them.
Exit status 1 if a kernel uses local memory.
"""

import csv
import re
import subprocess
import sys

ARCHITECTURE = re.compile(r"^arch = (\S+)")
FUNCTION = re.compile(r"^ Function (\S+):$")
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
TEMPLATE = re.compile(r"_ZN\d+linattn\d+cuda\d+(\w+?)ILi(\d+)ELi(\d+)E")
STATES = ["f32", "bf16", "any"]


def decode_variant(number: int) -> str:
    """The name of a row of ``decode.config.h``'s variants."""
    layout = "VK" if number & 1 else "KV"
    update = "delta" if number & 8 else "additive"
    gate = "channel" if number & 16 else "head"
    return f"{layout} {STATES[number >> 1 & 3]} {update} {gate}"


def kernels(library: str) -> list[dict[str, str | int]]:
    text = subprocess.run(
        ["cuobjdump", "--dump-resource-usage", library], check=True, capture_output=True, text=True
    ).stdout
    rows: list[dict[str, str | int]] = []
    architecture = name = ""
    for line in text.splitlines():
        if match := ARCHITECTURE.match(line):
            architecture = match[1]
        elif match := FUNCTION.match(line):
            name = match[1]
        elif match := USAGE.search(line):
            register, stack, shared, local = map(int, match.groups())
            found = TEMPLATE.match(name)
            rows.append(
                {
                    "kernel": found[1] if found else name,
                    "variant": decode_variant(int(found[2])) if found else "",
                    "shape": found[3] if found else "",
                    "architecture": architecture,
                    "registers": register,
                    "shared_bytes": shared,
                    "stack_bytes": stack,
                    "local_bytes": local,
                }
            )
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def main() -> int:
    library, target = sys.argv[1:]
    rows = kernels(library)
    with open(target, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    spilled = [row for row in rows if row["stack_bytes"] or row["local_bytes"]]
    print(f"{len(rows)} kernels, {len(spilled)} with local memory, in {target}")
    return bool(spilled)


if __name__ == "__main__":
    sys.exit(main())
