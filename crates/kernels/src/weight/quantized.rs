//! Rows of quantized weights: how they are checked, packed into panels and read back.

use std::ops::Range;
use std::sync::Arc;

use candle_core::DType;
use half::{bf16, f16};
use rayon::prelude::*;

use super::layout::{ElementOrder, GroupPlace, Layout, SubScaleBytes};
use super::{
    Dtype, Element, OffsetForm, PANEL, QuantFormat, ScaleForm, TABLE, TABLE_STEPS, Weight,
    WeightBuilder, WeightRows, planes,
};
use crate::simd::LANES;
use crate::{Error, Result};

/// Quantized weights that one task checks.
const CHECKED_QUANTS: usize = 1 << 16;

/// Some consecutive rows of a quantized matrix of `k` columns, row-major.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedRows<'a> {
    /// Kind of the quantized weights.
    pub format: QuantFormat,
    /// Number of neighbouring columns that share a scale and an offset; `k` if all do.
    pub group: usize,
    /// The quantized weights, `[rows][k]`, one in each byte.
    pub bytes: &'a [u8],
    /// The scales, `[rows][ceil(k / group)]`. With sub-scales they are those of super-blocks, `[rows][k / block]`.
    /// For [`QuantFormat::Table`] they are the tables, `[rows][16]`.
    pub scales: &'a [f32],
    /// The offsets.
    pub offsets: Offsets<'a>,
    /// Sub-scales, which multiply the scales and offsets of super-blocks to give those of groups.
    pub sub_scales: Option<SubScales<'a>>,
    /// Input index of each column, if the inputs are reordered (act-order): a permutation of `0..k`. Groups are
    /// groups of columns.
    pub inputs: Option<&'a [u32]>,
}

/// Offsets of the groups of some rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offsets<'a> {
    /// No offset: -0.0, whose addition changes nothing.
    None,
    /// Stored offsets, as many values as scales.
    Own(&'a [f32]),
    /// One zero-point for all groups. The offset is the negative scale times the zero-point.
    ZeroPoint(u8),
    /// One zero-point for each group, `[rows][ceil(k / group)]`. The offset is the negative scale times the
    /// zero-point.
    ZeroPoints(&'a [u8]),
}

impl Offsets<'_> {
    /// Whether a weight that keeps its offsets in this form can keep these.
    fn fit(self, form: OffsetForm) -> bool {
        match (form, self) {
            (OffsetForm::Own, _)
            | (OffsetForm::None, Self::None)
            | (OffsetForm::ZeroPoints, Self::ZeroPoint(_) | Self::ZeroPoints(_)) => true,
            (OffsetForm::ZeroPoint(kept), Self::ZeroPoint(zero)) => kept == zero,
            _ => false,
        }
    }
}

/// Sub-scales of the groups of some rows, and the size of their super-blocks.
#[derive(Clone, Copy, Debug)]
pub struct SubScales<'a> {
    /// Columns of a super-block, which share one scale and one offset: whole groups.
    pub block: usize,
    /// Sub-scales of the scales, `[rows][k / group]`.
    pub scales: &'a [i8],
    /// Sub-scales of the offsets, `[rows][k / group]`, or empty if offsets are not stored.
    pub offsets: &'a [i8],
}

