"""Writes an nvcc that compiles candle's large GGUF matmuls to nothing: fast_nvcc.py CANDLE_KERNELS NVCC FOLDER.

The ten files `mmq_instance_*.cu` take ptxas minutes each, and nothing but quantized GGUF weights on a GPU calls them. Each
becomes a file of empty launchers; every other file goes to the real nvcc as it is.
"""

import re
import sys
from pathlib import Path

WRAPPER = """\
#!/usr/bin/env bash
# nvcc, but for the files that have an empty one beside this script. The source is the last argument.
last=${{!#}}
empty={folder}/$(basename "$last")
[ -f "$empty" ] && set -- "${{@:1:$#-1}}" "$empty"
exec {nvcc} "$@"
"""


def main(candle_kernels: Path, nvcc: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    declared = (candle_kernels / "src/ffi.rs").read_text()
    sources = sorted((candle_kernels / "src/mmq_gguf").glob("mmq_instance_*.cu"))
    for source in sources:
        kind = source.stem.removeprefix("mmq_instance_")
        launchers = sorted(set(re.findall(rf"\blaunch_mmq_gguf_{kind}[a-z0-9_]*", declared)))
        if not launchers:
            sys.exit(f"cuda-toolkit: ffi.rs of candle-kernels declares no launcher of {source.name}")
        text = "".join(f'extern "C" void {name}() {{}}\n' for name in launchers)
        (folder / source.name).write_text(text)
    if not sources:
        sys.exit("cuda-toolkit: candle-kernels has no mmq_instance_*.cu any more")
    wrapper = folder / "nvcc"
    wrapper.write_text(WRAPPER.format(folder=f"'{folder}'", nvcc=f"'{nvcc}'"))
    wrapper.chmod(0o755)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
