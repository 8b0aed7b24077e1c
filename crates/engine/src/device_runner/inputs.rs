//! The inputs of a step's forward on a device.

use std::ops::Range;

use candle_core::Tensor;
use candlepower_gpu::{Staging, StateTables};
use candlepower_kernels::AttentionMetadata;
use candlepower_models::{DeviceInput, DeviceOutputTokens, WorkspaceSize};

use crate::{
    Result,
    device_tables::{InputTables, Upload},
};

/// The tables of a forward on the device.
pub(super) struct InputViews {
    pub(super) token_ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    /// The logits indices of a decode: 0, 1, 2 .., since every token is an output token.
    pub(super) rows: Tensor,
    /// The first token of each sequence, and the slot of its state, where layers have recurrent states.
    states: Option<(Tensor, Tensor)>,
    /// The output tokens, where not all tokens are.
    output: Option<OutputViews>,
}

/// The output tokens on the device, for [`DeviceOutputTokens`].
struct OutputViews {
    tables: Option<(Tensor, Tensor)>,
    attention: AttentionMetadata,
}

impl InputViews {
    /// Words that the largest step needs, each table from a multiple of four on.
    pub(super) fn capacity(size: &WorkspaceSize) -> usize {
        let of_states = 2 * (size.max_seqs + 1).next_multiple_of(4);
        // Tokens, positions and slots, and the rows and positions of the output tokens.
        5 * size.max_tokens.next_multiple_of(4) + size.max_rows.next_multiple_of(4) + of_states
    }

    /// Uploads the tables of a forward. A decode needs at most `max_rows` logits.
    pub(super) fn upload(
        staging: &mut Staging,
        inputs: &InputTables,
        max_rows: usize,
        has_states: bool,
    ) -> Result<Self> {
        let mut upload = Upload::default();
        let token_ids = upload.push(inputs.token_ids.iter().copied());
        let positions = upload.push(inputs.positions.iter().copied());
        let slots = upload.push(inputs.slots.iter().copied());
        let rows = upload.push(0..inputs.num_tokens().min(max_rows) as u32);
        let states = has_states.then(|| {
            let query_start = upload.push(inputs.attention.query_start.iter().copied());
            (query_start, upload.push(inputs.state_slots.iter().copied()))
        });
        let output = inputs.output.as_ref().map(|output| {
            let rows = upload.push(output.rows.iter().copied());
            (rows, upload.push(output.positions.iter().copied()), output.attention.clone())
        });
        staging.upload(&upload.words)?;
        let view = |range: Range<usize>| staging.view(range.start, &[range.len()]);
        let states = match states {
            Some((query_start, slots)) => Some((view(query_start)?, view(slots)?)),
            None => None,
        };
        let output = match output {
            Some((rows, positions, attention)) => {
                let tables = match rows.is_empty() {
                    true => None,
                    false => Some((view(rows)?, view(positions)?)),
                };
                Some(OutputViews { tables, attention })
            }
            None => None,
        };
        Ok(Self {
            output,
            states,
            token_ids: view(token_ids)?,
            positions: view(positions)?,
            slots: view(slots)?,
            rows: view(rows)?,
        })
    }

    /// The input of the model.
    pub(super) fn input(&self) -> DeviceInput<'_> {
        DeviceInput {
            token_ids: &self.token_ids,
            positions: &self.positions,
            slot_mapping: &self.slots,
            states: self.states.as_ref().map(|(query_start, slots)| StateTables {
                query_start,
                slots,
                positions: &self.positions,
            }),
            output: self.output.as_ref().map(|output| DeviceOutputTokens {
                tables: output.tables.as_ref().map(|(rows, positions)| (rows, positions)),
                attention: &output.attention,
            }),
        }
    }
}