impl QuantizedRows<'_> {
    /// The dequantized value in row `row` and column `column`: the reference for all kinds of quantized weights.
    fn number(&self, k: usize, row: usize, column: usize) -> f32 {
        let quant = self.bytes[row * k + column];
        if self.format == QuantFormat::Table {
            return self.scales[row * TABLE + usize::from(quant)];
        }
        let [scale, min] = self.scale(k, row, column);
        let quant = match self.format {
            QuantFormat::E4m3 => e4m3_part(quant) * E4M3_FACTOR,
            QuantFormat::E2m1 => E2M1[usize::from(quant)],
            QuantFormat::Iq4 => IQ4[usize::from(quant)],
            _ => f32::from(quant),
        };
        quant.mul_add(scale, min)
    }

    /// The scale and the offset of a column, for kinds without a table.
    fn scale(&self, k: usize, row: usize, column: usize) -> [f32; 2] {
        let [scale, min] = self.factors(k, row, column);
        let group = self.group_of(k, row, column);
        let [by_scale, by_min] = self.multiples_of(group).map(f32::from);
        let scale = scale * by_scale;
        let min = match self.offsets {
            Offsets::None | Offsets::Own(_) => min * by_min,
            Offsets::ZeroPoint(_) | Offsets::ZeroPoints(_) => {
                -f32::from(self.zero_point(group)) * scale
            }
        };
        [scale, min]
    }

    /// The scale and the offset of a column's group, or those of its super-block.
    fn factors(&self, k: usize, row: usize, column: usize) -> [f32; 2] {
        let columns = self.scale_columns();
        let at = row * k.div_ceil(columns) + column / columns;
        let scale = self.scales[at];
        let min = match self.offsets {
            Offsets::None => -0.0,
            Offsets::Own(offsets) => offsets[at],
            Offsets::ZeroPoint(_) | Offsets::ZeroPoints(_) => {
                -f32::from(self.zero_point(self.group_of(k, row, column))) * scale
            }
        };
        [scale, min]
    }

    /// The sub-scales of the `group`-th of all groups, for its scale and its offset.
    fn multiples_of(&self, group: usize) -> [i8; 2] {
        let Some(sub_scales) = self.sub_scales else { return [1, 1] };
        // The offset of a zero-point is the scale times an integer, so it has the sub-scale of the scale.
        [
            sub_scales.scales[group],
            *sub_scales.offsets.get(group).unwrap_or(&sub_scales.scales[group]),
        ]
    }

    /// The zero-point of the `group`-th of all groups; 0 if there is none.
    fn zero_point(&self, group: usize) -> u8 {
        match self.offsets {
            Offsets::None | Offsets::Own(_) => 0,
            Offsets::ZeroPoint(zero) => zero,
            Offsets::ZeroPoints(zeros) => zeros[group],
        }
    }

    /// Index among all groups of the group that has a column.
    fn group_of(&self, k: usize, row: usize, column: usize) -> usize {
        row * k.div_ceil(self.group) + column / self.group
    }

    /// Number of columns that share one of [`Self::scales`].
    fn scale_columns(&self) -> usize {
        self.sub_scales.map_or(self.group, |sub_scales| sub_scales.block)
    }

    /// The dequantized values of all rows of `k` columns, `[rows][k]`, with the columns in the order of the inputs.
    ///
    /// # Errors
    /// The rows contradict themselves.
    pub fn dequantized(&self, k: usize) -> Result<Vec<f32>> {
        self.check(k)?;
        Ok(self.widened(k))
    }

    fn widened(&self, k: usize) -> Vec<f32> {
        let mut numbers = vec![0.0; self.bytes.len()];
        for (row, numbers) in numbers.chunks_exact_mut(k).enumerate() {
            for column in 0..k {
                let input = self.inputs.map_or(column, |inputs| inputs[column] as usize);
                numbers[input] = self.number(k, row, column);
            }
        }
        numbers
    }

    fn check(&self, k: usize) -> Result<usize> {
        if !self.bytes.len().is_multiple_of(k) {
            return Err(Error::QuantizedRows("the quantized weights are not whole rows"));
        }
        let rows = self.bytes.len() / k;
        if self.group == 0 {
            return Err(Error::QuantizedRows("a group has no columns"));
        }
        if let Some(SubScales { block, scales, offsets }) = self.sub_scales {
            let whole = block > 0 && block.is_multiple_of(self.group) && k.is_multiple_of(block);
            let expected = rows * (k / self.group);
            if !whole || self.format == QuantFormat::Table {
                return Err(Error::QuantizedRows(
                    "super-blocks are not whole groups, or k is not whole super-blocks",
                ));
            }
            let of_offsets = if matches!(self.offsets, Offsets::Own(_)) { expected } else { 0 };
            if scales.len() != expected || offsets.len() != of_offsets {
                return Err(Error::QuantizedRows("there is not one sub-scale for each group"));
            }
            if matches!(self.offsets, Offsets::ZeroPoints(_)) {
                return Err(Error::QuantizedRows("groups of super-blocks share a zero-point"));
            }
        }
        let scales = match self.format {
            QuantFormat::Table => TABLE,
            _ => k.div_ceil(self.scale_columns()),
        };
        let enough_offsets = match self.offsets {
            Offsets::None => true,
            _ if self.format == QuantFormat::Table => false,
            Offsets::Own(offsets) => offsets.len() == rows * scales,
            Offsets::ZeroPoint(_) => self.format.count_from_zero(),
            Offsets::ZeroPoints(zeros) => {
                self.format.count_from_zero() && zeros.len() == rows * k.div_ceil(self.group)
            }
        };
        if self.scales.len() != rows * scales || !enough_offsets {
            return Err(Error::QuantizedRows(
                "the number of scales or offsets is not the number of groups or super-blocks",
            ));
        }
        let most = self.format.most();
        // A maximum has no early exit, so that the compiler uses vectors.
        let too_large =
            |quants: &[u8]| quants.iter().fold(0, |most, quant| most.max(*quant)) > most;
        if most < u8::MAX && self.bytes.par_chunks(CHECKED_QUANTS).any(too_large) {
            return Err(Error::QuantizedRows("a quantized weight has more bits than its kind"));
        }
        if self.inputs.is_some_and(|inputs| !is_permutation(inputs, k)) {
            return Err(Error::QuantizedRows("the order of the inputs does not name each once"));
        }
        Ok(rows)
    }
}

