"""Nothing includes upward: each layer of the C++ sources may include itself and lower ones.

python tools/check_includes.py        exit status 1 and one line for each include that climbs
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Lowest first. Layers of one row are neighbours, which do not see each other.
ROWS = [["linattn"], ["core"], ["recurrence"], ["reference", "cpu", "cuda"], ["api"]]
RANK = {layer: rank for rank, row in enumerate(ROWS) for layer in row}
# The only headers a translation unit may name without a layer are the system's, in angle brackets.
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
SUFFIXES = {".h", ".hpp", ".cpp", ".cu", ".cuh"}


def layer_of(path: Path) -> str | None:
    """Layer of a source file, or of an included path such as `core/status.h`."""
    return path.parts[0] if len(path.parts) > 1 else None


def climbing_includes() -> list[str]:
    faults = []
    files = sorted(p for p in (ROOT / "src").rglob("*") if p.suffix in SUFFIXES)
    files += sorted((ROOT / "include").rglob("*.h*"))
    for file in files:
        base = ROOT / ("src" if file.is_relative_to(ROOT / "src") else "include")
        layer = layer_of(file.relative_to(base))
        if layer not in RANK:
            faults.append(f"{file.relative_to(ROOT)}: '{layer}' is no layer of {ROWS}")
            continue
        for match in INCLUDE.finditer(file.read_text()):
            target = layer_of(Path(match[1]))
            line = file.read_text().count("\n", 0, match.start(1)) + 1
            where = f"{file.relative_to(ROOT)}:{line}: {layer} includes {match[1]}"
            if target not in RANK:
                faults.append(f"{where}: not a path from include/ or src/")
            elif target != layer and RANK[target] >= RANK[layer]:
                faults.append(f"{where}, which is not below it")
    return faults


if __name__ == "__main__":
    found = climbing_includes()
    print("\n".join(found) or "includes: every one points down")
    sys.exit(bool(found))
