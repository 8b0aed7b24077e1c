//! Loads the scales and offsets of a group of quantized weights into registers.
//!
//! They keep the form of the checkpoint, since products of few rows are bound by memory. For groups of 32, a scale
//! and an offset in f32 are two bits a weight, and Q4_K's sub-scales half a bit. Converting them costs a product of
//! one row up to a tenth of its time.

use crate::simd::{LANES, Simd};
use crate::weight::{Dtype, Layout, OffsetForm, PANEL, ScaleForm, SubScaleBytes};

/// Positions of a group's scales and offsets in a panel.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    form: ScaleForm,
    panel: *const u8,
    /// First byte of the run's scales, and of its offsets if they are stored.
    numbers: usize,
    /// Positions of the sub-scales of the group's scale and of its offset.
    sub_scales: [Option<SubScaleBytes>; 2],
    /// First byte of the group's zero-points.
    zero_points: Option<usize>,
}

impl Scales {
    /// Positions for the group of step `step` in a quantized panel.
    #[inline(always)]
    pub(super) fn of(layout: Layout, panel: &[u8], step: usize) -> Self {
        let group = layout.group_of(step);
        Self {
            form: layout.scales,
            panel: panel.as_ptr(),
            numbers: group.header,
            sub_scales: [layout.sub_scale(group, 0), layout.sub_scale(group, 1)],
            zero_points: layout.zero_points(group),
        }
    }

    /// First of the group's own bytes, sub-scales or zero-points, if it has some besides the scales of its run.
    #[inline(always)]
    pub(super) fn of_group(self) -> Option<*const u8> {
        let sub_scale = self.sub_scales[0].map(|sub_scale| sub_scale.low);
        sub_scale.or(self.zero_points).map(|place| self.panel.wrapping_add(place))
    }

    /// The scales and the offsets of sixteen outputs, in the panel that begins `offset` bytes after this one.
    ///
    /// # Safety
    /// There is such a panel.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(self, s: S, offset: usize, half: usize) -> [S::F32; 2] {
        // SAFETY: each panel has 32 scales, and 32 of each of the other values of its form.
        unsafe {
            let mut scales = self.values(s, offset, 0, half);
            if let Some(sub_scale) = self.sub_scales[0] {
                scales = s.mul(scales, self.sub_scale(s, sub_scale, offset, half));
            }
            let offsets = match self.form.offsets {
                OffsetForm::None => s.splat(-0.0),
                OffsetForm::Own => {
                    let offsets = self.values(s, offset, 1, half);
                    match self.sub_scales[1] {
                        Some(sub_scale) => {
                            s.mul(offsets, self.sub_scale(s, sub_scale, offset, half))
                        }
                        None => offsets,
                    }
                }
                OffsetForm::ZeroPoint(zero) => s.mul(scales, s.splat(-f32::from(zero))),
                OffsetForm::ZeroPoints => {
                    let place = self.zero_points.unwrap_or(0) + offset + half * LANES;
                    let zeros = s.load_u8(self.panel.wrapping_add(place));
                    s.mul(scales, s.mul(zeros, s.splat(-1.0)))
                }
            };
            [scales, offsets]
        }
    }

    /// Sixteen of the run's scales (`index` 0) or its offsets (1).
    ///
    /// # Safety
    /// The contract of [`Self::load`], and the run has such values.
    #[inline(always)]
    unsafe fn values<S: Simd>(self, s: S, offset: usize, index: usize, half: usize) -> S::F32 {
        let at =
            |size: usize| self.panel.wrapping_add(self.numbers + offset + index * PANEL * size);
        // SAFETY: the caller's promise.
        unsafe {
            match self.form.dtype {
                Dtype::F16 => s.load_f16(at(2).add(half * LANES * 2)),
                // The scales of the first sixteen outputs are in the low halves of the words.
                Dtype::Bf16 => {
                    let words = s.load(at(2).cast());
                    if half == 0 { s.bf16_low(words) } else { s.bf16_high(words) }
                }
                Dtype::F32 => s.load(at(4).cast::<f32>().add(half * LANES)),
            }
        }
    }

    /// Sixteen sub-scales.
    ///
    /// # Safety
    /// Those of [`Self::load`].
    #[inline(always)]
    unsafe fn sub_scale<S: Simd>(
        self,
        s: S,
        sub_scale: SubScaleBytes,
        offset: usize,
        half: usize,
    ) -> S::F32 {
        let at = |place: usize| self.panel.wrapping_add(place + offset + half * LANES);
        // SAFETY: the caller's promise.
        unsafe {
            let Some(shift) = sub_scale.nibble else { return s.load_i8(at(sub_scale.low)) };
            let mut numbers = at(sub_scale.low).cast::<[u8; LANES]>().read();
            for number in &mut numbers {
                *number = *number >> shift & 15;
            }
            if let Some((high, shift)) = sub_scale.high {
                let high = at(high).cast::<[u8; LANES]>().read();
                let bias = self.form.blocks.map_or(0, |blocks| blocks.sub_scales.bias());
                for (number, high) in numbers.iter_mut().zip(&high) {
                    *number =
                        (*number | (high >> shift & 3) << 4).wrapping_sub(bias.cast_unsigned());
                }
            }
            s.load_i8(numbers.as_ptr())
        }
    }
}
