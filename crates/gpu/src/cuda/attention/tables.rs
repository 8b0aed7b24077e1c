//! The tables of a step that FlashInfer reads: where the queries and pages of each sequence begin, and the page
//! indices.

use candlepower_kernels::AttentionMetadata;

/// Offsets of a step's tables in one array of u32.
pub(super) struct TableLayout {
    pub(super) seqs: usize,
}

impl TableLayout {
    pub(super) fn query_start(&self) -> usize {
        0
    }

    pub(super) fn page_start(&self) -> usize {
        self.seqs + 1
    }

    pub(super) fn last_page_len(&self) -> usize {
        2 * (self.seqs + 1)
    }

    pub(super) fn page_indices(&self) -> usize {
        3 * (self.seqs + 1)
    }

    /// Writes the tables. `tables` must have room for all of them.
    pub(super) fn fill<'a>(
        &self,
        tables: &mut [u32],
        meta: &AttentionMetadata,
        block_tables: impl Iterator<Item = &'a [u32]>,
        block_size: usize,
    ) {
        tables[..=self.seqs].copy_from_slice(&meta.query_start);
        let mut page = 0;
        tables[self.page_start()] = 0;
        for (seq, block_table) in block_tables.enumerate() {
            tables[self.page_indices() + page..][..block_table.len()].copy_from_slice(block_table);
            page += block_table.len();
            tables[self.page_start() + seq + 1] = page as u32;
            // FlashInfer derives a sequence's length from its pages and this number.
            tables[self.last_page_len() + seq] =
                last_page_len(meta.context_len[seq] as usize, block_size) as u32;
        }
    }
}

/// Number of positions in the last block of a sequence: 1 to `block_size`, or 0 for an empty sequence.
fn last_page_len(context_len: usize, block_size: usize) -> usize {
    match context_len {
        0 => 0,
        len => (len - 1) % block_size + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_lie_one_after_the_other() {
        let meta = AttentionMetadata {
            query_start: vec![0, 1, 4],
            context_len: vec![17, 16],
            block_tables: vec![5, 3, 9, 0],
            max_blocks: 2,
            mutual: Vec::new(),
        };
        let layout = TableLayout { seqs: 2 };
        let mut tables = [77; 13];
        layout.fill(&mut tables, &meta, [&[5, 3][..], &[9]].into_iter(), 16);
        // 77 stands for words that nothing writes: `last_page_len` has one entry fewer than its room.
        assert_eq!(tables, [0, 1, 4, 0, 2, 3, 1, 16, 77, 5, 3, 9, 77]);
    }

    #[test]
    fn the_last_page_is_never_empty() {
        for (context_len, expected) in [(0, 0), (1, 1), (15, 15), (16, 16), (17, 1), (32, 16)] {
            assert_eq!(last_page_len(context_len, 16), expected, "{context_len}");
        }
    }
}