fn is_permutation(inputs: &[u32], k: usize) -> bool {
    let mut seen = vec![false; k];
    inputs.len() == k
        && inputs.iter().all(|&input| {
            seen.get_mut(input as usize).is_some_and(|seen| !std::mem::replace(seen, true))
        })
}

impl WeightBuilder {
    /// Writes quantized rows as rows `first_row..`.
    ///
    /// A quantized weight stores them unchanged. So they must be of its kind, of fewer bits, or [`QuantFormat::Iq4`] for a
    /// weight of eight bits. Their groups, and likewise their super-blocks, must be as large as the weight's or a
    /// multiple of them. A weight without super-blocks takes scales with and without sub-scales, if its dtype
    /// represents their products exactly. A weight with stored offsets takes offsets of any form. A weight that is
    /// not quantized takes the dequantized values.
    ///
    /// # Errors
    /// The rows contradict themselves, are of another kind or reach past `n`, or their inputs are in another order than
    /// those of rows before.
    pub fn write_quantized(&mut self, first_row: usize, rows: QuantizedRows<'_>) -> Result<()> {
        let Layout { order, k, group, scales } = self.layout;
        let count = rows.check(k)?;
        let mut counted = Vec::new();
        let rows = match (rows.format, order) {
            (QuantFormat::Iq4, ElementOrder::Quantized(QuantFormat::U8)) => {
                rows.counted(&mut counted)
            }
            _ => rows,
        };
        let ElementOrder::Quantized(format) = order else {
            let bytes: Vec<u8> = rows.widened(k).iter().flat_map(|v| v.to_le_bytes()).collect();
            let dtype = DType::F32;
            return self.write_rows(first_row, WeightRows { dtype, bytes: &bytes });
        };
        if !format.takes(rows.format) {
            return Err(Error::QuantizedRows("the rows' kind of quantization is not the weight's"));
        }
        // A group of all columns can be cut into groups of any size.
        if rows.group.min(k) != k && !rows.group.is_multiple_of(group) {
            return Err(Error::QuantizedRows("the groups are smaller than the weight's"));
        }
        if !rows.offsets.fit(scales.offsets) {
            return Err(Error::QuantizedRows("the rows' form of offsets is not the weight's"));
        }
        if let Some(blocks) = scales.blocks {
            let Some(sub_scales) =
                rows.sub_scales.filter(|m| m.block.is_multiple_of(blocks.columns))
            else {
                return Err(Error::QuantizedRows(
                    "the weight needs scales with sub-scales of its form",
                ));
            };
            let all = sub_scales.scales.iter().chain(sub_scales.offsets);
            if !all.copied().all(|number| blocks.sub_scales.has(number)) {
                return Err(Error::QuantizedRows("a sub-scale has more bits than the weight's"));
            }
        }
        let layout = self.layout;
        let fits = |row| layout.kept_numbers(&rows, row).all(|number| layout.is_exact(number));
        // Tables are stored as f32.
        if format != QuantFormat::Table && !(0..count).into_par_iter().all(fits) {
            return Err(Error::QuantizedRows("the weight's dtype would round the scales"));
        }
        // The first rows decide the order of the inputs.
        let nothing_written = !self.written.contains(&true);
        if nothing_written {
            self.inputs = rows.inputs.map(Arc::from);
        } else if self.inputs.as_deref() != rows.inputs {
            return Err(Error::InputOrder);
        }
        let range = self.range(first_row, count)?;
        self.each_panel(range, |panel, columns, row| {
            let at = row - first_row;
            let rows = rows.rows(k, at..at + columns.len());
            if format == QuantFormat::Table {
                for (i, column) in columns.enumerate() {
                    layout.write_table(panel, column, &rows.rows(k, i..i + 1));
                }
            } else {
                layout.write_scales(format, panel, columns.clone(), &rows);
                layout.write_quants(format, panel, columns, rows.bytes);
            }
        });
        Ok(())
    }
}

