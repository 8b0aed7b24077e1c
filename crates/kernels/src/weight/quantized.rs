//! Rows of codes, and how they are packed and read back.

use std::ops::Range;
use std::sync::Arc;

use half::f16;

use super::layout::{Blocks, Codes, ElementOrder, Layout, PANEL, ScaleForm, TABLE, TABLE_STEPS};
use super::planes::{self, Places};
use super::{Element, Weight, WeightBuilder, WeightRows};
use crate::{Error, Result};

/// Some consecutive rows of a quantized matrix of `k` columns, row-major.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedRows<'a> {
    /// What the codes mean.
    pub codes: Codes,
    /// Columns that share a scale and a minimum: the first `group`, the next, and so on; `k` where all do.
    pub group: usize,
    /// `[rows][k]`, one code in each byte.
    pub bytes: &'a [u8],
    /// `[rows][ceil(k / group)]`, or of blocks, `[rows][k / block]`, where there are multiples; of [`Codes::Table`] the
    /// tables, `[rows][16]`.
    pub scales: &'a [f32],
    /// As many as scales; empty where there are none, which is as if all were -0.0.
    pub mins: &'a [f32],
    /// What scales and minima of blocks are multiplied with to be those of groups.
    pub multiples: Option<Multiples<'a>>,
    /// Which input each column is, where they are not in order: a permutation of `0..k`. The groups are those of the
    /// columns.
    pub inputs: Option<&'a [u32]>,
}

/// What the scales and the minima of the groups of some rows are multiples by.
#[derive(Clone, Copy, Debug)]
pub struct Multiples<'a> {
    /// Columns of a block, which have one scale and one minimum to multiply: whole groups.
    pub block: usize,
    /// `[rows][k / group]`.
    pub scales: &'a [i8],
    /// `[rows][k / group]`; empty where they are those of the scales.
    pub mins: &'a [i8],
}

impl<'a> Multiples<'a> {
    fn own_or_scales(&self) -> &'a [i8] {
        if self.mins.is_empty() { self.scales } else { self.mins }
    }
}

