//! Bytes and work of a tower.

use candlepower_layout::{Dtype, MatrixForm, PATCH_KEYS, PATCH_QUERIES};

use super::{PatchLimit, PatchPositions, VisionSlot, VisionSpec, pieces::PIECE_ROWS};
use crate::{
    memory::{DeviceKind, ImageMemory, MemoryRequest},
    slot::Slot,
    spec::{FfnSpec, ModelSpec},
};

/// Threads that the estimate of attention counts at most.
const MAX_THREADS: usize = 8;
/// Intermediate results are single precision.
const VALUE_BYTES: u64 = 4;

impl VisionSpec {
    /// Bytes of the weights as loaded, with matrices in `dtype`. Norms, biases and positions are always F32.
    pub fn weight_bytes(&self, dtype: Dtype) -> u64 {
        let mut bytes = 0;
        let mut fused = Vec::new();
        for tensor in self.tensors() {
            let &[rows, columns] = tensor.shape.as_slice() else {
                bytes += tensor.shape.iter().product::<usize>() * Dtype::F32.size();
                continue;
            };
            match tensor.slot {
                VisionSlot::Positions => bytes += rows * columns * Dtype::F32.size(),
                // Matrices of the same input are one.
                VisionSlot::Q | VisionSlot::Gate => fused.push((rows, columns)),
                VisionSlot::K | VisionSlot::V => grow(&mut fused, rows),
                VisionSlot::Up if self.layer.gated => grow(&mut fused, rows),
                _ => bytes += MatrixForm::Plain.bytes(rows, columns, dtype),
            }
        }
        let matrices =
            fused.into_iter().map(|(rows, columns)| MatrixForm::Plain.bytes(rows, columns, dtype));
        (bytes + matrices.sum::<usize>()) as u64
    }

    /// Count of all weights.
    pub fn num_parameters(&self) -> u64 {
        self.tensors().iter().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum()
    }

    /// Most patches of a picture.
    pub fn most_patches(&self) -> usize {
        match self.patches.limit {
            PatchLimit::PerSide(side) => side * side,
            PatchLimit::PerImage(patches) => patches,
        }
    }

    /// Bytes of an embedding, which is kept as many times as the decoder adds something for it.
    pub fn embedding_bytes(&self) -> u64 {
        (1 + self.deepstack.len()) as u64 * self.projector.hidden_size as u64 * VALUE_BYTES
    }

    /// Most patches of a picture whose embeddings fit a context of `tokens` tokens.
    pub fn most_patches_within(&self, tokens: usize) -> usize {
        let cell = self.merger.side * self.merger.side;
        self.most_patches().min(tokens.saturating_mul(cell))
    }

    /// Bytes of the intermediate results of one run over a picture of `patches` patches, at most, with matrices in `dtype`.
    pub fn activation_bytes(&self, patches: usize, dtype: Dtype) -> u64 {
        let layer = &self.layer;
        let attended = layer.heads * layer.head_dim;
        let rope = match self.patches.positions {
            PatchPositions::Rope { .. } | PatchPositions::TableAndRope { .. } => layer.head_dim,
            PatchPositions::Table { .. } => 0,
        };
        let pixels = self.patches.values();
        // A layer's input and output, with queries, keys and values; or the pixels.
        let whole = patches * (rope + self.width + (3 * attended + self.width).max(pixels));
        // Rows are computed in groups.
        let inner = if layer.gated { 3 * layer.inner } else { 2 * layer.inner };
        let cell = self.merger.side * self.merger.side;
        let merged = self.width * cell;
        let inner_of_projector = self.projector.between.map_or(0, |between| between.inner);
        let row = (self.width + 6 * attended)
            .max(attended + 5 * self.width + inner)
            .max(pixels + 2 * self.width)
            // A row is a patch before it is merged, and a cell afterwards.
            .max(
                3 * self.width
                    + (2 * merged + 2 * inner_of_projector + self.projector.hidden_size) / cell,
            );
        let groups = patches.min(PIECE_ROWS) * row;
        let output = patches / cell * (1 + self.deepstack.len()) * self.projector.hidden_size;
        (whole + groups + output) as u64 * VALUE_BYTES + self.attention_bytes(patches, dtype)
    }