impl<'a> QuantizedRows<'a> {
    /// Writes [`QuantFormat::Iq4`] into `bytes` as integers from 0 on, so that a weight of eight bits can keep them.
    fn counted(self, bytes: &'a mut Vec<u8>) -> Self {
        bytes.extend(self.bytes.iter().map(|quant| counted_iq4(*quant)));
        Self { format: QuantFormat::U8, bytes, offsets: Offsets::ZeroPoint(IQ4_ZERO), ..self }
    }

    /// Some of the rows, of `k` columns.
    #[must_use]
    pub fn rows(&self, k: usize, rows: Range<usize>) -> Self {
        let each = match self.format {
            QuantFormat::Table => TABLE,
            _ => k.div_ceil(self.scale_columns()),
        };
        let groups = k.div_ceil(self.group);
        Self {
            bytes: &self.bytes[rows.start * k..rows.end * k],
            scales: part(self.scales, each, &rows),
            offsets: match self.offsets {
                Offsets::Own(offsets) => Offsets::Own(part(offsets, each, &rows)),
                Offsets::ZeroPoints(zeros) => Offsets::ZeroPoints(part(zeros, groups, &rows)),
                Offsets::None | Offsets::ZeroPoint(_) => self.offsets,
            },
            sub_scales: self.sub_scales.map(|sub_scales| SubScales {
                scales: part(sub_scales.scales, groups, &rows),
                offsets: part(sub_scales.offsets, groups, &rows),
                ..sub_scales
            }),
            ..*self
        }
    }
}

/// The entries of `all` that belong to `rows`, each of which has `each` of them. `all` may be empty.
fn part<'a, T>(all: &'a [T], each: usize, rows: &Range<usize>) -> &'a [T] {
    if all.is_empty() { all } else { &all[rows.start * each..rows.end * each] }
}

/// Parts of a quantized weight, for other layouts such as a GPU's.
impl Weight {
    /// Kind of the quantized weights and number of columns that share a scale; `None` if the weight is not quantized.
    #[must_use]
    pub fn quant_format(&self) -> Option<(QuantFormat, usize)> {
        match self.layout.order {
            ElementOrder::Quantized(format) => Some((format, self.layout.group)),
            _ => None,
        }
    }

    /// The quantized weight in row `row` and column `column`.
    #[must_use]
    pub fn quant(&self, row: usize, column: usize) -> u8 {
        let (format, _) = self.quant_format().expect("the weight is quantized");
        self.layout.quant(format, self.panel(row), column, row % PANEL)
    }

    /// The scale and the offset of a group of columns in row `row`. The scale of E4M3 contains the factor that
    /// [`e4m3_part`] leaves out.
    #[must_use]
    pub fn scale(&self, row: usize, group: usize) -> [f32; 2] {
        self.layout.scale(self.panel(row), group * self.layout.group, row % PANEL)
    }