impl QuantizedRows<'_> {
    /// The number in row `row` and column `column`: the definition of what codes mean.
    fn number(&self, k: usize, row: usize, column: usize) -> f32 {
        let code = self.bytes[row * k + column];
        if self.codes == Codes::Table {
            return self.scales[row * TABLE + usize::from(code)];
        }
        let [scale, min] = self.scale(k, row, column);
        let code = match self.codes {
            Codes::E4m3 => e4m3_part(code) * E4M3_FACTOR,
            _ => f32::from(code),
        };
        code.mul_add(scale, min)
    }

    /// The scale and the minimum of a column, which has no table.
    fn scale(&self, k: usize, row: usize, column: usize) -> [f32; 2] {
        let columns = self.scale_columns();
        let at = row * k.div_ceil(columns) + column / columns;
        let [scale, min] = [self.scales[at], self.mins.get(at).copied().unwrap_or(-0.0)];
        let Some(multiples) = self.multiples else { return [scale, min] };
        let at = row * k.div_ceil(self.group) + column / self.group;
        let by = [multiples.scales[at], multiples.own_or_scales()[at]].map(f32::from);
        [scale * by[0], min * by[1]]
    }

    /// Whether the scales are numbers of f16, and the minima `-zero` times these.
    fn are_halves(&self, zero: u8) -> bool {
        let is_half = |scale: f32| f16::from_f32(scale).to_f32() == scale;
        self.multiples.is_none()
            && self.scales.len() == self.mins.len()
            && self.scales.iter().all(|scale| is_half(*scale))
            && self
                .scales
                .iter()
                .zip(self.mins)
                .all(|(scale, min)| *min == -f32::from(zero) * scale)
    }

    /// Columns for which there is one number in the scales.
    fn scale_columns(&self) -> usize {
        self.multiples.map_or(self.group, |multiples| multiples.block)
    }

    /// The numbers of all rows of `k` columns, `[rows][k]` in the order of the inputs.
    ///
    /// # Errors
    /// The rows contradict themselves.
    pub fn numbers(&self, k: usize) -> Result<Vec<f32>> {
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
            return Err(Error::QuantizedRows("the codes are not whole rows"));
        }
        let rows = self.bytes.len() / k;
        if self.group == 0 {
            return Err(Error::QuantizedRows("a group has no columns"));
        }
        if let Some(Multiples { block, scales, mins }) = self.multiples {
            let whole = block > 0 && block.is_multiple_of(self.group) && k.is_multiple_of(block);
            let expected = rows * (k / self.group);
            if !whole || self.codes == Codes::Table {
                return Err(Error::QuantizedRows(
                    "blocks are not whole groups, or k not whole blocks",
                ));
            }
            if scales.len() != expected || !(mins.is_empty() || mins.len() == expected) {
                return Err(Error::QuantizedRows("multiples are not as many as there are groups"));
            }
        }
        let (scales, mins) = match self.codes {
            Codes::Table => (TABLE, 0),
            _ => (k.div_ceil(self.scale_columns()), k.div_ceil(self.scale_columns())),
        };
        if self.scales.len() != rows * scales
            || !(self.mins.is_empty() || self.mins.len() == rows * mins)
        {
            return Err(Error::QuantizedRows(
                "scales or minima are not as many as there are groups or blocks",
            ));
        }
        if self.bytes.iter().any(|code| *code > self.codes.most()) {
            return Err(Error::QuantizedRows("a code has more bits than its kind"));
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
    /// Writes quantized rows as rows `first_row..`. A quantized weight takes the codes as they are, so they must be of
    /// its kind, or of fewer bits, in groups of as many columns as its own or of a multiple, and blocks
    /// likewise; without blocks it takes scales of either kind, but in f16 only what they can be. A weight of a dtype takes their numbers.
    ///
    /// # Errors
    /// The rows contradict themselves, are of another kind or reach past `n`, or their inputs are in another order than
    /// those of rows before.
    pub fn write_quantized(&mut self, first_row: usize, rows: QuantizedRows<'_>) -> Result<()> {
        let Layout { order, k, group, scales } = self.layout;
        let count = rows.check(k)?;
        let ElementOrder::Coded(codes) = order else {
            let bytes: Vec<u8> = rows.widened(k).iter().flat_map(|v| v.to_le_bytes()).collect();
            let dtype = candle_core::DType::F32;
            return self.write_rows(first_row, WeightRows { dtype, bytes: &bytes });
        };
        if !codes.takes(rows.codes) {
            return Err(Error::QuantizedRows("the codes are of another kind than the weight's"));
        }
        if rows.group.min(k) != k && !rows.group.is_multiple_of(group) {
            return Err(Error::QuantizedRows("the groups are smaller than the weight's"));
        }
        if let ScaleForm::F16 { zero } = scales
            && !rows.are_halves(zero)
        {
            return Err(Error::QuantizedRows(
                "the scales are not in f16, or the minima not those of the weight's zero",
            ));
        }
        if let ScaleForm::Blocks(Blocks { columns, own_mins }) = scales {
            let fits = |rows: &Multiples<'_>| {
                rows.block.is_multiple_of(columns) && (own_mins || rows.mins.is_empty())
            };
            if !rows.multiples.as_ref().is_some_and(fits) {
                return Err(Error::QuantizedRows(
                    "the scales are no multiples as the weight has them",
                ));
            }
        }
        let nothing_written = !self.written.contains(&true);
        if nothing_written {
            self.inputs = rows.inputs.map(Arc::from);
        } else if self.inputs.as_deref() != rows.inputs {
            return Err(Error::InputOrder);
        }
        let range = self.range(first_row, count)?;
        let layout = self.layout;
        self.each_panel(range, |panel, column, row| {
            let at = row - first_row;
            layout.write_row(codes, panel, column, &rows.rows(k, at..at + 1));
        });
        Ok(())
    }
}

