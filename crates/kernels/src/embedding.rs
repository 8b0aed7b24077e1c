//! Looks up token embeddings in a packed weight, which may also be the output head's.

use candle_core::Tensor;

use crate::tensor::{Operand, from_vec};
use crate::{Error, Result, Weight, parallel};

/// Row `token_ids[t]` of `w` `[vocab, hidden]`, widened to f32 and multiplied by `scale`:
/// `[tokens, hidden]`. `token_ids` is u32 `[tokens]`; `scale` is 1 for most models.
///
/// # Errors
/// `token_ids` is not a contiguous u32 CPU vector, or holds an id that is not a row of `w`.
pub fn embedding(token_ids: &Tensor, w: &Weight, scale: f32) -> Result<Tensor> {
    embedding_part(token_ids, w, scale, VocabPart { first: 0, vocab_size: w.n() })
}

/// Range of the tokens whose rows one shard of an embedding has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocabPart {
    /// Token of the shard's first row.
    pub first: usize,
    /// Number of tokens of the whole embedding.
    pub vocab_size: usize,
}

impl VocabPart {
    /// The range of a whole embedding, which has one row for each token.
    #[must_use]
    pub fn all_rows(rows: usize) -> Self {
        Self { first: 0, vocab_size: rows }
    }

    /// Row of a token in a shard of `rows` rows; `None` if another shard has the token.
    #[must_use]
    pub fn row(self, token: usize, rows: usize) -> Option<usize> {
        token.checked_sub(self.first).filter(|row| *row < rows)
    }
}

/// [`embedding`] for a weight that has the rows of some tokens. The rows of other tokens are zeros in the result, so
/// that the ranks' sum has all of them.
///
/// # Errors
/// The errors of [`embedding`]. An id must be below the size of the whole vocabulary.
pub fn embedding_part(
    token_ids: &Tensor,
    w: &Weight,
    scale: f32,
    part: VocabPart,
) -> Result<Tensor> {
    let token_ids = Operand::new("embedding", "token_ids", token_ids);
    let [tokens] = *token_ids.tensor.dims() else {
        return Err(token_ids.shape_error("[tokens]"));
    };
    let ids = token_ids.u32s()?;
    let ids: &[u32] = &ids;
    let bound = part.vocab_size;
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= bound) {
        return Err(Error::OutOfRange {
            kernel: "embedding",
            index: "token id",
            value: id as usize,
            bound,
        });
    }
    let out = parallel::build_rows(tokens, w.k(), |token, out| {
        let Some(row) = part.row(ids[token] as usize, w.n()) else { return };
        w.read_row(row, out);
        for value in out {
            *value *= scale;
        }
    });
    from_vec(out, &[tokens, w.k()])
}

/// The reference for [`embedding`] over a row-major `table` of `hidden` columns.
#[must_use]
pub fn embedding_reference(
    token_ids: &[u32],
    table: &[f32],
    hidden: usize,
    scale: f32,
) -> Vec<f32> {
    token_ids
        .iter()
        .flat_map(|&id| {
            table[id as usize * hidden..][..hidden].iter().map(move |value| value * scale)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use half::bf16;

    use super::*;
    use crate::WeightRows;

    #[test]
    fn matches_the_definition_and_refuses_unknown_ids() {
        let (vocab, hidden) = (70, 33);
        let table: Vec<f32> =
            (0..vocab * hidden).map(|i| bf16::from_f32((i % 1013) as f32 / 7.0).to_f32()).collect();
        let bytes: Vec<u8> = table.iter().flat_map(|v| v.to_le_bytes()).collect();
        for dtype in [DType::F32, DType::BF16] {
            let mut builder = Weight::builder(vocab, hidden, dtype).unwrap();
            builder.write_rows(0, WeightRows { dtype: DType::F32, bytes: &bytes }).unwrap();
            let w = builder.finish().unwrap();
            let ids = [69u32, 0, 31, 32, 32];
            let at = |ids: &[u32]| Tensor::new(ids, &Device::Cpu).unwrap();
            let got = embedding(&at(&ids), &w, 0.5).unwrap();
            assert_eq!(got.dims(), [5, hidden]);
            let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
            assert_eq!(got, embedding_reference(&ids, &table, hidden, 0.5));
            let error = embedding(&at(&[70]), &w, 1.0).unwrap_err();
            assert!(matches!(
                error,
                Error::OutOfRange { index: "token id", value: 70, bound: 70, .. }
            ));
            let part = VocabPart { first: 30, vocab_size: 100 };
            let got = embedding_part(&at(&[99, 30, 29, 62]), &w, 0.5, part).unwrap();
            let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
            let mut want = embedding_reference(&[69, 0, 0, 32], &table, hidden, 0.5);
            want[2 * hidden..3 * hidden].fill(0.0);
            assert_eq!(got, want, "token 29 is another part's");
            let signed = at(&ids).to_dtype(DType::I64).unwrap();
            assert!(matches!(embedding(&signed, &w, 1.0), Err(Error::DType { .. })));
        }
    }
}