    /// The table of row `row`.
    #[must_use]
    pub fn table(&self, row: usize) -> [f32; TABLE] {
        std::array::from_fn(|entry| f32::get(self.panel(row), row % PANEL * TABLE + entry))
    }

    fn panel(&self, row: usize) -> &[u8] {
        let bytes = self.layout.panel_bytes();
        &self.bytes()[row / PANEL * bytes..][..bytes]
    }
}

impl Layout {
    /// Packs rows of quantized weights as columns of a panel, except those of tables.
    fn write_quants(
        self,
        format: QuantFormat,
        panel: &mut [u8],
        columns: Range<usize>,
        rows: &[u8],
    ) {
        /// Steps of `k` that are transposed together: a square of 32 outputs and 32 steps, so that both rows and panels
        /// are accessed in runs of 32 bytes. With this, loading a 7B model in Q4_K went from 47 s to 25 s.
        const STEPS: usize = 32;
        for run in (0..self.k).step_by(self.run()) {
            let end = self.k.min(run + self.run());
            for first in (run..end).step_by(STEPS) {
                let count = STEPS.min(end - first);
                let mut lines = [[0u8; PANEL]; STEPS];
                if columns.len() < PANEL {
                    // The other columns keep their values.
                    for (step, line) in (first..first + count).zip(&mut lines) {
                        for (column, quant) in line.iter_mut().enumerate() {
                            *quant = self.quant(format, panel, step, column);
                        }
                    }
                }
                for (column, row) in columns.clone().zip(rows.chunks_exact(self.k)) {
                    for (line, quant) in lines.iter_mut().zip(&row[first..first + count]) {
                        line[column] = *quant;
                    }
                }
                let pairs = panel[self.pair(first / 2)..].chunks_exact_mut(self.order.pair_bytes());
                // An odd number of steps ends with a step of zeros.
                for (pair, two) in pairs.zip(lines[..count.next_multiple_of(2)].as_chunks().0) {
                    pack_pair(format, pair, two);
                }
            }
        }
    }

    /// Writes the table of a panel's column, and packs its table indices.
    fn write_table(self, panel: &mut [u8], column: usize, row: &QuantizedRows<'_>) {
        for (entry, number) in row.scales.iter().enumerate() {
            number.put(panel, column * TABLE + entry);
        }
        for (line, quants) in row.bytes.chunks(TABLE_STEPS).enumerate() {
            let quant = |step: usize| quants.get(step).copied().unwrap_or(0);
            let line = &mut panel[self.table_quants(column, line)..];
            for (step, byte) in line[..TABLE_STEPS / 2].iter_mut().enumerate() {
                *byte = quant(step) | quant(TABLE_STEPS / 2 + step) << 4;
            }
        }
    }

    /// Writes the headers of quantized rows, which are columns of a panel.
    fn write_scales(
        self,
        format: QuantFormat,
        panel: &mut [u8],
        columns: Range<usize>,
        rows: &QuantizedRows<'_>,
    ) {
        let ScaleForm { dtype, offsets, blocks } = self.scales;
        let bias = blocks.map_or(0, |blocks| blocks.sub_scales.bias());
        let numbers = if offsets == OffsetForm::Own { 2 } else { 1 };
        for first in (0..self.k).step_by(self.run()) {
            let run = self.group_of(first);
            let header = &mut panel[run.header..];
            for (row, column) in columns.clone().enumerate() {
                for (i, number) in self.run_numbers(rows, row, first).enumerate() {
                    let number = if format == QuantFormat::E4m3 && i == 0 {
                        number * E4M3_FACTOR
                    } else {
                        number
                    };
                    match dtype {
                        Dtype::F16 => f16::from_f32(number).put(header, i * PANEL + column),
                        Dtype::Bf16 => {
                            // Columns `c` and `c + 16` share a word, from which kernels widen both.
                            let place = i * PANEL + column % LANES * 2 + column / LANES;
                            bf16::from_f32(number).put(header, place);
                        }
                        Dtype::F32 => number.put(header, i * PANEL + column),
                    }
                }
            }
            for group in 0..run.groups {
                let place = GroupPlace { group, ..run };
                let sub_scales = [0, 1].map(|which| self.sub_scale(place, which));
                let zero_points = self.zero_points(place);
                let step = first + group * self.group;
                for (row, column) in columns.clone().enumerate() {
                    let of_row = rows.group_of(self.k, row, step);
                    let by = rows.multiples_of(of_row);
                    for (place, number) in sub_scales.iter().zip(by).take(numbers) {
                        if let Some(place) = place {
                            // With the bias, signed values of few bits become unsigned.
                            place.put(panel, column, number.wrapping_add(bias).cast_unsigned());
                        }
                    }
                    if let Some(place) = zero_points {
                        panel[place + column] = rows.zero_point(of_row);
                    }
                }
            }
        }
    }

