//! The recurrence of one head, in columns of its state: each depends on no other, so a few of them stay in the first-level cache
//! while many tokens go over them.

use crate::simd::{LANES, Simd};

/// From so many tokens on, columns are worth a copy to where they lie together.
const MANY_TOKENS: usize = 4;

/// Some tokens of one head that follow each other.
pub(super) struct Tokens<'a> {
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    /// What is added to the state is what the value differs by from what it knows of the key, not the value itself.
    pub(super) corrects: bool,
    /// `[tokens]`: what the state is multiplied by before each, and how much of what is added counts.
    pub(super) factors: &'a [(f32, f32)],
    /// `[tokens, key_dim]`, at least; likewise below.
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    /// `[tokens, value_dim]`, at least.
    pub(super) v: &'a [f32],
    /// `[tokens, value_dim]`, at least: `S^T q` of each.
    pub(super) out: &'a mut [f32],
}

impl Tokens<'_> {
    /// Lets all of them change the state `matrix`, `[key_dim, value_dim]`. `block` is room for some of its columns:
    /// [`block_len`] numbers.
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
            // SAFETY: the columns from `first` on are as many as there are vectors left; `run` has checked the lengths.
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

    /// [`Self::columns`] of rows that are `value_dim` numbers apart, in a copy where they lie together.
    ///
    /// # Safety
    /// As there; and `block` holds `V` vectors of each row.
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

    /// All tokens over `V` vectors of columns, the first of which is vector `first` of the values. Sums go over the keys in their
    /// order, whatever `V` is. Answers `V`.
    ///
    /// # Safety
    /// `matrix` and the distance of its rows: `key_dim` rows of `V` vectors that nobody else uses. The values have so many vectors,
    /// and all slices are as long as this struct says.
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
            // S^T k of the next token, but for what that multiplies S by.
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
                    let new = if CORRECTS { s.sub(v, s.mul(known[j], decay)) } else { v };
                    *delta = s.mul(new, beta);
                }
                let q = self.q.as_ptr().add(token * key_dim);
                let k = self.k.as_ptr().add(token * key_dim);
                let mut sums = [zero; V];
                known = [zero; V];
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

/// Numbers of a block of columns of a state with keys of `key_dim` elements.
pub(super) fn block_len(key_dim: usize) -> usize {
    2 * LANES * key_dim
}
