//! The tower of Qwen3-VL and Qwen3.5. Source: transformers `models/qwen3_vl`, `models/qwen3_vl_moe`, `models/qwen3_5`.

use candlepower_layout::Activation;
use candlepower_media::Family;

use super::{
    Between, ImageGrid, ImageTokens, MergeKind, MergerSpec, PatchLimit, PatchOrder, PatchPositions,
    PatchSpec, ProjectorSpec, TowerLayerSpec, VisionRule, VisionSlot, VisionSource, VisionSpec,
    WrittenImage,
    read::{MAX_MERGED, TowerSizes, axial_theta},
    weights::rule,
};
use crate::{
    config::HfConfig,
    error::Result,
    spec::{MAX_WIDTH, NormKind, NormSpec},
};

/// The differences between the classes.
struct Class {
    /// Names of the tower's kind in published files.
    kinds: &'static [&'static str],
    /// Id of the placeholder, unless the configuration says it.
    image_token: u32,
    /// Layers whose outputs are used, unless the configuration says them.
    deepstack: &'static [usize],
}

const QWEN3_VL: Class = Class {
    kinds: &["qwen3_vl_vision", "qwen3_vl", "qwen3_vl_moe_vision", "qwen3_vl_moe"],
    image_token: 151_655,
    deepstack: &[8, 16, 24],
};

const QWEN3_5: Class = Class {
    kinds: &["qwen3_5_vision", "qwen3_5", "qwen3_5_moe_vision", "qwen3_5_moe"],
    image_token: 248_056,
    deepstack: &[],
};

/// Source: transformers `Qwen3VLVisionConfig`, which has no size of pictures.
const DEFAULTS: [(&str, usize); 9] = [
    ("hidden_size", 1152),
    ("intermediate_size", 4304),
    ("depth", 27),
    ("num_heads", 16),
    ("patch_size", 16),
    ("spatial_merge_size", 2),
    ("temporal_patch_size", 2),
    ("out_hidden_size", 3584),
    ("num_position_embeddings", 2304),
];

/// The keys that other towers call otherwise.
const NAMES: &[(&str, &str)] = &[
    ("num_hidden_layers", "depth"),
    ("num_attention_heads", "num_heads"),
    ("num_channels", "in_channels"),
];

/// Most frames in a patch.
const MAX_FRAMES: usize = 16;
/// The norms of the tower have no setting for this.
const NORM_EPS: f64 = 1e-6;

const RULES: &[VisionRule] = &[
    rule(VisionSlot::AttnNorm, "visual.blocks.{i}.norm1.weight"),
    rule(VisionSlot::AttnNormBias, "visual.blocks.{i}.norm1.bias"),
    rule(VisionSlot::Qkv, "visual.blocks.{i}.attn.qkv.weight"),
    rule(VisionSlot::QkvBias, "visual.blocks.{i}.attn.qkv.bias"),
    rule(VisionSlot::O, "visual.blocks.{i}.attn.proj.weight"),
    rule(VisionSlot::OBias, "visual.blocks.{i}.attn.proj.bias"),
    rule(VisionSlot::FfnNorm, "visual.blocks.{i}.norm2.weight"),
    rule(VisionSlot::FfnNormBias, "visual.blocks.{i}.norm2.bias"),
    rule(VisionSlot::Up, "visual.blocks.{i}.mlp.linear_fc1.weight"),
    rule(VisionSlot::UpBias, "visual.blocks.{i}.mlp.linear_fc1.bias"),
    rule(VisionSlot::Down, "visual.blocks.{i}.mlp.linear_fc2.weight"),
    rule(VisionSlot::DownBias, "visual.blocks.{i}.mlp.linear_fc2.bias"),
    rule(VisionSlot::Patch, "visual.patch_embed.proj.weight"),
    rule(VisionSlot::PatchBias, "visual.patch_embed.proj.bias"),
    rule(VisionSlot::Positions, "visual.pos_embed.weight"),
    rule(VisionSlot::LastNorm, "visual.merger.norm.weight"),
    rule(VisionSlot::LastNormBias, "visual.merger.norm.bias"),
    rule(VisionSlot::ProjectorIn, "visual.merger.linear_fc1.weight"),
    rule(VisionSlot::ProjectorInBias, "visual.merger.linear_fc1.bias"),
    rule(VisionSlot::ProjectorOut, "visual.merger.linear_fc2.weight"),
    rule(VisionSlot::ProjectorOutBias, "visual.merger.linear_fc2.bias"),
    rule(VisionSlot::DeepstackNorm, "visual.deepstack_merger_list.{i}.norm.weight"),
    rule(VisionSlot::DeepstackNormBias, "visual.deepstack_merger_list.{i}.norm.bias"),
    rule(VisionSlot::DeepstackIn, "visual.deepstack_merger_list.{i}.linear_fc1.weight"),
    rule(VisionSlot::DeepstackInBias, "visual.deepstack_merger_list.{i}.linear_fc1.bias"),
    rule(VisionSlot::DeepstackOut, "visual.deepstack_merger_list.{i}.linear_fc2.weight"),
    rule(VisionSlot::DeepstackOutBias, "visual.deepstack_merger_list.{i}.linear_fc2.bias"),
];