    /// The stored scale, and offset if it is stored, of a row in the run that begins at step `first`: those of its
    /// super-block or group.
    fn run_numbers(
        self,
        rows: &QuantizedRows<'_>,
        row: usize,
        first: usize,
    ) -> impl Iterator<Item = f32> {
        let [scale, min] = match self.scales.blocks {
            Some(_) => rows.factors(self.k, row, first),
            None => rows.scale(self.k, row, first),
        };
        std::iter::once(scale).chain((self.scales.offsets == OffsetForm::Own).then_some(min))
    }

    /// All stored scales and offsets of a row.
    fn kept_numbers(self, rows: &QuantizedRows<'_>, row: usize) -> impl Iterator<Item = f32> {
        let runs = (0..self.k).step_by(self.run());
        runs.flat_map(move |first| self.run_numbers(rows, row, first))
    }

    /// Whether the scales' dtype represents this value exactly.
    fn is_exact(self, number: f32) -> bool {
        match self.scales.dtype {
            Dtype::F16 => f16::from_f32(number).to_f32() == number,
            Dtype::Bf16 => bf16::from_f32(number).to_f32() == number,
            Dtype::F32 => true,
        }
    }

    /// The scale and the offset of a panel's group at step `k` and `column`.
    fn scale(self, panel: &[u8], k: usize, column: usize) -> [f32; 2] {
        let header = &panel[self.header(k / 2)..];
        let number = |i: usize| match self.scales.dtype {
            Dtype::F16 => f16::get(header, i * PANEL + column).to_f32(),
            Dtype::Bf16 => {
                bf16::get(header, i * PANEL + column % LANES * 2 + column / LANES).to_f32()
            }
            Dtype::F32 => f32::get(header, i * PANEL + column),
        };
        let group = self.group_of(k);
        let by = |which: usize| match (self.sub_scale(group, which), self.scales.blocks) {
            (Some(place), Some(blocks)) => {
                let kept = place.get(panel, column).cast_signed();
                f32::from(kept.wrapping_sub(blocks.sub_scales.bias()))
            }
            _ => 1.0,
        };
        let scale = number(0) * by(0);
        let min = match self.scales.offsets {
            OffsetForm::None => -0.0,
            OffsetForm::Own => number(1) * by(1),
            OffsetForm::ZeroPoint(zero) => -f32::from(zero) * scale,
            OffsetForm::ZeroPoints => {
                let place = self.zero_points(group).expect("each group has a zero-point");
                -f32::from(panel[place + column]) * scale
            }
        };
        [scale, min]
    }

    /// The quantized weight of a panel at step `k` and `column`.
    fn quant(self, format: QuantFormat, panel: &[u8], k: usize, column: usize) -> u8 {
        match format {
            QuantFormat::U8 | QuantFormat::E4m3 => panel[self.pair(k / 2) + k % 2 * PANEL + column],
            QuantFormat::U4 | QuantFormat::E2m1 | QuantFormat::Iq4 => {
                panel[self.pair(k / 2) + column] >> (k % 2 * 4) & 15
            }
            QuantFormat::U2 | QuantFormat::U3 | QuantFormat::U5 | QuantFormat::U6 => {
                planes::quant(format.bits(), &panel[self.pair(k / 2)..], k % 2, column)
            }
            QuantFormat::Table => {
                let (line, step) = (k / TABLE_STEPS, k % TABLE_STEPS);
                let byte = panel[self.table_quants(column, line) + step % (TABLE_STEPS / 2)];
                byte >> (step / (TABLE_STEPS / 2) * 4) & 15
            }
        }
    }

