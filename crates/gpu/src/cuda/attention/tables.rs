//! The tables of a step that FlashInfer reads: where the queries and pages of each sequence begin, and the page
//! indices.

use candlepower_kernels::AttentionMetadata;

/// Offsets of the tables of some sequences in one array of u32.
#[derive(Clone, Copy)]
pub(super) struct TableLayout {
    /// Where the tables begin.
    pub(super) first: usize,
    pub(super) seqs: usize,
}

impl TableLayout {
    pub(super) fn query_start(&self) -> usize {
        self.first
    }

    pub(super) fn page_start(&self) -> usize {
        self.first + self.seqs + 1
    }

    pub(super) fn last_page_len(&self) -> usize {
        self.first + 2 * (self.seqs + 1)
    }

    pub(super) fn page_indices(&self) -> usize {
        self.first + 3 * (self.seqs + 1)
    }

    /// Writes the tables of the step's sequences from `first_seq` on, and returns where they end. `tables` must have room
    /// for all of them.
    pub(super) fn fill<'a>(
        &self,
        tables: &mut [u32],
        meta: &AttentionMetadata,
        first_seq: usize,
        block_tables: impl Iterator<Item = &'a [u32]>,
        block_size: usize,
    ) -> usize {
        let starts = &meta.query_start[first_seq..=first_seq + self.seqs];
        for (table, start) in tables[self.query_start()..].iter_mut().zip(starts) {
            *table = start - starts[0];
        }
        let mut page = 0;
        tables[self.page_start()] = 0;
        for (seq, block_table) in block_tables.enumerate() {
            tables[self.page_indices() + page..][..block_table.len()].copy_from_slice(block_table);
            page += block_table.len();
            tables[self.page_start() + seq + 1] = page as u32;
            // FlashInfer derives a sequence's length from its pages and this number.
            tables[self.last_page_len() + seq] =
                last_page_len(meta.context_len[first_seq + seq] as usize, block_size) as u32;
        }
        self.page_indices() + page
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
        let layout = TableLayout { first: 0, seqs: 2 };
        let mut tables = [77; 13];
        let end = layout.fill(&mut tables, &meta, 0, [&[5, 3][..], &[9]].into_iter(), 16);
        // 77 stands for words that nothing writes: `last_page_len` has one entry fewer than its room.
        assert_eq!(tables, [0, 1, 4, 0, 2, 3, 1, 16, 77, 5, 3, 9, 77]);
        assert_eq!(end, 12);
        // The second sequence alone, behind other tables.
        let layout = TableLayout { first: 2, seqs: 1 };
        let mut tables = [77; 10];
        assert_eq!(layout.fill(&mut tables, &meta, 1, [&[9][..]].into_iter(), 16), 9);
        assert_eq!(tables, [77, 77, 0, 3, 0, 1, 16, 77, 9, 77]);
    }

    #[test]
    fn the_last_page_is_never_empty() {
        for (context_len, expected) in [(0, 0), (1, 1), (15, 15), (16, 16), (17, 1), (32, 16)] {
            assert_eq!(last_page_len(context_len, 16), expected, "{context_len}");
        }
    }
}
