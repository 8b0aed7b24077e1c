//! The check of results in buffers, in debug builds: no operation reads a result whose buffer was written again.
//!
//! Every write to a buffer begins a new generation of it. A tensor is valid while its generation is the buffer's newest.

use std::{cell::RefCell, collections::HashMap};

use candle_core::{Tensor, TensorId};

use crate::{error::Result, ops::Buffer};

/// A buffer of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Region {
    /// The residual.
    Residual,
    /// Normed rows.
    Normed,
    /// Per-layer embeddings.
    PerLayer,
    /// Rows in FP8, in the buffer of all products in FP8.
    Fp8,
    /// A buffer that the walk over the layers chooses.
    Of(Buffer),
}

/// The generations of all buffers, and the results of the step. Without debug assertions it does nothing.
#[derive(Default)]
pub(super) struct Generations(RefCell<State>);

#[derive(Default)]
struct State {
    newest: HashMap<Region, u64>,
    /// The buffer and the generation of each result.
    results: HashMap<TensorId, (Region, u64)>,
}

impl State {
    fn write(&mut self, region: Region, result: &Tensor) {
        let newest = self.newest.entry(region).or_default();
        *newest += 1;
        self.results.insert(result.id(), (region, *newest));
    }
}

impl Generations {
    /// Forgets the results of the step before.
    pub(super) fn begin_step(&self) {
        // Tensors' ids are unique in the process, so a result of an earlier step would only be kept in vain.
        if cfg!(debug_assertions) {
            self.0.borrow_mut().results.clear();
        }
    }

    /// Begins a generation of a buffer, whose content is `result`.
    pub(super) fn write(&self, region: Region, result: &Tensor) {
        if cfg!(debug_assertions) {
            self.0.borrow_mut().write(region, result);
        }
    }

    /// Begins a generation of a buffer, whose content is no result of an operation.
    pub(super) fn overwrite(&self, region: Region) {
        if cfg!(debug_assertions) {
            *self.0.borrow_mut().newest.entry(region).or_default() += 1;
        }
    }

    /// Begins a generation of the buffer of `x`, which an operation has changed in place. Earlier tensors of this buffer are stale after
    /// that, clones of `x` included: only the returned one is valid.
    pub(super) fn rewrite(&self, x: Tensor) -> Result<Tensor> {
        if !cfg!(debug_assertions) {
            return Ok(x);
        }
        // Candle gives the reshaped tensor an id of its own.
        let result = x.reshape(x.shape())?;
        let mut state = self.0.borrow_mut();
        if let Some(&(region, _)) = state.results.get(&x.id()) {
            state.write(region, &result);
        }
        Ok(result)
    }

    /// Checks the operands of an operation. It is called after the operation has taken the buffers of its results, so an operand in one
    /// of these fails, too. Weights and inputs of the step have no generation.
    ///
    /// # Panics
    /// The buffer of an operand was written again.
    pub(super) fn read(&self, operands: &[&Tensor]) {
        if !cfg!(debug_assertions) {
            return;
        }
        let state = self.0.borrow();
        for operand in operands {
            if let Some((region, generation)) = state.results.get(&operand.id()) {
                let newest = state.newest[region];
                assert!(
                    *generation == newest,
                    "generation {generation} of the buffer {region:?} is read, which was written again: it has generation {newest}"
                );
            }
        }
    }
}
