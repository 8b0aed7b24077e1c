//! The scales and the minima of a group of codes, brought to registers.

use candle_core::DType;

use crate::simd::{LANES, Simd};
use crate::weight::{Layout, MinForm, PANEL, ScaleForm};

/// Where they lie in a panel.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    form: ScaleForm,
    /// The scales of the run, and its minima where they are numbers of their own.
    numbers: *const u8,
    /// What the group has beside these: the numbers of eight bits that multiply them, its codes of zero.
    group: *const u8,
}

impl Scales {
    /// Those of the group of step `step` in a panel of codes.
    #[inline(always)]
    pub(super) fn of(layout: Layout, panel: &[u8], step: usize) -> Self {
        Self {
            form: layout.scales,
            numbers: panel[layout.header(step / 2)..].as_ptr(),
            group: panel[layout.group_header(step)..].as_ptr(),
        }
    }

    /// What the group has beside the scales of its run, if it has something.
    #[inline(always)]
    pub(super) fn of_group(self) -> Option<*const u8> {
        let has = self.form.block.is_some() || self.form.mins == MinForm::ZeroPoints;
        has.then_some(self.group)
    }

    /// The scales and the minima of sixteen outputs, in the panel that begins `offset` bytes behind this one.
    ///
    /// # Safety
    /// There is such a panel.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(self, s: S, offset: usize, half: usize) -> [S::F32; 2] {
        let group = self.group.wrapping_add(offset + half * LANES);
        // SAFETY: each panel has 32 scales, and 32 of each of the numbers that its form has beside them.
        unsafe {
            let mut scales = self.number(s, offset, 0, half);
            if self.form.block.is_some() {
                scales = s.mul(scales, s.load_i8(group));
            }
            let mins = match self.form.mins {
                MinForm::None => s.splat(-0.0),
                MinForm::Own => {
                    let mins = self.number(s, offset, 1, half);
                    match self.form.block {
                        Some(_) => s.mul(mins, s.load_i8(group.add(PANEL))),
                        None => mins,
                    }
                }
                MinForm::ZeroPoint(zero) => s.mul(scales, s.splat(-f32::from(zero))),
                MinForm::ZeroPoints => {
                    let before = if self.form.block.is_some() { PANEL } else { 0 };
                    let zeros = s.load_u8(group.add(before));
                    s.mul(scales, s.mul(zeros, s.splat(-1.0)))
                }
            };
            [scales, mins]
        }
    }

    /// Sixteen of the run's scales (`index` 0) or its minima (1).
    ///
    /// # Safety
    /// As of [`Self::load`]; and there are such.
    #[inline(always)]
    unsafe fn number<S: Simd>(self, s: S, offset: usize, index: usize, half: usize) -> S::F32 {
        let at = |size: usize| self.numbers.wrapping_add(offset + index * PANEL * size);
        // SAFETY: the caller's promise.
        unsafe {
            match self.form.dtype {
                DType::F16 => s.load_f16(at(2).add(half * LANES * 2)),
                DType::BF16 => {
                    let words = s.load(at(2).cast());
                    if half == 0 { s.bf16_low(words) } else { s.bf16_high(words) }
                }
                _ => s.load(at(4).cast::<f32>().add(half * LANES)),
            }
        }
    }
}
