"""Makes static stand-ins for CUDA's libraries: stand_ins.py CUDARC FOLDER.

candle links CUDA's libraries dynamically, so a program would not even start without them. A stand-in has the same
functions. The first call loads the real library with dlopen, and each later call is a jump into it. Without the
library, every function returns the library's own "not initialized", or the driver's "no device".

The functions are those declared in cudarc's bindings. x86-64 only.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple


class Library(NamedTuple):
    name: str
    bindings: str
    prefix: str
    # Return value of all functions without the library.
    absent: int
    # Names to search for, the preferred one first.
    files: tuple[str, ...]


LIBRARIES = [
    Library("cuda", "driver", "cu", 100, ("libcuda.so.1", "libcuda.so")),
    Library("cublas", "cublas", "cublas", 1, ("libcublas.so.13", "libcublas.so.12", "libcublas.so")),
    Library("cublasLt", "cublaslt", "cublasLt", 1, ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so")),
    Library("curand", "curand", "curand", 101, ("libcurand.so.10", "libcurand.so")),
    Library("nvrtc", "nvrtc", "nvrtc", 11, ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")),
    Library("nccl", "nccl", "nccl", 3, ("libnccl.so.2", "libnccl.so")),
]

# A stand-in puts its number into r11 and jumps through a table. The table's entries first lead to `first_call`, which
# saves the argument registers, opens the library, fills the table, and jumps again.
SOURCE = """\
#include <dlfcn.h>
#include <pthread.h>

static const char *const names[] = {{ {names} }};
enum {{ COUNT = sizeof names / sizeof *names }};

extern void first_call_{name}(void) __attribute__((visibility("hidden")));
void *functions_{name}[COUNT] __attribute__((visibility("hidden"))) = {{ [0 ... COUNT - 1] = first_call_{name} }};

static long absent(void) {{ return {absent}; }}
static const char *absent_text(void) {{ return "{first_file} is not found"; }}
static const unsigned char returns_text[] = {{ {returns_text} }};

static void open_library(void) {{
  static const char *const files[] = {{ {files} }};
  void *library = 0;
  for (unsigned i = 0; i < sizeof files / sizeof *files && !library; i++)
    library = dlopen(files[i], RTLD_NOW | RTLD_GLOBAL);
  for (unsigned i = 0; i < COUNT; i++) {{
    void *found = library ? dlsym(library, names[i]) : 0;
    void *instead = returns_text[i] ? (void *)absent_text : (void *)absent;
    functions_{name}[i] = found ? found : instead;
  }}
}}

__attribute__((visibility("hidden"))) void open_{name}(void) {{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_library);
}}

__asm__(
  ".text\\n"
  "first_call_{name}:\\n"
  "  push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; push %rax; push %r11\\n"
  "  sub $136, %rsp\\n"
  "  movups %xmm0, (%rsp); movups %xmm1, 16(%rsp); movups %xmm2, 32(%rsp); movups %xmm3, 48(%rsp)\\n"
  "  movups %xmm4, 64(%rsp); movups %xmm5, 80(%rsp); movups %xmm6, 96(%rsp); movups %xmm7, 112(%rsp)\\n"
  "  call open_{name}\\n"
  "  movups (%rsp), %xmm0; movups 16(%rsp), %xmm1; movups 32(%rsp), %xmm2; movups 48(%rsp), %xmm3\\n"
  "  movups 64(%rsp), %xmm4; movups 80(%rsp), %xmm5; movups 96(%rsp), %xmm6; movups 112(%rsp), %xmm7\\n"
  "  add $136, %rsp\\n"
  "  pop %r11; pop %rax; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi\\n"
  "  lea functions_{name}(%rip), %r10\\n"
  "  jmp *(%r10,%r11,8)\\n"
{stand_ins});
"""

STAND_IN = (
    '  ".globl {function}\\n.type {function}, @function\\n'
    '{function}: mov ${number}, %r11d; jmp *functions_{name}+{offset}(%rip)\\n"\n'
)


def functions(library: Library, cudarc: Path) -> dict[str, bool]:
    """The library's functions, and whether each returns a text instead of a number."""
    bindings = (cudarc / "src" / library.bindings / "sys/mod.rs").read_text()
    pattern = rf"\bfn ({library.prefix}[A-Z]\w*)\s*\([^)]*\)\s*(?:->\s*([^;{{]+))?"
    return {name: "c_char" in returns for name, returns in re.findall(pattern, bindings)}


def source(library: Library, found: dict[str, bool]) -> str:
    names = sorted(found)

    def quoted(texts) -> str:
        return ", ".join(f'"{text}"' for text in texts)

    return SOURCE.format(
        name=library.name,
        names=quoted(names),
        absent=library.absent,
        files=quoted(library.files),
        first_file=library.files[0],
        returns_text=", ".join(str(int(found[name])) for name in names),
        stand_ins="".join(
            STAND_IN.format(function=function, name=library.name, number=number, offset=8 * number)
            for number, function in enumerate(names)
        ),
    )


def main(cudarc: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        found = functions(library, cudarc)
        if not found:
            sys.exit(f"cuda-toolkit: cudarc's bindings declare no function of {library.name}")
        with tempfile.TemporaryDirectory() as work:
            c, o = Path(work) / f"{library.name}.c", Path(work) / f"{library.name}.o"
            c.write_text(source(library, found))
            subprocess.run(["gcc", "-O1", "-fPIC", "-Wall", "-c", c, "-o", o], check=True)
            archive = folder / f"lib{library.name}.a"
            archive.unlink(missing_ok=True)
            subprocess.run(["ar", "rcs", archive, o], check=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
