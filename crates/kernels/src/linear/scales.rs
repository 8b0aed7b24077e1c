//! The scales and the minima of a group of codes, brought to registers.

use crate::simd::{LANES, Simd};
use crate::weight::{Dtype, Layout, MinForm, Multiple, PANEL, ScaleForm};

/// Where they lie in a panel.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    form: ScaleForm,
    panel: *const u8,
    /// Where the scales of the run begin, and its minima where they are numbers of their own.
    numbers: usize,
    /// What multiplies the group's scale, and its minimum.
    multiples: [Option<Multiple>; 2],
    /// Where the group's codes of zero begin.
    zero_points: Option<usize>,
}

impl Scales {
    /// Those of the group of step `step` in a panel of codes.
    #[inline(always)]
    pub(super) fn of(layout: Layout, panel: &[u8], step: usize) -> Self {
        let group = layout.group_of(step);
        Self {
            form: layout.scales,
            panel: panel.as_ptr(),
            numbers: group.header,
            multiples: [layout.multiple(group, 0), layout.multiple(group, 1)],
            zero_points: layout.zero_points(group),
        }
    }

    /// What the group has beside the scales of its run, if it has something: the first of it.
    #[inline(always)]
    pub(super) fn of_group(self) -> Option<*const u8> {
        let multiple = self.multiples[0].map(|multiple| multiple.low);
        multiple.or(self.zero_points).map(|place| self.panel.wrapping_add(place))
    }

    /// The scales and the minima of sixteen outputs, in the panel that begins `offset` bytes behind this one.
    ///
    /// # Safety
    /// There is such a panel.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(self, s: S, offset: usize, half: usize) -> [S::F32; 2] {
        // SAFETY: each panel has 32 scales, and 32 of each of the numbers that its form has beside them.
        unsafe {
            let mut scales = self.number(s, offset, 0, half);
            if let Some(multiple) = self.multiples[0] {
                scales = s.mul(scales, self.multiple(s, multiple, offset, half));
            }
            let mins = match self.form.mins {
                MinForm::None => s.splat(-0.0),
                MinForm::Own => {
                    let mins = self.number(s, offset, 1, half);
                    match self.multiples[1] {
                        Some(multiple) => s.mul(mins, self.multiple(s, multiple, offset, half)),
                        None => mins,
                    }
                }
                MinForm::ZeroPoint(zero) => s.mul(scales, s.splat(-f32::from(zero))),
                MinForm::ZeroPoints => {
                    let place = self.zero_points.unwrap_or(0) + offset + half * LANES;
                    let zeros = s.load_u8(self.panel.wrapping_add(place));
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
        let at =
            |size: usize| self.panel.wrapping_add(self.numbers + offset + index * PANEL * size);
        // SAFETY: the caller's promise.
        unsafe {
            match self.form.dtype {
                Dtype::F16 => s.load_f16(at(2).add(half * LANES * 2)),
                Dtype::Bf16 => {
                    let words = s.load(at(2).cast());
                    if half == 0 { s.bf16_low(words) } else { s.bf16_high(words) }
                }
                Dtype::F32 => s.load(at(4).cast::<f32>().add(half * LANES)),
            }
        }
    }

    /// Sixteen of the numbers that multiply.
    ///
    /// # Safety
    /// As of [`Self::load`].
    #[inline(always)]
    unsafe fn multiple<S: Simd>(
        self,
        s: S,
        multiple: Multiple,
        offset: usize,
        half: usize,
    ) -> S::F32 {
        let at = |place: usize| self.panel.wrapping_add(place + offset + half * LANES);
        // SAFETY: the caller's promise.
        unsafe {
            let Some(shift) = multiple.nibble else { return s.load_i8(at(multiple.low)) };
            let mut numbers = at(multiple.low).cast::<[u8; LANES]>().read();
            for number in &mut numbers {
                *number = *number >> shift & 15;
            }
            if let Some((high, shift)) = multiple.high {
                let high = at(high).cast::<[u8; LANES]>().read();
                let bias = self.form.blocks.map_or(0, |blocks| blocks.multiples.bias());
                for (number, high) in numbers.iter_mut().zip(&high) {
                    *number =
                        (*number | (high >> shift & 3) << 4).wrapping_sub(bias.cast_unsigned());
                }
            }
            s.load_i8(numbers.as_ptr())
        }
    }
}