impl<'a> QuantizedRows<'a> {
    /// Some of the rows, of `k` columns.
    #[must_use]
    pub fn rows(&self, k: usize, rows: Range<usize>) -> Self {
        let each = match self.codes {
            Codes::Table => TABLE,
            _ => k.div_ceil(self.scale_columns()),
        };
        let groups = k.div_ceil(self.group);
        Self {
            bytes: &self.bytes[rows.start * k..rows.end * k],
            scales: part(self.scales, each, &rows),
            mins: part(self.mins, each, &rows),
            multiples: self.multiples.map(|multiples| Multiples {
                scales: part(multiples.scales, groups, &rows),
                mins: part(multiples.mins, groups, &rows),
                ..multiples
            }),
            ..*self
        }
    }
}

/// What belongs to some of the rows, of which each has `each`, or none.
fn part<'a, T>(all: &'a [T], each: usize, rows: &Range<usize>) -> &'a [T] {
    if all.is_empty() { all } else { &all[rows.start * each..rows.end * each] }
}

/// A quantized weight, part by part.
impl Weight {
    /// What its codes mean and how many columns share a scale; `None` where it has no codes.
    pub(crate) fn codes(&self) -> Option<(Codes, usize)> {
        match self.layout.order {
            ElementOrder::Coded(codes) => Some((codes, self.layout.group)),
            _ => None,
        }
    }

    /// The code in row `row` and column `column`.
    pub(crate) fn code(&self, row: usize, column: usize) -> u8 {
        let (codes, _) = self.codes().expect("the weight is quantized");
        self.layout.code(codes, self.panel(row), column, row % PANEL)
    }

    /// The scale and the minimum of a group of columns in row `row`. What [`e4m3_part`] leaves out is in the scale.
    pub(crate) fn scale(&self, row: usize, group: usize) -> [f32; 2] {
        self.layout.scale(self.panel(row), group * self.layout.group, row % PANEL)
    }

    /// The table of row `row`.
    pub(crate) fn table(&self, row: usize) -> [f32; TABLE] {
        std::array::from_fn(|entry| f32::get(self.panel(row), row % PANEL * TABLE + entry))
    }

    fn panel(&self, row: usize) -> &[u8] {
        let bytes = self.layout.panel_bytes();
        &self.bytes()[row / PANEL * bytes..][..bytes]
    }
}

impl Layout {
    /// Packs one row as a panel's column.
    fn write_row(self, codes: Codes, panel: &mut [u8], column: usize, row: &QuantizedRows<'_>) {
        self.write_scales(codes, panel, column, row);
        for first in (0..self.k).step_by(self.run()) {
            let steps = first..self.k.min(first + self.run());
            let mut pair = self.pair(first / 2);
            match codes {
                Codes::U8 | Codes::E4m3 => {
                    for (i, code) in row.bytes[steps].iter().enumerate() {
                        panel[pair + i * PANEL + column] = *code;
                    }
                }
                Codes::U4 => {
                    for two in row.bytes[steps].chunks(2) {
                        panel[pair + column] = two[0] | two.get(1).copied().unwrap_or(0) << 4;
                        pair += PANEL;
                    }
                }
                Codes::U2 | Codes::U3 | Codes::U5 | Codes::U6 => {
                    let places = Places::new(codes.bits(), column);
                    let pair_bytes = self.order.pair_bytes();
                    let pairs = panel[pair..].chunks_exact_mut(pair_bytes);
                    for (pair, two) in pairs.zip(row.bytes[steps].chunks(2)) {
                        for (step, code) in two.iter().enumerate() {
                            places.put(pair, step, *code);
                        }
                    }
                }
                Codes::Table => {
                    for (line, codes) in row.bytes.chunks(TABLE_STEPS).enumerate() {
                        let code = |step: usize| codes.get(step).copied().unwrap_or(0);
                        let line = &mut panel[self.table_codes(column, line)..];
                        for (step, byte) in line[..TABLE_STEPS / 2].iter_mut().enumerate() {
                            *byte = code(step) | code(TABLE_STEPS / 2 + step) << 4;
                        }
                    }
                }
            }
        }
    }

