//! The tables of a step on a device, made on the host: token ids, positions and slots, samples and their parameters.

use std::ops::Range;

use candlepower_gpu::{NO_SLOT, REPORT_HEAD, SamplerRow};
use candlepower_kernels::AttentionMetadata;
use candlepower_models::OutputTokens;
use candlepower_scheduler::{Step, Swap, TokenSource};

use crate::{
    Result,
    device_counts::{CountSlots, ToCount},
    step_io::{Sample, SamplingBatch},
};

/// Marks a token that the previous step sampled: see `resolve_tokens`.
const SAMPLED: u32 = 1 << 31;

/// Added to the logit of a token that is to be scored, so that it is sampled whatever the other logits are.
const FORCED: f32 = 1e30;

/// The inputs of a step's forward.
#[derive(Default)]
pub(crate) struct InputTables {
    pub(crate) token_ids: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) slots: Vec<u32>,
    pub(crate) attention: AttentionMetadata,
    /// The recurrent state's slot of each sequence.
    pub(crate) state_slots: Vec<u32>,
    /// Whether the device has to look up tokens that it sampled itself.
    pub(crate) has_sampled: bool,
    /// The output tokens, where not all tokens are.
    pub(crate) output: Option<OutputTokens>,
}

impl InputTables {
    /// The tables of a step's rows.
    pub(crate) fn new(step: &Step, block_size: u32) -> Self {
        let max_blocks = step.rows.iter().map(|row| row.block_table.len()).max().unwrap_or(0);
        let mut tables = Self::default();
        tables.attention.max_blocks = max_blocks;
        tables.attention.query_start.push(0);
        for row in &step.rows {
            for (position, source) in (row.first_position..).zip(&row.tokens) {
                tables.token_ids.push(match *source {
                    TokenSource::Id(id) => id,
                    TokenSource::PreviousRow(sample) => SAMPLED | sample,
                    TokenSource::Embedding { .. } => unreachable!("a device takes no images"),
                });
                tables.has_sampled |= matches!(source, TokenSource::PreviousRow(_));
                tables.positions.push(position);
                let block = row.block_table[(position / block_size) as usize];
                tables.slots.push(block.0 * block_size + position % block_size);
            }
            let context_len = row.first_position + row.tokens.len() as u32;
            tables.add_sequence(context_len, row.block_table.iter().map(|block| block.0));
            tables.state_slots.push(row.state_slot.map_or(NO_SLOT, |slot| slot.0));
        }
        tables
    }

    /// Adds sequences of one token that is not written to the cache, until there are `seqs`.
    pub(crate) fn pad(&mut self, seqs: usize) {
        self.attention.max_blocks = self.attention.max_blocks.max(1);
        while self.attention.context_len.len() < seqs {
            self.token_ids.push(0);
            self.positions.push(0);
            self.slots.push(NO_SLOT);
            self.add_sequence(1, [0].into_iter());
            self.state_slots.push(NO_SLOT);
        }
    }

    /// Number of tokens, padding included.
    pub(crate) fn num_tokens(&self) -> usize {
        self.token_ids.len()
    }

    fn add_sequence(&mut self, context_len: u32, blocks: impl Iterator<Item = u32>) {
        let meta = &mut self.attention;
        meta.query_start.push(self.token_ids.len() as u32);
        meta.context_len.push(context_len);
        meta.block_tables.extend(blocks);
        meta.block_tables.resize(meta.context_len.len() * meta.max_blocks, 0);
    }
}

/// Samples whose logits exist at the same time.
#[derive(Default)]
pub(crate) struct Chunk {
    /// The logits indices, in the order of the logits.
    pub(crate) rows: Vec<u32>,
    pub(crate) samplers: Vec<SamplerRow>,
    /// Whether any sample has token counts.
    pub(crate) has_counts: bool,
    /// The slots of token counts that get another sequence.
    pub(crate) reset: Vec<u32>,
    /// The tokens of prompts that the counts lack.
    pub(crate) prompt: SlotTokens,
    /// The output tokens that the counts lack.
    pub(crate) generated: SlotTokens,
}

/// Tokens to count, each with its slot of counts.
#[derive(Default)]
pub(crate) struct SlotTokens {
    pub(crate) slots: Vec<u32>,
    pub(crate) ids: Vec<u32>,
}

impl SlotTokens {
    fn add(&mut self, slot: u32, ids: &[u32]) {
        self.slots.extend(ids.iter().map(|_| slot));
        self.ids.extend(ids);
    }
}

