"""Replaces some of candle's kernels by empty functions, with a wrapper of nvcc.

    fast_nvcc.py CANDLE_KERNELS NVCC FOLDER

ptxas takes minutes for each of the ten files `mmq_instance_*.cu`, and only quantized GGUF weights on a GPU use them.
FOLDER/nvcc replaces each by a file of empty launchers, and passes every other file to the real nvcc.

FOLDER/link/nvcc is for a program that is linked and started without a GPU, and never computes on one. It replaces all
of candle's files, and compiles ours as far as PTX, with attention in one type.
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
exec {nvcc} {arguments}
"""

# The arguments as they are, or without the generation of machine code.
AS_GIVEN = '"$@"'
LINK_ONLY = '-DCANDLEPOWER_LINK_ONLY "${@/code=sm_/code=compute_}"'


def write_nvcc(folder: Path, nvcc: Path, arguments: str, empty: dict[str, list[str]]) -> None:
    """Writes an nvcc that compiles, instead of the given files, ones whose launchers do nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, launchers in empty.items():
        (folder / name).write_text("".join(f'extern "C" void {launcher}() {{}}\n' for launcher in launchers))
    wrapper = folder / "nvcc"
    wrapper.write_text(WRAPPER.format(folder=f"'{folder}'", nvcc=f"'{nvcc}'", arguments=arguments))
    wrapper.chmod(0o755)


def main(candle_kernels: Path, nvcc: Path, folder: Path) -> None:
    declared = (candle_kernels / "src/ffi.rs").read_text()
    sources = sorted((candle_kernels / "src/mmq_gguf").glob("mmq_instance_*.cu"))
    large = {}
    for source in sources:
        kind = source.stem.removeprefix("mmq_instance_")
        launchers = sorted(set(re.findall(rf"\blaunch_mmq_gguf_{kind}[a-z0-9_]*", declared)))
        if not launchers:
            sys.exit(f"cuda-toolkit: ffi.rs of candle-kernels declares no launcher of {source.name}")
        large[source.name] = launchers
    if not sources:
        sys.exit("cuda-toolkit: candle-kernels has no mmq_instance_*.cu any more")
    write_nvcc(folder, nvcc, AS_GIVEN, large)
    everything = {source.name: [] for source in (candle_kernels / "src").rglob("*.cu")}
    everything[sources[0].name] = re.findall(r"pub fn (\w+)\(", declared)
    write_nvcc(folder / "link", nvcc, LINK_ONLY, everything)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