    /// Writes the headers of a panel's column.
    fn write_scales(self, codes: Codes, panel: &mut [u8], column: usize, row: &QuantizedRows<'_>) {
        if codes == Codes::Table {
            for (entry, number) in row.scales.iter().enumerate() {
                number.put(panel, column * TABLE + entry);
            }
            return;
        }
        for first in (0..self.k).step_by(self.run()) {
            let [scale, min] = match self.scales {
                ScaleForm::F32 => row.scale(self.k, 0, first),
                ScaleForm::F16 { .. } => {
                    let [scale, _] = row.scale(self.k, 0, first);
                    let place = self.header(first / 2) + column * 2;
                    panel[place..place + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                    continue;
                }
                ScaleForm::Blocks(_) => {
                    let at = first / row.scale_columns();
                    [row.scales[at], row.mins.get(at).copied().unwrap_or(-0.0)]
                }
            };
            let scale = if codes == Codes::E4m3 { scale * E4M3_FACTOR } else { scale };
            let header = &mut panel[self.header(first / 2)..];
            scale.put(header, column);
            min.put(header, PANEL + column);
        }
        for first in (0..self.k).step_by(self.group) {
            let (Some(places), Some(multiples)) = (self.multiples(first), row.multiples) else {
                return;
            };
            let all = [multiples.scales, multiples.own_or_scales()];
            for (place, multiples) in places.into_iter().zip(all) {
                panel[place + column] = multiples[first / row.group].cast_unsigned();
            }
        }
    }

    /// The scale and the minimum of a panel's group at step `k` and `column`.
    fn scale(self, panel: &[u8], k: usize, column: usize) -> [f32; 2] {
        let header = &panel[self.header(k / 2)..];
        if let ScaleForm::F16 { zero } = self.scales {
            let scale = f16::from_le_bytes([header[column * 2], header[column * 2 + 1]]).to_f32();
            return [scale, -f32::from(zero) * scale];
        }
        let [scale, min] = [0, PANEL].map(|first| f32::get(header, first + column));
        let Some(places) = self.multiples(k) else { return [scale, min] };
        let by = places.map(|place| f32::from(panel[place + column].cast_signed()));
        [scale * by[0], min * by[1]]
    }

    /// The code of a panel at step `k` and `column`.
    fn code(self, codes: Codes, panel: &[u8], k: usize, column: usize) -> u8 {
        match codes {
            Codes::U8 | Codes::E4m3 => panel[self.pair(k / 2) + k % 2 * PANEL + column],
            Codes::U4 => panel[self.pair(k / 2) + column] >> (k % 2 * 4) & 15,
            Codes::U2 | Codes::U3 | Codes::U5 | Codes::U6 => {
                planes::code(codes.bits(), &panel[self.pair(k / 2)..], k % 2, column)
            }
            Codes::Table => {
                let (line, step) = (k / TABLE_STEPS, k % TABLE_STEPS);
                let byte = panel[self.table_codes(column, line) + step % (TABLE_STEPS / 2)];
                byte >> (step / (TABLE_STEPS / 2) * 4) & 15
            }
        }
    }

    /// Calls `take` with each step of a column of a panel of codes, and its number.
    pub(super) fn read_codes(
        self,
        codes: Codes,
        panel: &[u8],
        column: usize,
        mut take: impl FnMut(usize, f32),
    ) {
        for first in (0..self.k).step_by(self.group) {
            let [scale, min] = self.scale(panel, first, column);
            for step in first..self.k.min(first + self.group) {
                let code = self.code(codes, panel, step, column);
                let number = match codes {
                    Codes::E4m3 => e4m3_part(code).mul_add(scale, min),
                    Codes::Table => f32::get(panel, column * TABLE + usize::from(code)),
                    _ => f32::from(code).mul_add(scale, min),
                };
                take(step, number);
            }
        }
    }
}

/// What [`e4m3_part`] leaves out: the biases of the exponents, 15 and 7, differ by 8. Headers have it in their scales.
const E4M3_FACTOR: f32 = 256.0;

/// An [`Codes::E4m3`] divided by 256: as a half, whose exponent has a bit more.
pub(crate) fn e4m3_part(code: u8) -> f32 {
    let code = u16::from(code);
    f16::from_bits((code & 0x80) << 8 | (code & 0x7f) << 7).to_f32()
}
