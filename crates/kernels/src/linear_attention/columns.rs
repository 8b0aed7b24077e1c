//! The update of one head's state, in columns. Columns do not depend on each other, so a few of them stay in the
//! first-level cache while many tokens update them.

use crate::simd::{LANES, Simd};

/// From this number of tokens on, columns are copied to a buffer in which they are contiguous.
const MANY_TOKENS: usize = 4;

/// Consecutive tokens of one head.
pub(super) struct Tokens<'a> {
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    /// Whether the state is corrected (delta rule): `v - S^T k` is added to it instead of `v`.
    pub(super) corrects: bool,
    /// For each token the decay, which multiplies the state before it, and the factor of the added value (beta, or
    /// Mamba-2's time step): `[tokens]`.
    pub(super) factors: &'a [(f32, f32)],
    /// Queries, at least `[tokens, key_dim]`; likewise the keys below.
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    /// Values, at least `[tokens, value_dim]`.
    pub(super) v: &'a [f32],
    /// `S^T q` of each token, at least `[tokens, value_dim]`.
    pub(super) out: &'a mut [f32],
}

impl Tokens<'_> {
    /// Updates the state `matrix`, `[key_dim, value_dim]`, with all tokens. `block` is a buffer of [`block_len`]
    /// elements for some of its columns.
    #[inline(always)]
    pub(super) fn run<S: Simd>(mut self, s: S, matrix: &mut [f32], block: &mut [f32]) {
        let Self { key_dim, value_dim, .. } = self;
        let count = self.factors.len();
        assert!(self.q.len() >= count * key_dim && self.k.len() >= count * key_dim);
        assert!(self.v.len() >= count * value_dim && self.out.len() >= count * value_dim);
        assert!(matrix.len() == key_dim * value_dim && block.len() >= block_len(key_dim));
        match self.corrects {
            true => self.all::<S, true>(s, matrix, block),
            false => self.all::<S, false>(s, matrix, block),
        }
    }

    #[inline(always)]
    fn all<S: Simd, const CORRECTS: bool>(&mut self, s: S, matrix: &mut [f32], block: &mut [f32]) {
        let (value_dim, count) = (self.value_dim, self.factors.len());
        let (vectors, wide) = (value_dim / LANES, S::TILE_VECTORS == 2);
        let mut first = 0;
        while first < vectors && count < MANY_TOKENS {
            let at = (matrix[first * LANES..].as_mut_ptr(), value_dim);
            // SAFETY: at least `V` vectors of columns are left from `first` on, and `run` has checked the lengths.
            first += unsafe {
                match vectors - first {
                    8.. if wide => self.columns::<S, 8, CORRECTS>(s, at, first),
                    4.. if wide => self.columns::<S, 4, CORRECTS>(s, at, first),
                    2.. => self.columns::<S, 2, CORRECTS>(s, at, first),
                    _ => self.columns::<S, 1, CORRECTS>(s, at, first),
                }
            };
        }
        while first < vectors {
            let at = matrix[first * LANES..].as_mut_ptr();
            // SAFETY: as above; a block holds two vectors of each row.
            first += unsafe {
                match vectors - first {
                    2.. if wide => self.in_block::<S, 2, CORRECTS>(s, (at, block), first),
                    _ => self.in_block::<S, 1, CORRECTS>(s, (at, block), first),
                }
            };
        }
    }

    /// [`Self::columns`] for rows that are `value_dim` elements apart, in a copy in which they are contiguous.
    ///
    /// # Safety
    /// The contract of [`Self::columns`], and `block` holds `V` vectors of each row.
    #[inline(always)]
    unsafe fn in_block<S: Simd, const V: usize, const CORRECTS: bool>(
        &mut self,
        s: S,
        (matrix, block): (*mut f32, &mut [f32]),
        first: usize,
    ) -> usize {
        let (block, width) = (block.as_mut_ptr(), V * LANES);
        // SAFETY: the caller's promise.
        unsafe {
            for i in 0..self.key_dim {
                for j in 0..V {
                    let number = s.load(matrix.add(i * self.value_dim + j * LANES));
                    s.store(block.add(i * width + j * LANES), number);
                }
            }
            self.columns::<S, V, CORRECTS>(s, (block, width), first);
            for i in 0..self.key_dim {
                for j in 0..V {
                    let number = s.load(block.add(i * width + j * LANES));
                    s.store(matrix.add(i * self.value_dim + j * LANES), number);
                }
            }
        }
        V
    }

    /// Updates `V` vectors of columns with all tokens, starting with vector `first` of the values. Sums go over the
    /// keys in order, for any `V`, so that the width does not change a result's bits. Returns `V`.
    ///
    /// # Safety
    /// `matrix` and the distance of its rows describe `key_dim` rows of `V` vectors that nobody else uses.
    /// The values have at least `first + V` vectors, and all slices have the lengths that this struct documents.
    #[inline(always)]
    unsafe fn columns<S: Simd, const V: usize, const CORRECTS: bool>(
        &mut self,
        s: S,
        (matrix, distance): (*mut f32, usize),
        first: usize,
    ) -> usize {
        let (key_dim, zero) = (self.key_dim, s.splat(0.0));
        // SAFETY: the caller's promise.
        unsafe {
            // S^T k of the next token, before the decay is applied to it.
            let mut known = [zero; V];
            if CORRECTS {
                for i in 0..key_dim {
                    let k = s.splat(*self.k.get_unchecked(i));
                    for (j, known) in known.iter_mut().enumerate() {
                        *known = s.fma(s.load(matrix.add(i * distance + j * LANES)), k, *known);
                    }
                }
            }
            for token in 0..self.factors.len() {
                let (decay, beta) = *self.factors.get_unchecked(token);
                let (decay, beta) = (s.splat(decay), s.splat(beta));
                let place = token * self.value_dim + first * LANES;
                let mut delta = [zero; V];
                for (j, delta) in delta.iter_mut().enumerate() {
                    let v = s.load(self.v.as_ptr().add(place + j * LANES));
                    // The prediction was made before the decay, which is one factor for all of it.
                    let new = if CORRECTS { s.sub(v, s.mul(known[j], decay)) } else { v };
                    *delta = s.mul(new, beta);
                }
                let q = self.q.as_ptr().add(token * key_dim);
                let k = self.k.as_ptr().add(token * key_dim);
                let mut sums = [zero; V];
                known = [zero; V];
                // One pass over the state updates it, and forms the result and the next token's prediction, so it
                // is read once a token.
                if CORRECTS && token + 1 < self.factors.len() {
                    let next = k.add(key_dim);
                    for i in 0..key_dim {
                        let row = matrix.add(i * distance);
                        let (q, k) = (s.splat(*q.add(i)), s.splat(*k.add(i)));
                        let next = s.splat(*next.add(i));
                        for j in 0..V {
                            let at = row.add(j * LANES);
                            let state = s.fma(k, delta[j], s.mul(s.load(at), decay));
                            s.store(at, state);
                            sums[j] = s.fma(state, q, sums[j]);
                            known[j] = s.fma(state, next, known[j]);
                        }
                    }
                } else {
                    for i in 0..key_dim {
                        let row = matrix.add(i * distance);
                        let (q, k) = (s.splat(*q.add(i)), s.splat(*k.add(i)));
                        for j in 0..V {
                            let at = row.add(j * LANES);
                            let state = s.fma(k, delta[j], s.mul(s.load(at), decay));
                            s.store(at, state);
                            sums[j] = s.fma(state, q, sums[j]);
                        }
                    }
                }
                for (j, sum) in sums.into_iter().enumerate() {
                    s.store(self.out.as_mut_ptr().add(place + j * LANES), sum);
                }
            }
        }
        V
    }
}

/// Number of elements of a block of columns of a state with keys of `key_dim` elements.
pub(super) fn block_len(key_dim: usize) -> usize {
    2 * LANES * key_dim
}