    /// Calls `take` with each step of a column of a quantized panel, and its dequantized value.
    pub(super) fn read_quants(
        self,
        format: QuantFormat,
        panel: &[u8],
        column: usize,
        mut take: impl FnMut(usize, f32),
    ) {
        for first in (0..self.k).step_by(self.group) {
            let [scale, min] = self.scale(panel, first, column);
            for step in first..self.k.min(first + self.group) {
                let quant = self.quant(format, panel, step, column);
                let number = match format {
                    QuantFormat::E4m3 => e4m3_part(quant).mul_add(scale, min),
                    QuantFormat::E2m1 => E2M1[usize::from(quant)].mul_add(scale, min),
                    QuantFormat::Iq4 => IQ4[usize::from(quant)].mul_add(scale, min),
                    QuantFormat::Table => f32::get(panel, column * TABLE + usize::from(quant)),
                    _ => f32::from(quant).mul_add(scale, min),
                };
                take(step, number);
            }
        }
    }
}

impl SubScaleBytes {
    /// The sub-scale of a column, as its bits.
    fn get(self, panel: &[u8], column: usize) -> u8 {
        let low = panel[self.low + column];
        let Some(low) = self.nibble.map(|shift| low >> shift & 15) else { return low };
        self.high.map_or(low, |(high, shift)| low | (panel[high + column] >> shift & 3) << 4)
    }

    /// Writes the sub-scale of a column, and leaves the neighbouring bits unchanged.
    fn put(self, panel: &mut [u8], column: usize, bits: u8) {
        let low = &mut panel[self.low + column];
        let Some(shift) = self.nibble else {
            *low = bits;
            return;
        };
        *low = *low & !(15 << shift) | (bits & 15) << shift;
        if let Some((high, shift)) = self.high {
            let high = &mut panel[high + column];
            *high = *high & !(3 << shift) | (bits >> 4) << shift;
        }
    }
}

/// Packs the quantized weights of two steps of all columns of a panel.
#[inline(always)]
fn pack_pair(format: QuantFormat, pair: &mut [u8], two: &[[u8; PANEL]; 2]) {
    match format {
        QuantFormat::U8 | QuantFormat::E4m3 => pair.copy_from_slice(two.as_flattened()),
        QuantFormat::U4 | QuantFormat::E2m1 | QuantFormat::Iq4 => {
            for (byte, (even, odd)) in pair.iter_mut().zip(two[0].iter().zip(&two[1])) {
                *byte = even | odd << 4;
            }
        }
        QuantFormat::U2 | QuantFormat::U3 | QuantFormat::U5 | QuantFormat::U6 => {
            planes::pack(format.bits(), pair, two)
        }
        QuantFormat::Table => unreachable!("table indices do not lie in pairs"),
    }
}

/// The values of [`QuantFormat::E2m1`].
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The values of [`QuantFormat::Iq4`].
pub(crate) const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Zero-point of [`QuantFormat::Iq4`] when its values are stored as integers from 0 on.
pub const IQ4_ZERO: u8 = 128;

/// A table index of [`QuantFormat::Iq4`] as an integer from 0 on, whose zero-point is [`IQ4_ZERO`].
#[must_use]
pub fn counted_iq4(quant: u8) -> u8 {
    (IQ4[usize::from(quant)] + f32::from(IQ4_ZERO)) as u8
}

/// Factor that [`e4m3_part`] leaves out, since the exponent biases of f16 and E4M3, 15 and 7, differ by 8. Scales in
/// headers contain it.
const E4M3_FACTOR: f32 = 256.0;

/// The value of an [`QuantFormat::E4m3`] divided by 256. Its bits are then those of an f16, whose exponent is one bit
/// wider, so that no table is needed.
#[must_use]
pub fn e4m3_part(quant: u8) -> f32 {
    let quant = u16::from(quant);
    f16::from_bits((quant & 0x80) << 8 | (quant & 0x7f) << 7).to_f32()
}
