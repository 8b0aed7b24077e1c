//! The choice between FlashInfer's kernels for the attention of prompts.

use std::env;

use candle_core::{DType, Device};
use candlepower_kernels::{Error, Result};
#[cfg(any(feature = "cuda", test))]
use candlepower_layout::SCHEDULE_BYTES;

use super::AttentionSpec;

/// The environment variable that names the kernel: `fa2` or `hopper`.
const VARIABLE: &str = "CANDLEPOWER_PREFILL_ATTENTION";

/// A kernel for the attention of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillKernel {
    /// FlashInfer's kernel for all GPUs.
    #[default]
    Fa2,
    /// FlashInfer's kernel for Hopper, in steps where [`AttentionPlan`](crate::AttentionPlan) expects it to be faster.
    Hopper,
}

/// Layers of a model that one plan serves, as far as kernels for prompts differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptLayers {
    /// Heads, window and element types.
    pub spec: AttentionSpec,
    /// Elements of a head in the cache.
    pub head_dim: usize,
    /// Whether the cache has latents.
    pub has_latents: bool,
    /// Whether scores have a soft cap.
    pub has_softcap: bool,
    /// Whether there are attention sink logits.
    pub has_sinks: bool,
}

/// The kernel for the prompts of some layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefillChoice {
    /// The chosen kernel.
    pub kernel: PrefillKernel,
    /// Why it is not the kernel for Hopper, if that was asked for.
    pub obstacle: Option<String>,
}

impl PrefillKernel {
    /// The kernel that the environment variable `CANDLEPOWER_PREFILL_ATTENTION` asks for.
    ///
    /// # Errors
    /// The variable is neither `fa2` nor `hopper`.
    pub fn asked_for() -> Result<Self> {
        Self::parse(env::var(VARIABLE).ok().as_deref())
    }

    fn parse(text: Option<&str>) -> Result<Self> {
        match text {
            None | Some("" | "fa2") => Ok(Self::Fa2),
            Some("hopper") => Ok(Self::Hopper),
            Some(text) => Err(Error::Metadata(format!("{VARIABLE}={text}: write fa2 or hopper"))),
        }
    }
}

/// Chooses the kernel for the prompts of some layers on `device`: the one that the environment asks for, if the layers, the
/// GPU and the build allow it, and if it passes a trial. Each head width is tried once in a process.
///
/// # Errors
/// The environment names no kernel.
pub fn prefill_kernel(device: &Device, layers: &PromptLayers) -> Result<PrefillChoice> {
    if PrefillKernel::asked_for()? == PrefillKernel::Fa2 || !device.is_cuda() {
        return Ok(PrefillChoice::default());
    }
    #[cfg(feature = "cuda")]
    let obstacle = hopper_obstacle(crate::cuda::hopper_capability(), layers)
        .map(str::to_owned)
        .or_else(|| crate::cuda::hopper_fault(device, layers.head_dim));
    #[cfg(not(feature = "cuda"))]
    let obstacle = hopper_obstacle(None, layers).map(str::to_owned);
    let kernel = match obstacle {
        Some(_) => PrefillKernel::Fa2,
        None => PrefillKernel::Hopper,
    };
    Ok(PrefillChoice { kernel, obstacle })
}

/// Why the kernel for Hopper cannot compute the prompts of these layers; `None` if it can. `capability` is that of the GPUs
/// that the kernel was compiled for, if it was compiled at all.
pub(crate) fn hopper_obstacle(
    capability: Option<(u32, u32)>,
    layers: &PromptLayers,
) -> Option<&'static str> {
    let PromptLayers { spec, head_dim, has_latents, has_softcap, has_sinks } = *layers;
    let obstacles = [
        (capability.is_none(), "this build is without it"),
        (capability.is_some_and(|found| found != (9, 0)), "it needs a Hopper GPU"),
        (has_latents, "it takes no latents"),
        (spec.dtype != DType::BF16, "it takes bf16 alone"),
        (spec.cache_dtype != spec.dtype, "it takes no FP8 cache"),
        (!matches!(head_dim, 64 | 128 | 256), "it takes heads of 64, 128 and 256 elements"),
        (spec.window.is_some(), "it takes no sliding window"),
        (has_softcap, "it takes no soft cap"),
        (has_sinks, "it takes no attention sinks"),
    ];
    obstacles.into_iter().find_map(|(is_there, text)| is_there.then_some(text))
}

/// Number of queries in a tile of the kernel for Hopper. Source: FlashInfer, `PrefillSM90Plan`.
#[cfg(any(feature = "cuda", test))]
const fn tile_queries(head_dim: usize) -> usize {
    if head_dim == 64 { 192 } else { 128 }
}

/// Whether the kernel for Hopper takes a part of a step: `tokens` queries of `seqs` sequences and `heads` heads.
///
/// A tile has queries of one head and one sequence, and no context is split. So short prompts would waste most of their
/// tiles, and few tiles would leave multiprocessors idle. Both limits are estimates that no GPU has tested.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn hopper_takes(tokens: usize, seqs: usize, heads: usize, head_dim: usize) -> bool {
    /// Tiles of an average prompt: then two of three rows are used at least.
    const TILES_OF_A_PROMPT: usize = 2;
    /// Multiprocessors of an H100 or H200.
    const BLOCKS: usize = 132;
    let tile = tile_queries(head_dim);
    tokens >= TILES_OF_A_PROMPT * tile * seqs
        && tokens / tile * heads >= BLOCKS
        && hopper_fits(tokens, seqs, heads, head_dim)
}