/// Qwen3-VL, dense and with experts.
pub(crate) fn qwen3_vl(source: &VisionSource<'_>) -> Result<VisionSpec> {
    read(source, &QWEN3_VL)
}

/// Qwen3.5 and the models that are stored as its classes, dense and with experts.
pub(crate) fn qwen3_5(source: &VisionSource<'_>) -> Result<VisionSpec> {
    read(source, &QWEN3_5)
}

fn read(source: &VisionSource<'_>, class: &Class) -> Result<VisionSpec> {
    source.check_kind(class.kinds)?;
    check_sections(source)?;
    let c = source.with_defaults(&DEFAULTS).renamed(NAMES);
    let sizes = TowerSizes::read(&c, "gelu_pytorch_tanh")?;
    sizes.check_axial(&c)?;
    let hidden_size = c.bounded("out_hidden_size", MAX_WIDTH)?;
    if hidden_size != source.decoder.hidden_size {
        let hint = "; the hidden_size of text_config is";
        return Err(c.unsupported("out_hidden_size", &hidden_size.into(), hint));
    }
    let side = c.bounded("spatial_merge_size", MAX_MERGED)?;
    let family = Family::Qwen2Vl;
    let pixels = source.most_pixels(family)? as usize;
    let norm = NormSpec { kind: NormKind::Layer { bias: true }, eps: NORM_EPS };
    Ok(VisionSpec {
        family,
        tokens: ImageTokens {
            placeholder: source.token_id(["image_token_id"], class.image_token)?,
            written: WrittenImage::Placeholder,
            grid: ImageGrid::Cells {
                cell: (sizes.patch * side) as u32,
                row_end: None,
                image_end: None,
            },
        },
        token_texts: None,
        both_ways: false,
        grid_positions: true,
        layers: sizes.layers,
        stored_layers: sizes.layers,
        width: sizes.width,
        patches: PatchSpec {
            size: sizes.patch,
            order: PatchOrder::Cells { frames: c.bounded("temporal_patch_size", MAX_FRAMES)? },
            limit: PatchLimit::PerImage(pixels / (sizes.patch * sizes.patch)),
            bias: true,
            positions: PatchPositions::TableAndRope {
                side: table_side(&c)?,
                theta: axial_theta(&c)?,
            },
        },
        first_norm: None,
        layer: TowerLayerSpec {
            norm,
            heads: sizes.heads,
            head_dim: sizes.head_dim(),
            fused_qkv: true,
            attention_bias: true,
            inner: sizes.inner,
            act: sizes.act,
            gated: false,
            mlp_bias: true,
        },
        last_norm: Some(norm),
        merger: MergerSpec { side, kind: MergeKind::Join, norm: None },
        projector: ProjectorSpec {
            hidden_size,
            between: Some(Between { inner: sizes.width * side * side, act: Activation::Gelu }),
            bias: true,
        },
        deepstack: deepstack(source, &c, class, sizes.layers)?,
        rules: RULES,
    })
}

/// Checks that the decoder rotates by frame, row and column, with the frequencies of the three in turn, as its class does.
fn check_sections(source: &VisionSource<'_>) -> Result<()> {
    let Some(text) = source.config.section("text_config")? else { return Ok(()) };
    let rope = text.rope_parameters()?;
    let mut sections = source
        .decoder
        .attentions()
        .map(|attention| attention.rope.as_ref().and_then(|rope| rope.sections));
    if !sections.all(|sections| sections.is_some_and(|sections| sections.interleaved)) {
        let key =
            if rope.contains("mrope_section") { "mrope_interleaved" } else { "mrope_section" };
        let found = rope.raw(key).cloned().unwrap_or_default();
        let hint = "; images need mrope_section and a true mrope_interleaved";
        return Err(rope.unsupported(key, &found, hint));
    }
    Ok(())
}

/// Side of the square of learned positions.
fn table_side(c: &HfConfig) -> Result<usize> {
    let key = "num_position_embeddings";
    let count = c.bounded(key, MAX_WIDTH * MAX_WIDTH)?;
    let side = count.isqrt();
    match side * side == count {
        true => Ok(side),
        false => Err(c.unsupported(key, &count.into(), "; a square is")),
    }
}

/// The layers whose outputs are added to the decoder's hidden states.
fn deepstack(
    source: &VisionSource<'_>,
    c: &HfConfig,
    class: &Class,
    layers: usize,
) -> Result<Vec<usize>> {
    let key = "deepstack_visual_indexes";
    let (list, found) = match c.raw(key) {
        Some(found) => {
            (c.indices(key)?.into_iter().map(|layer| layer as usize).collect(), found.clone())
        }
        None => (class.deepstack.to_vec(), class.deepstack.into()),
    };
    let ascends = list.windows(2).all(|pair| pair[0] < pair[1]);
    let fits = list.iter().all(|layer| *layer < layers);
    match ascends && fits && list.len() <= source.decoder.layers.len() {
        true => Ok(list),
        false => {
            let hint = "; ascending numbers of layers, not more than the decoder has, are";
            Err(c.unsupported(key, &found, hint))
        }
    }
}
