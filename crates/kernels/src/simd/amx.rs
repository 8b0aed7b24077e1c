//! Intel's matrix unit (AMX). Its intrinsics are not in stable Rust, so this is inline assembly.
//!
//! Tiles 0 to 3 are outputs, 4 and 5 activations, 6 and 7 weights. The compiler does not use tiles, and every `asm!`
//! block here leaves nothing in them but the configuration.

use std::arch::asm;
use std::sync::OnceLock;

use super::tiles::{TILE_ROWS, TileProduct};

/// Whether this CPU has AMX with bf16, and the system lets this process use it.
pub(super) fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| crate::cpu_features().amx_bf16 && is_granted())
}

/// Asks the system for the permission to use tiles, once for all threads of the process.
/// Source: the Linux kernel's Documentation/arch/x86/xstate.rst.
#[cfg(target_os = "linux")]
fn is_granted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: this request takes no pointer.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Other systems grant the permission in other ways.
#[cfg(not(target_os = "linux"))]
fn is_granted() -> bool {
    false
}

/// Operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles with 16 rows of 64 bytes. Reserved bytes and unused entries are zero, or `ldtilecfg` faults.
static CONFIGURATION: Configuration = {
    let mut configuration = Configuration {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    let mut tile = 0;
    while tile < 8 {
        configuration.row_bytes[tile] = 64;
        configuration.rows[tile] = TILE_ROWS as u8;
        tile += 1;
    }
    configuration
};

/// Configures the tiles of this thread.
///
/// # Safety
/// [`is_usable`].
pub(super) unsafe fn configure() {
    // SAFETY: the CPU has the instruction, and the configuration is one it takes.
    unsafe {
        // It is `readonly` and not `nomem`, since the instruction reads the configuration. Otherwise the compiler may
        // drop stores to it, as in a build of llama.cpp by gcc 12, which crashed here.
        asm!("ldtilecfg [{}]", in(reg) &CONFIGURATION, options(nostack, readonly, preserves_flags))
    }
}

/// Releases the tiles of this thread.
///
/// # Safety
/// [`is_usable`].
pub(super) unsafe fn release() {
    // SAFETY: the CPU has the instruction.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
}

/// The loop over the lines of a product. It runs `begin` if the product continues and `zero` if it does not, then
/// `line` for each line, then `end`. Memory is prefetched into the cache `ahead`. A row of activations takes 64
/// bytes, a row of weights or outputs 128.
macro_rules! over_lines {
    (
        $p:ident, activations $x_bytes:literal, ahead $cache:literal,
        begin $($begin:literal)*, zero $($zero:literal)*, line $($line:literal)*, end $($end:literal)*
    ) => {
        // Labels begin at 2: the assembler reads 0 and 1 as binary digits.
        asm!(
            "test {continues:e}, {continues:e}",
            "jz 3f",
            $($begin,)*
            "jmp 2f",
            "3:",
            $($zero,)*
            "2:",
            $($line,)*
            "mov {left}, {ahead_lines}",
            "test {left}, {left}",
            "jz 5f",
            "4:",
            concat!("prefetch", $cache, " [{ahead}]"),
            "add {ahead}, 64",
            "dec {left}",
            "jnz 4b",
            "5:",
            concat!("add {x}, ", $x_bytes),
            "add {w}, 2048",
            "dec {lines}",
            "jnz 2b",
            $($end,)*
            continues = in(reg) u32::from($p.continues),
            narrow = in(reg) 64usize,
            wide = in(reg) 128usize,
            x = inout(reg) $p.x => _,
            w = inout(reg) $p.w => _,
            y = in(reg) $p.y,
            lines = inout(reg) $p.lines => _,
            ahead = inout(reg) $p.ahead => _,
            ahead_lines = in(reg) $p.ahead_lines,
            left = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// [`Simd::tile_product`](super::Simd::tile_product).
///
/// # Safety
/// The tiles of this thread are configured, and the pointers of `p` are valid.
#[inline(always)]
pub(super) unsafe fn product(p: &TileProduct) {
    // SAFETY: the instructions read and write what the fields of `p` describe, and fetching ahead never faults.
    unsafe {
        if p.row_tiles == 1 {
            over_lines!(p, activations "1024", ahead "t0",
                begin "tileloadd tmm0, [{y} + {wide}]"
                      "tileloadd tmm1, [{y} + {wide} + 64]",
                zero "tilezero tmm0" "tilezero tmm1",
                line "tileloadd tmm4, [{x} + {narrow}]"
                     "tileloadd tmm6, [{w} + {wide}]"
                     "tdpbf16ps tmm0, tmm4, tmm6"
                     "tileloadd tmm7, [{w} + {wide} + 64]"
                     "tdpbf16ps tmm1, tmm4, tmm7",
                end "tilestored [{y} + {wide}], tmm0"
                    "tilestored [{y} + {wide} + 64], tmm1"
            );
        } else {
            over_lines!(p, activations "2048", ahead "t1",
                begin "tileloadd tmm0, [{y} + {wide}]"
                      "tileloadd tmm1, [{y} + {wide} + 64]"
                      "tileloadd tmm2, [{y} + {wide} + 2048]"
                      "tileloadd tmm3, [{y} + {wide} + 2112]",
                zero "tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3",
                line "tileloadd tmm6, [{w} + {wide}]"
                     "tileloadd tmm4, [{x} + {narrow}]"
                     "tdpbf16ps tmm0, tmm4, tmm6"
                     "tileloadd tmm7, [{w} + {wide} + 64]"
                     "tdpbf16ps tmm1, tmm4, tmm7"
                     "tileloadd tmm5, [{x} + {narrow} + 1024]"
                     "tdpbf16ps tmm2, tmm5, tmm6"
                     "tdpbf16ps tmm3, tmm5, tmm7",
                end "tilestored [{y} + {wide}], tmm0"
                    "tilestored [{y} + {wide} + 64], tmm1"
                    "tilestored [{y} + {wide} + 2048], tmm2"
                    "tilestored [{y} + {wide} + 2112], tmm3"
            );
        }
    }
}