/// A token whose logits are needed.
#[derive(Clone, Copy)]
struct LogitsIndex {
    /// Index of its row in the step.
    row: usize,
    /// Its index among all tokens of the step.
    token: u32,
}

/// The samples of a step: those of its sequences in the order of its rows, then the prompt tokens that it scores.
#[derive(Default)]
pub(crate) struct SamplingTables {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) bias_ids: Vec<u32>,
    /// The bits of f32.
    pub(crate) biases: Vec<u32>,
    pub(crate) masks: Vec<u32>,
    /// Most alternatives that any sample reports.
    pub(crate) max_top: usize,
}

/// The limits of a chunk.
#[derive(Clone, Copy)]
pub(crate) struct ChunkLimits {
    /// Most rows of logits, and most samples.
    pub(crate) rows: usize,
    pub(crate) vocab: usize,
    /// Whether the logits of the last token of every row of the step are computed already, in the order of the rows.
    pub(crate) has_logits: bool,
}

impl SamplingTables {
    /// The tables of a step's samples. Their sequences get slots of token counts where they have penalties.
    ///
    /// # Errors
    /// A sequence lacks counts that the host does not know.
    pub(crate) fn new(
        step: &Step,
        batch: &SamplingBatch<'_>,
        limits: ChunkLimits,
        counts: &mut CountSlots,
    ) -> Result<Self> {
        let mut tables = Self::default();
        let mut samples = batch.samples.iter();
        counts
            .use_all(samples.clone().filter(|sample| sample.is_counted()).map(|sample| sample.seq));
        let mut end = 0;
        for (index, row) in step.rows.iter().enumerate() {
            end += row.tokens.len() as u32;
            let last = LogitsIndex { row: index, token: end - 1 };
            for sample in samples.by_ref().take(row.samples.len()) {
                let logits_row = tables.chunk_for(last, limits).logits_row(last, limits);
                if sample.is_left_out {
                    let chunk = tables.chunks.last_mut().expect("a chunk was made for the row");
                    let nothing = SamplerRow { logits_row: None, ..SamplerRow::greedy(0) };
                    chunk.samplers.push(nothing);
                } else {
                    tables.add(logits_row, sample, limits.vocab, counts)?;
                }
            }
        }
        for prompt in &*batch.prompts {
            let first: usize = step.rows[..prompt.row].iter().map(|row| row.tokens.len()).sum();
            for (token, &next) in (first as u32..).zip(&prompt.next_token_ids) {
                let index = LogitsIndex { row: prompt.row, token };
                let logits_row = tables.chunk_for(index, limits).logits_row(index, limits);
                tables.add_score(logits_row, next, prompt.top);
            }
        }
        Ok(tables)
    }

    /// Replaces logits indices among all tokens by indices among the output tokens, where only these have hidden states.
    pub(crate) fn index_output_tokens(&mut self, output: &OutputTokens) {
        for row in self.chunks.iter_mut().flat_map(|chunk| &mut chunk.rows) {
            let index = output.rows.binary_search(row);
            *row = index.expect("every sampled or scored token is an output token") as u32;
        }
    }

