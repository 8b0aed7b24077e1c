//! Norms that the next product computes: see [`Matmul::takes_norm`](candlepower_gpu::Matmul::takes_norm).
//!
//! `Ops::add_norm` then launches nothing. It notes its operands, and the product by the only reader takes them. The sum lies
//! in the other part of the residual's buffer, because all blocks of that product read the residual.

use std::cell::{Cell, RefCell};

use candle_core::{Tensor, TensorId};
use candlepower_gpu::{NormWeight, NormedRows, RmsNorm};

use super::{DeviceOps, generations::Region};
use crate::{error::Result, norm::Norm};

/// A norm that is not computed yet, with its operands.
struct Deferred {
    /// The result, which only its reader knows how to compute.
    normed: TensorId,
    residual: Tensor,
    x: Tensor,
    sum: Tensor,
    scale: f32,
    weight: Tensor,
    form: NormWeight,
    eps: f32,
}

/// The norm of a step that is not computed yet, if there is one, and the part of the buffer that has the residual.
#[derive(Default)]
pub(super) struct DeferredNorm {
    norm: RefCell<Option<Deferred>>,
    /// Whether the residual lies behind the first `tokens * hidden` elements of its buffer.
    is_behind: Cell<bool>,
}

/// The operands of a norm that a product computes.
pub(super) struct OwnedRows(Deferred);

impl OwnedRows {
    pub(super) fn rows(&self) -> NormedRows<'_> {
        let Deferred { residual, x, sum, scale, weight, form, eps, .. } = &self.0;
        let norm = RmsNorm { weight, form: *form, eps: *eps, next: None };
        NormedRows { residual, x, sum, scale: *scale, norm }
    }
}

impl DeviceOps<'_> {
    /// Whether the residual's buffer has room for a second residual.
    pub(super) fn has_second_residual(&self) -> bool {
        self.workspace.residual.elem_count() >= 2 * self.tokens * self.hidden
    }

    /// Notes `(residual + x) * scale` and its norm for the next product. Returns both, of which only the sum may have other
    /// readers, after that product.
    pub(super) fn defer_norm(
        &self,
        residual: Tensor,
        x: &Tensor,
        scale: f32,
        (norm, form): (&Norm, NormWeight),
    ) -> Result<(Tensor, Tensor)> {
        self.read(&[&residual, x]);
        let is_behind = !self.deferred.is_behind.get();
        self.deferred.is_behind.set(is_behind);
        let count = self.tokens * self.hidden;
        let first = if is_behind { count } else { 0 };
        let sum = self.workspace.residual.narrow(0, first, count)?;
        let sum = sum.reshape((self.tokens, self.hidden))?;
        self.workspace.generations.write(Region::Residual, &sum);
        let normed = self.rows(Region::Normed, self.hidden)?;
        let deferred = Deferred {
            normed: normed.id(),
            residual,
            x: x.clone(),
            sum: sum.clone(),
            scale,
            weight: norm.weight.clone(),
            form,
            eps: norm.eps,
        };
        let before = self.deferred.norm.replace(Some(deferred));
        assert!(before.is_none(), "a norm is computed before the next one");
        Ok((sum, normed))
    }

    /// The operands of the norm that gives `x`, if it is not computed yet.
    pub(super) fn take_deferred(&self, x: &Tensor) -> Option<OwnedRows> {
        let deferred = self.deferred.norm.borrow_mut().take_if(|norm| norm.normed == x.id())?;
        self.read(&[&deferred.x]);
        Some(OwnedRows(deferred))
    }

    /// Checks that no operand waits for a norm. The walk gives a norm's result to its reader alone, so it cannot fail.
    pub(super) fn expect_computed(&self, operands: &[&Tensor]) {
        if let Some(deferred) = &*self.deferred.norm.borrow() {
            let waits = |x: &&Tensor| x.id() == deferred.normed || x.id() == deferred.sum.id();
            assert!(!operands.iter().any(waits), "an operation reads a norm before its reader");
        }
    }
}
