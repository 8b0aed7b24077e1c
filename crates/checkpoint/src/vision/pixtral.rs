//! The tower of Pixtral, and what Mistral 3 has around it. Source: transformers `models/pixtral`, `models/mistral3`.

use candlepower_media::Family;

use super::{
    Between, ImageGrid, ImageTokens, MergeKind, MergerSpec, PatchLimit, PatchOrder, PatchPositions,
    PatchSpec, ProjectorSpec, TokenTexts, TowerLayerSpec, VisionRule, VisionSlot, VisionSource,
    VisionSpec, WrittenImage,
    read::{TowerSizes, axial_theta},
    weights::rule,
};
use crate::{
    error::Result,
    spec::{NormKind, NormSpec, activation_of},
};

/// Source: transformers `PixtralVisionConfig`.
const DEFAULTS: [(&str, usize); 6] = [
    ("hidden_size", 1024),
    ("intermediate_size", 4096),
    ("num_hidden_layers", 24),
    ("num_attention_heads", 16),
    ("image_size", 1024),
    ("patch_size", 16),
];

/// The norms of the tower have no setting for this.
const NORM_EPS: f64 = 1e-5;
/// Id of `[IMG]` in the vocabularies of Mistral.
const IMAGE_TOKEN: u32 = 10;

const RULES: &[VisionRule] = &[
    rule(VisionSlot::Patch, "vision_tower.patch_conv.weight"),
    rule(VisionSlot::FirstNorm, "vision_tower.ln_pre.weight"),
    rule(VisionSlot::AttnNorm, "vision_tower.transformer.layers.{i}.attention_norm.weight"),
    rule(VisionSlot::Q, "vision_tower.transformer.layers.{i}.attention.q_proj.weight"),
    rule(VisionSlot::K, "vision_tower.transformer.layers.{i}.attention.k_proj.weight"),
    rule(VisionSlot::V, "vision_tower.transformer.layers.{i}.attention.v_proj.weight"),
    rule(VisionSlot::O, "vision_tower.transformer.layers.{i}.attention.o_proj.weight"),
    rule(VisionSlot::FfnNorm, "vision_tower.transformer.layers.{i}.ffn_norm.weight"),
    rule(VisionSlot::Gate, "vision_tower.transformer.layers.{i}.feed_forward.gate_proj.weight"),
    rule(VisionSlot::Up, "vision_tower.transformer.layers.{i}.feed_forward.up_proj.weight"),
    rule(VisionSlot::Down, "vision_tower.transformer.layers.{i}.feed_forward.down_proj.weight"),
    rule(VisionSlot::LastNorm, "multi_modal_projector.norm.weight"),
    rule(VisionSlot::Merge, "multi_modal_projector.patch_merger.merging_layer.weight"),
    rule(VisionSlot::ProjectorIn, "multi_modal_projector.linear_1.weight"),
    rule(VisionSlot::ProjectorInBias, "multi_modal_projector.linear_1.bias"),
    rule(VisionSlot::ProjectorOut, "multi_modal_projector.linear_2.weight"),
    rule(VisionSlot::ProjectorOutBias, "multi_modal_projector.linear_2.bias"),
];

/// Mistral Small 3.1 and later, and Ministral 3.
pub(crate) fn mistral3(source: &VisionSource<'_>) -> Result<VisionSpec> {
    let config = source.config;
    source.check_kind(&["pixtral"])?;
    let tower = source.with_defaults(&DEFAULTS);
    let sizes = TowerSizes::read(&tower, "gelu")?;
    sizes.check_axial(&tower)?;
    let side = source.merge_side(2)?;
    let norm = NormSpec { kind: NormKind::Rms, eps: NORM_EPS };
    Ok(VisionSpec {
        family: Family::Pixtral,
        tokens: ImageTokens {
            placeholder: source.token_id(["image_token_index", "image_token_id"], IMAGE_TOKEN)?,
            written: WrittenImage::Placeholder,
            grid: ImageGrid::Cells {
                cell: (sizes.patch * side) as u32,
                row_end: None,
                image_end: None,
            },
        },
        token_texts: Some(TokenTexts {
            placeholder: source.token_text("image_token", "[IMG]")?,
            row_end: source.token_text("image_break_token", "[IMG_BREAK]")?,
            image_end: source.token_text("image_end_token", "[IMG_END]")?,
        }),
        both_ways: false,
        grid_positions: false,
        layers: source.layers_in_use(sizes.layers)?,
        stored_layers: sizes.layers,
        width: sizes.width,
        patches: PatchSpec {
            size: sizes.patch,
            order: PatchOrder::Rows,
            limit: PatchLimit::PerSide(sizes.most_patches(&tower)?),
            bias: false,
            positions: PatchPositions::Rope { theta: axial_theta(&tower)? },
        },
        first_norm: Some(norm),
        layer: TowerLayerSpec {
            norm,
            heads: sizes.heads,
            head_dim: sizes.head_dim(),
            fused_qkv: false,
            attention_bias: false,
            inner: sizes.inner,
            act: sizes.act,
            gated: true,
            mlp_bias: false,
        },
        // The projector begins with a norm of the patches, with the decoder's number.
        last_norm: Some(NormSpec { kind: NormKind::Rms, eps: source.decoder.final_norm.eps }),
        merger: MergerSpec { side, kind: MergeKind::Matrix, norm: None },
        projector: ProjectorSpec {
            hidden_size: source.decoder.hidden_size,
            between: Some(Between {
                inner: source.decoder.hidden_size,
                act: activation_of(
                    &config.with_default("projector_hidden_act", "gelu"),
                    "projector_hidden_act",
                )?,
            }),
            bias: config.flag_or("multimodal_projector_bias", false)?,
        },
        deepstack: Vec::new(),
        rules: RULES,
    })
}