    /// Number of samples of all chunks.
    pub(crate) fn num_samples(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.samplers.len()).sum()
    }

    /// Words of each sample's report: its own token, and the alternatives.
    pub(crate) fn width(&self) -> usize {
        REPORT_HEAD + 2 * self.max_top
    }

    /// The last chunk, or a new one where it is full.
    fn chunk_for(&mut self, index: LogitsIndex, limits: ChunkLimits) -> &mut Chunk {
        let full = self.chunks.last().is_none_or(|chunk| {
            let new_row = !limits.has_logits && chunk.rows.last() != Some(&index.token);
            chunk.samplers.len() == limits.rows || (new_row && chunk.rows.len() == limits.rows)
        });
        if full {
            self.chunks.push(Chunk::default());
        }
        self.chunks.last_mut().expect("there is one")
    }

    fn add(
        &mut self,
        logits_row: u32,
        sample: &Sample<'_>,
        vocab: usize,
        counts: &mut CountSlots,
    ) -> Result<()> {
        let (row, position) = (&sample.params, sample.position);
        let begin = self.bias_ids.len() as u32;
        for &(id, bias) in row.logit_bias {
            self.bias_ids.push(id);
            self.biases.push(bias.to_bits());
        }
        for &id in &row.banned {
            self.bias_ids.push(id);
            self.biases.push(f32::NEG_INFINITY.to_bits());
        }
        let biases = (begin, self.bias_ids.len() as u32);
        let mask_row = row.mask.map(|mask| self.add_mask(mask, vocab.div_ceil(32)));
        self.max_top = self.max_top.max(row.logprobs.unwrap_or(0));
        let chunk = self.chunks.last_mut().expect("a chunk was made for the row");
        let mut counts_slot = None;
        if sample.is_counted() {
            let ToCount { slot, is_new, tokens } = counts.count(sample)?;
            chunk.has_counts = true;
            chunk.reset.extend(is_new.then_some(slot));
            chunk.prompt.add(slot, tokens.prompt);
            chunk.generated.add(slot, tokens.output);
            counts_slot = Some(slot);
        }
        chunk.samplers.push(SamplerRow {
            logits_row: Some(logits_row),
            temperature: row.temperature,
            top_k: row.top_k.map(|k| u32::try_from(k).unwrap_or(u32::MAX)),
            top_p: row.top_p,
            min_p: row.min_p,
            repetition: row.penalties.map_or(1.0, |penalties| penalties.repetition),
            presence: row.penalties.map_or(0.0, |penalties| penalties.presence),
            frequency: row.penalties.map_or(0.0, |penalties| penalties.frequency),
            counts_slot,
            biases,
            mask_row,
            top_logprobs: row.logprobs.map(|top| top as u32),
            seed: position.seed,
            output_index: position.index,
        });
        Ok(())
    }

    /// Adds a sample whose token is known, for its log-probability.
    fn add_score(&mut self, logits_row: u32, token: u32, top: usize) {
        let begin = self.bias_ids.len() as u32;
        self.bias_ids.push(token);
        self.biases.push(FORCED.to_bits());
        self.max_top = self.max_top.max(top);
        let chunk = self.chunks.last_mut().expect("a chunk was made for the row");
        chunk.samplers.push(SamplerRow {
            biases: (begin, begin + 1),
            top_logprobs: Some(top as u32),
            ..SamplerRow::greedy(logits_row)
        });
    }

    /// Adds a mask, which allows nothing beyond its own words.
    fn add_mask(&mut self, mask: &[u32], words: usize) -> u32 {
        let row = self.masks.len() / words;
        self.masks.extend(mask.iter().take(words));
        self.masks.resize((row + 1) * words, 0);
        row as u32
    }
}

impl Chunk {
    /// The row of a token's logits. A new row is added unless it is the chunk's last.
    fn logits_row(&mut self, index: LogitsIndex, limits: ChunkLimits) -> u32 {
        if limits.has_logits {
            return index.row as u32;
        }
        if self.rows.last() != Some(&index.token) {
            self.rows.push(index.token);
        }
        self.rows.len() as u32 - 1
    }
}

/// The direction of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwapTo {
    Host,
    Cache,
}

/// A step's swaps as sources and destinations, those of one direction that follow each other together.
pub(crate) fn swap_pairs(swaps: &[Swap]) -> Vec<(SwapTo, Vec<u32>)> {
    let mut runs: Vec<(SwapTo, Vec<u32>)> = Vec::new();
    for swap in swaps {
        let (to, pair) = match *swap {
            Swap::Out { block, slot } => (SwapTo::Host, [block.0, slot.0]),
            Swap::In { slot, block } => (SwapTo::Cache, [slot.0, block.0]),
        };
        match runs.last_mut() {
            Some((last, pairs)) if *last == to => pairs.extend(pair),
            _ => runs.push((to, pair.into())),
        }
    }
    runs
}

/// Tables that are uploaded together, each from a multiple of sixteen bytes on.
#[derive(Default)]
pub(crate) struct Upload {
    pub(crate) words: Vec<u32>,
}

impl Upload {
    /// Appends a table, and returns its range of words.
    pub(crate) fn push(&mut self, table: impl IntoIterator<Item = u32>) -> Range<usize> {
        self.words.resize(self.words.len().next_multiple_of(4), 0);
        let first = self.words.len();
        self.words.extend(table);
        first..self.words.len()
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use candlepower_kernels::sampling::SamplingRow;
    use candlepower_scheduler::{BlockId, LogitsFor, SeqId, StateSlot, StepRow, SwapSlot};

    use super::*;
    use crate::step_io::OutputPosition;

    fn row(seq: u64, first_position: u32, tokens: &[TokenSource], samples: usize) -> StepRow {
        StepRow {
            seq: SeqId(seq),
            state_slot: Some(StateSlot(seq as u32 + 5)),
            tokens: tokens.to_vec(),
            first_position,
            rope_positions: Vec::new(),
            whole: Vec::new(),
            block_table: vec![BlockId(7), BlockId(3)],
            logits: LogitsFor::Last,
            samples: vec![SeqId(seq); samples],
        }
    }

    fn sampling(logit_bias: &[(u32, f32)]) -> SamplingRow<'_> {
        SamplingRow { logit_bias, banned: vec![9], mask: Some(&[5]), ..SamplingRow::greedy() }
    }

