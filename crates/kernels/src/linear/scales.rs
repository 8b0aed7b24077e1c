//! The scales and the minima of a group of codes, brought to registers.

use crate::simd::{LANES, Simd};
use crate::weight::{Layout, PANEL, ScaleForm};

/// Where they lie in a panel.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    /// 32 scales and 32 minima, in f32; or 32 scales in f16.
    numbers: *const u8,
    /// What multiplies scales in f16 to be minima.
    minus_zero: Option<f32>,
    /// What multiplies them, 32 numbers of eight bits each.
    multiples: Option<[*const u8; 2]>,
}

impl Scales {
    /// Those of the group of step `step` in a panel of codes.
    #[inline(always)]
    pub(super) fn of(layout: Layout, panel: &[u8], step: usize) -> Self {
        let multiples = layout.multiples(step);
        Self {
            numbers: panel[layout.header(step / 2)..].as_ptr(),
            minus_zero: match layout.scales {
                ScaleForm::F16 { zero } => Some(-f32::from(zero)),
                ScaleForm::F32 | ScaleForm::Blocks(_) => None,
            },
            multiples: multiples
                .map(|[scales, mins]| [panel[scales..].as_ptr(), panel[mins..].as_ptr()]),
        }
    }

    /// The first of the numbers that multiply the scales.
    #[inline(always)]
    pub(super) fn multiples(self) -> Option<*const u8> {
        let [scales, _] = self.multiples?;
        Some(scales)
    }

    /// The scales and the minima of sixteen outputs, in the panel that begins `offset` bytes behind this one.
    ///
    /// # Safety
    /// There is such a panel.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(self, s: S, offset: usize, half: usize) -> [S::F32; 2] {
        // SAFETY: each panel has 32 scales, in f32 32 minima, and 32 of the numbers that multiply them.
        unsafe {
            let numbers = self.numbers.add(offset);
            if let Some(minus_zero) = self.minus_zero {
                let scales = s.load_f16(numbers.add(half * LANES * 2));
                return [scales, s.mul(scales, s.splat(minus_zero))];
            }
            let numbers = numbers.cast::<f32>().add(half * LANES);
            let (scales, mins) = (s.load(numbers), s.load(numbers.add(PANEL)));
            let Some([by_scales, by_mins]) = self.multiples else { return [scales, mins] };
            let by = offset + half * LANES;
            [s.mul(scales, s.load_i8(by_scales.add(by))), s.mul(mins, s.load_i8(by_mins.add(by)))]
        }
    }
}