/// Whether the schedule of the kernel for Hopper fits for a part of a step. Source: FlashInfer, `PrefillSM90Plan`.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn hopper_fits(tokens: usize, seqs: usize, heads: usize, head_dim: usize) -> bool {
    /// Tiles of one head with which FlashInfer would want another form of the kernel.
    const MOST_TILES: usize = 4096;
    /// Tables of a schedule that have a word for each tile.
    const TABLES: usize = 7;
    /// Words that are enough for the table of multiprocessors, and for the alignment of all tables.
    const OTHER_WORDS: usize = 1024;
    let tiles = tokens.div_ceil(tile_queries(head_dim)) + seqs;
    let words = tiles.saturating_mul(heads).saturating_mul(TABLES).saturating_add(OTHER_WORDS);
    tiles <= MOST_TILES && words <= SCHEDULE_BYTES / size_of::<u32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: PromptLayers = PromptLayers {
        spec: AttentionSpec {
            heads: 32,
            window: None,
            dtype: DType::BF16,
            cache_dtype: DType::BF16,
        },
        head_dim: 128,
        has_latents: false,
        has_softcap: false,
        has_sinks: false,
    };

    #[test]
    fn the_environment_names_a_kernel() {
        for (text, kernel) in [
            (None, PrefillKernel::Fa2),
            (Some(""), PrefillKernel::Fa2),
            (Some("fa2"), PrefillKernel::Fa2),
            (Some("hopper"), PrefillKernel::Hopper),
        ] {
            assert_eq!(PrefillKernel::parse(text).unwrap(), kernel, "{text:?}");
        }
        let error = PrefillKernel::parse(Some("fa3")).unwrap_err().to_string();
        assert!(
            error.contains("CANDLEPOWER_PREFILL_ATTENTION=fa3: write fa2 or hopper"),
            "{error}"
        );
    }

    #[test]
    fn each_kind_of_layer_that_hopper_lacks_is_an_obstacle() {
        let hopper = Some((9, 0));
        for head_dim in [64, 128, 256] {
            assert_eq!(hopper_obstacle(hopper, &PromptLayers { head_dim, ..LLAMA }), None);
        }
        let with = |spec: AttentionSpec| PromptLayers { spec, ..LLAMA };
        let spec = LLAMA.spec;
        for (capability, layers, word) in [
            (None, LLAMA, "build"),
            (Some((8, 9)), LLAMA, "Hopper"),
            (Some((10, 0)), LLAMA, "Hopper"),
            (hopper, PromptLayers { has_latents: true, head_dim: 576, ..LLAMA }, "latents"),
            (
                hopper,
                with(AttentionSpec { dtype: DType::F16, cache_dtype: DType::F16, ..spec }),
                "bf16",
            ),
            (hopper, with(AttentionSpec { cache_dtype: DType::F8E4M3, ..spec }), "FP8"),
            (hopper, PromptLayers { head_dim: 512, ..LLAMA }, "256"),
            (hopper, with(AttentionSpec { window: Some(4096), ..spec }), "window"),
            (hopper, PromptLayers { has_softcap: true, ..LLAMA }, "soft cap"),
            (hopper, PromptLayers { has_sinks: true, ..LLAMA }, "sinks"),
        ] {
            let obstacle = hopper_obstacle(capability, &layers).unwrap_or_default();
            assert!(obstacle.contains(word), "{layers:?}: `{obstacle}` without `{word}`");
        }
    }

    #[test]
    fn the_cpu_has_one_kernel() {
        let choice = prefill_kernel(&Device::Cpu, &LLAMA).unwrap();
        assert_eq!(choice, PrefillChoice::default());
    }

    #[test]
    fn long_prompts_take_the_kernel_for_hopper() {
        // The parts of steps: tokens, sequences, heads and their width.
        for (tokens, seqs, heads, head_dim, taken) in [
            (8192, 1, 32, 128, true),
            (8000, 8, 32, 128, true),
            (2048, 1, 32, 128, true),
            // A multiprocessor in two has work.
            (256, 1, 32, 128, false),
            (1024, 1, 8, 128, false),
            // Prompts of 200 tokens fill three of four tiles or fewer.
            (8000, 40, 32, 128, false),
            (10240, 40, 32, 128, true),
            // Wider tiles.
            (10240, 40, 32, 64, false),
            (768, 2, 128, 64, true),
            // Queries of many decodes.
            (256, 256, 32, 128, false),
            (0, 1, 32, 128, false),
        ] {
            assert_eq!(
                hopper_takes(tokens, seqs, heads, head_dim),
                taken,
                "{tokens} tokens of {seqs} sequences, {heads} heads of {head_dim}"
            );
        }
    }

    #[test]
    fn schedules_that_do_not_fit_are_left_to_the_other_kernel() {
        // 2,340 tiles of 128 heads have 8.4 MB of tables.
        assert!(hopper_fits(128 * 2300, 1, 128, 128));
        assert!(!hopper_fits(128 * 2340, 1, 128, 128));
        // FlashInfer's other form begins at 4,096 tiles of a head.
        assert!(hopper_fits(128 * 4095, 1, 8, 128));
        assert!(!hopper_fits(128 * 4096, 1, 8, 128));
        assert!(!hopper_fits(usize::MAX, 1, usize::MAX, 128));
    }
}
