//! Matrices that are stored as numbers and kept as codes.

use candlepower_packing::{Codes, Dtype, MinForm, Packed, ScaleForm};
use serde::{Deserialize, Serialize};

use crate::choice::Choice;
use crate::weights::{Slot, TensorPlan};

/// Columns that share a scale, as in GGUF's blocks.
const GROUP: usize = 32;

/// What the matrices of a checkpoint that is not quantized become while they are loaded: of each output, groups of 32 inputs. The
/// embedding, the routers of experts and what steers the states of delta nets, a matrix of its own, stay as they are stored, but for an embedding that is the head, too, and for
/// the vectors that tokens have for each layer, which are most of what such a model stores.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoad {
    /// Codes of eight bits with a scale, the numbers of GGUF's Q8_0.
    Int8,
    /// Codes of four bits with a scale and a minimum, the numbers of GGUF's Q4_1; of head and embeddings as [`Self::Int8`].
    Int4,
}

impl OnLoad {
    /// The code of [`Self::Int8`] that means zero.
    pub const ZERO_POINT: u8 = 128;
    /// The values of `--quantize-on-load`.
    pub const CHOICES: [Choice<Self>; 2] = [
        Choice::new(Self::Int8, Self::Int8.as_str(), "Codes of eight bits"),
        Choice::new(Self::Int4, Self::Int4.as_str(), "Codes of four bits, of the head eight"),
    ];

    /// Its name, as settings have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// What becomes of a planned tensor; `None` where it stays as it is. `tied` says that the head is the embedding.
    pub(crate) fn of(self, tensor: &TensorPlan, tied: bool) -> Option<Self> {
        // Vectors have none.
        tensor.columns()?;
        match tensor.slots.first()?.slot {
            Slot::Positions | Slot::Router | Slot::SharedScore => None,
            // A number for each head: hardly any memory, and what is kept of a sequence hangs on them.
            Slot::RecurrentBeta | Slot::RecurrentDecay => None,
            slot if slot.is_of_heads() => None,
            Slot::PerLayerEmbed => Some(Self::Int8),
            Slot::Embed => tied.then_some(Self::Int8),
            Slot::Head => Some(Self::Int8),
            _ => Some(self),
        }
    }

    /// How such a matrix is kept.
    pub fn packed(self) -> Packed {
        let (codes, mins) = match self {
            Self::Int8 => (Codes::U8, MinForm::ZeroPoint(Self::ZERO_POINT)),
            Self::Int4 => (Codes::U4, MinForm::Own),
        };
        let scales = ScaleForm { dtype: Dtype::F16, mins, blocks: None };
        Packed { scales, ..Packed::by_group(codes, GROUP) }
    }
}