    /// Bytes of the keys and values of all heads, and of what threads compute of a group of queries.
    fn attention_bytes(&self, patches: usize, dtype: Dtype) -> u64 {
        let dtype = if dtype == Dtype::Bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let dim = self.layer.head_dim;
        // Keys and values are packed. Their rows and columns are padded to sixteen at most.
        let padded = |count: usize| count.next_multiple_of(16);
        let operands = 2 * self.layer.heads * padded(dim) * padded(patches);
        let (queries, keys) = (PATCH_QUERIES.min(patches), PATCH_KEYS.min(patches));
        // Scores, and their packed form for the product with values; queries, their packed form, mixtures and those of a group
        // of keys.
        let scores = MatrixForm::Plain.bytes(queries, keys, Dtype::F32)
            + MatrixForm::Plain.bytes(queries, keys, dtype);
        let of_heads = MatrixForm::Plain.bytes(queries, dim, dtype)
            + 3 * MatrixForm::Plain.bytes(queries, dim, Dtype::F32);
        let threads = MAX_THREADS * (scores + of_heads);
        (operands * Dtype::F32.size() + threads) as u64
    }

    /// Multiply-adds of a run over a resized picture of `width` x `height` pixels.
    pub(super) fn work(&self, width: u32, height: u32) -> f64 {
        let (rows, columns) = self.patch_grid(width, height);
        let patches = rows as f64 * columns as f64;
        let cells = patches / (self.merger.side * self.merger.side) as f64;
        let mut work = 0.0;
        for tensor in self.tensors() {
            let &[rows, columns] = tensor.shape.as_slice() else { continue };
            let vectors = match tensor.slot {
                VisionSlot::Positions => continue,
                VisionSlot::Merge
                | VisionSlot::ProjectorIn
                | VisionSlot::ProjectorOut
                | VisionSlot::DeepstackIn
                | VisionSlot::DeepstackOut => cells,
                _ => patches,
            };
            work += vectors * rows as f64 * columns as f64;
        }
        let attended = (self.layer.heads * self.layer.head_dim) as f64;
        work + self.layers as f64 * 2.0 * patches * patches * attended
    }
}

fn grow(fused: &mut [(usize, usize)], rows: usize) {
    let (fused_rows, _) = fused.last_mut().expect("queries and gates come first");
    *fused_rows += rows;
}

/// Memory for images of one rank; nothing where the model takes none.
#[derive(Default)]
pub(crate) struct TowerMemory {
    pub(crate) weights_bytes: u64,
    /// Intermediate results of one run over the largest picture.
    pub(crate) activation_bytes: u64,
    /// Waiting images and kept embeddings.
    pub(crate) image_bytes: u64,
}

impl ModelSpec {
    /// Towers run on the CPU alone, and each rank has the whole tower.
    pub(crate) fn tower_memory(&self, request: &MemoryRequest) -> TowerMemory {
        let (Some(tower), DeviceKind::Cpu) = (&self.vision, request.memory.device) else {
            return TowerMemory::default();
        };
        let ImageMemory { waiting_bytes, encoder_cache_bytes } = request.images;
        let embeddings = (encoder_cache_bytes / tower.embedding_bytes()) as usize;
        let patches = tower.most_patches_within(request.max_model_len.min(embeddings));
        TowerMemory {
            weights_bytes: tower.weight_bytes(request.weights),
            activation_bytes: tower.activation_bytes(patches, request.weights),
            image_bytes: waiting_bytes
                .div_ceil(request.tensor_parallel_size as u64)
                .saturating_add(encoder_cache_bytes),
        }
    }

    /// Multiply-adds of the layers' matrices for one token. Only the chosen ones of routed experts count.
    pub(super) fn token_work(&self) -> f64 {
        let work = self.slots().map(|(layer, slot, shape)| {
            let is_table =
                matches!(slot, Slot::Embed | Slot::Positions | Slot::PerLayerEmbed | Slot::Head);
            let is_chosen = slot.expert().is_none_or(|expert| {
                match layer.map(|layer| &self.layers[layer].ffn) {
                    Some(FfnSpec::Experts(experts)) => expert < experts.top_k,
                    _ => true,
                }
            });
            match shape.as_slice() {
                [rows, columns] if !is_table && is_chosen => *rows as f64 * *columns as f64,
                _ => 0.0,
            }
        });
        work.sum::<f64>().max(1.0)
    }
}