    #[test]
    fn tokens_know_their_slots_and_who_sampled_them() {
        let tokens = [TokenSource::Id(4), TokenSource::PreviousRow(2)];
        let step = Step { rows: vec![row(0, 15, &tokens, 1)], ..Step::default() };
        let mut tables = InputTables::new(&step, 16);
        assert_eq!(tables.token_ids, [4, SAMPLED | 2]);
        assert_eq!((&tables.positions[..], &tables.slots[..]), (&[15, 16][..], &[127, 48][..]));
        assert!(tables.has_sampled);
        tables.pad(3);
        assert_eq!(tables.attention.query_start, [0, 2, 3, 4]);
        assert_eq!(tables.attention.context_len, [17, 1, 1]);
        assert_eq!(tables.attention.block_tables, [7, 3, 0, 0, 0, 0]);
        assert_eq!(tables.slots[2..], [NO_SLOT, NO_SLOT]);
        assert_eq!(tables.state_slots, [5, NO_SLOT, NO_SLOT]);
    }

    /// A slot that is freed may be taken again in the same step, so the order must stay.
    #[test]
    fn swaps_keep_their_order() {
        let (out, back) = (
            |block, slot| Swap::Out { block: BlockId(block), slot: SwapSlot(slot) },
            |slot, block| Swap::In { slot: SwapSlot(slot), block: BlockId(block) },
        );
        let swaps = [out(7, 0), out(3, 1), back(0, 5), out(5, 0)];
        let runs = swap_pairs(&swaps);
        let expected = [
            (SwapTo::Host, vec![7, 0, 3, 1]),
            (SwapTo::Cache, vec![0, 5]),
            (SwapTo::Host, vec![5, 0]),
        ];
        assert_eq!(runs, expected);
    }

    #[test]
    fn samples_of_one_row_share_its_logits_and_chunks_hold_what_fits() {
        let rows = vec![
            row(0, 0, &[TokenSource::Id(1); 2], 3),
            row(1, 5, &[TokenSource::Id(1)], 0),
            row(2, 5, &[TokenSource::Id(1)], 1),
        ];
        let step = Step { rows, ..Step::default() };
        let sample = |seq| Sample {
            params: sampling(&[(1, 2.0)]),
            position: OutputPosition { seed: 1, index: 2 },
            ..Sample::greedy(seq)
        };
        let mut batch = SamplingBatch {
            samples: step.samples().map(sample).collect(),
            prompts: Cow::default(),
        };
        let limits = ChunkLimits { rows: 2, vocab: 64, has_logits: false };
        let mut counts = CountSlots::new(2);
        let mut made = |batch: &SamplingBatch<'_>, limits| {
            SamplingTables::new(&step, batch, limits, &mut counts).unwrap()
        };
        let tables = made(&batch, limits);
        let rows: Vec<_> = tables.chunks.iter().map(|chunk| chunk.rows.clone()).collect();
        assert_eq!(rows, [vec![1], vec![1, 3]]);
        let of = |chunk: &Chunk| -> Vec<_> {
            chunk.samplers.iter().map(|row| (row.logits_row, row.biases, row.mask_row)).collect()
        };
        assert_eq!(of(&tables.chunks[0]), [(Some(0), (0, 2), Some(0)), (Some(0), (2, 4), Some(1))]);
        assert_eq!(of(&tables.chunks[1])[1], (Some(1), (6, 8), Some(3)));
        assert_eq!(tables.masks, [5, 0, 5, 0, 5, 0, 5, 0]);
        assert_eq!(f32::from_bits(tables.biases[1]), f32::NEG_INFINITY);
        let known = made(&batch, ChunkLimits { rows: 8, has_logits: true, ..limits });
        let rows: Vec<_> = known.chunks[0].samplers.iter().map(|row| row.logits_row).collect();
        assert_eq!(rows, [Some(0), Some(0), Some(0), Some(2)]);
        assert!(known.chunks[0].rows.is_empty());
        // Each sample keeps its index, whatever is left out.
        batch.samples[1] = Sample::left_out(SeqId(0));
        let less = made(&batch, limits);
        assert_eq!(of(&less.chunks[0]), [(Some(0), (0, 2), Some(0)), (None, (0, 0), None)]);
        assert_eq!(of(&less.chunks[1])[0], (Some(0), (2, 4), Some(1)));
        assert_eq!(less.num_samples(), 4);
    }
}
