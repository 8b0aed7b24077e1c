//! The tower SigLIP, and what Gemma 3 has around it. Source: transformers `models/siglip`, `models/gemma3`.

use candlepower_media::Family;

use super::{
    ImageGrid, ImageTokens, MergeKind, MergerSpec, PatchLimit, PatchOrder, PatchPositions,
    PatchSpec, ProjectorSpec, TowerLayerSpec, VisionRule, VisionSlot, VisionSource, VisionSpec,
    WrittenImage,
    read::TowerSizes,
    weights::{rule, transposed},
};
use crate::{
    error::Result,
    spec::{NormKind, NormSpec},
};

/// Source: transformers `SiglipVisionConfig`.
const DEFAULTS: [(&str, usize); 6] = [
    ("hidden_size", 768),
    ("intermediate_size", 3072),
    ("num_hidden_layers", 12),
    ("num_attention_heads", 12),
    ("image_size", 224),
    ("patch_size", 16),
];

/// Source: transformers `Gemma3Config`.
const BEGIN_TOKEN: u32 = 255_999;
const END_TOKEN: u32 = 256_000;
const IMAGE_TOKEN: u32 = 262_144;
const TOKENS: usize = 256;
/// Most tokens of an image.
const MAX_TOKENS: usize = 1 << 20;

const RULES: &[VisionRule] = &[
    rule(VisionSlot::Patch, "vision_tower.embeddings.patch_embedding.weight"),
    rule(VisionSlot::PatchBias, "vision_tower.embeddings.patch_embedding.bias"),
    rule(VisionSlot::Positions, "vision_tower.embeddings.position_embedding.weight"),
    rule(VisionSlot::AttnNorm, "vision_tower.encoder.layers.{i}.layer_norm1.weight"),
    rule(VisionSlot::AttnNormBias, "vision_tower.encoder.layers.{i}.layer_norm1.bias"),
    rule(VisionSlot::Q, "vision_tower.encoder.layers.{i}.self_attn.q_proj.weight"),
    rule(VisionSlot::K, "vision_tower.encoder.layers.{i}.self_attn.k_proj.weight"),
    rule(VisionSlot::V, "vision_tower.encoder.layers.{i}.self_attn.v_proj.weight"),
    rule(VisionSlot::QBias, "vision_tower.encoder.layers.{i}.self_attn.q_proj.bias"),
    rule(VisionSlot::KBias, "vision_tower.encoder.layers.{i}.self_attn.k_proj.bias"),
    rule(VisionSlot::VBias, "vision_tower.encoder.layers.{i}.self_attn.v_proj.bias"),
    rule(VisionSlot::O, "vision_tower.encoder.layers.{i}.self_attn.out_proj.weight"),
    rule(VisionSlot::OBias, "vision_tower.encoder.layers.{i}.self_attn.out_proj.bias"),
    rule(VisionSlot::FfnNorm, "vision_tower.encoder.layers.{i}.layer_norm2.weight"),
    rule(VisionSlot::FfnNormBias, "vision_tower.encoder.layers.{i}.layer_norm2.bias"),
    rule(VisionSlot::Up, "vision_tower.encoder.layers.{i}.mlp.fc1.weight"),
    rule(VisionSlot::UpBias, "vision_tower.encoder.layers.{i}.mlp.fc1.bias"),
    rule(VisionSlot::Down, "vision_tower.encoder.layers.{i}.mlp.fc2.weight"),
    rule(VisionSlot::DownBias, "vision_tower.encoder.layers.{i}.mlp.fc2.bias"),
    rule(VisionSlot::LastNorm, "vision_tower.post_layernorm.weight"),
    rule(VisionSlot::LastNormBias, "vision_tower.post_layernorm.bias"),
    rule(VisionSlot::MergedNorm, "multi_modal_projector.mm_soft_emb_norm.weight"),
    transposed(VisionSlot::ProjectorIn, "multi_modal_projector.mm_input_projection_weight"),
];

/// Gemma 3, whose images have one size and as many tokens each.
pub(crate) fn gemma3(source: &VisionSource<'_>) -> Result<VisionSpec> {
    let config = source.config;
    source.check_kind(&["siglip_vision_model"])?;
    let tower = source.with_defaults(&DEFAULTS);
    let sizes = TowerSizes::read(&tower, "gelu_pytorch_tanh")?;
    let most_patches = sizes.most_patches(&tower)?;
    let count = config.bounded_opt("mm_tokens_per_image", MAX_TOKENS)?.unwrap_or(TOKENS);
    let tokens = count.isqrt();
    if tokens * tokens != count || !most_patches.is_multiple_of(tokens) {
        let hint = "; the square of a divisor of the patches in a side is";
        return Err(config.unsupported("mm_tokens_per_image", &count.into(), hint));
    }
    let eps = tower.float_opt("layer_norm_eps")?.unwrap_or(1e-6);
    let norm = NormSpec { kind: NormKind::Layer { bias: true }, eps };
    Ok(VisionSpec {
        family: Family::Gemma3,
        tokens: ImageTokens {
            placeholder: source.token_id(["image_token_index", "image_token_id"], IMAGE_TOKEN)?,
            written: WrittenImage::Begin {
                begin: source.token_id(["boi_token_index", "boi_token_id"], BEGIN_TOKEN)?,
                end: source.token_id(["eoi_token_index", "eoi_token_id"], END_TOKEN)?,
            },
            grid: ImageGrid::Fixed(count),
        },
        token_texts: None,
        both_ways: true,
        grid_positions: false,
        layers: sizes.layers,
        stored_layers: sizes.layers,
        width: sizes.width,
        patches: PatchSpec {
            size: sizes.patch,
            order: PatchOrder::Rows,
            limit: PatchLimit::PerSide(most_patches),
            bias: true,
            positions: PatchPositions::Table { side: most_patches },
        },
        first_norm: None,
        layer: TowerLayerSpec {
            norm,
            heads: sizes.heads,
            head_dim: sizes.head_dim(),
            fused_qkv: false,
            attention_bias: true,
            inner: sizes.inner,
            act: sizes.act,
            gated: false,
            mlp_bias: true,
        },
        last_norm: Some(norm),
        merger: MergerSpec {
            side: most_patches / tokens,
            kind: MergeKind::Mean,
            norm: Some(NormSpec { kind: NormKind::RmsPlusOne, eps }),
        },
        projector: ProjectorSpec {
            hidden_size: source.decoder.hidden_size,
            between: None,
            bias: false,
        },
        deepstack: Vec::new(),
        rules: RULES,
    })
}
