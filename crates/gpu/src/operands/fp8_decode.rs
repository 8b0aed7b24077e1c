//! The choice between kernels for the attention of decodes over an FP8 cache.

use std::env;

use candle_core::{DType, Device};
use candlepower_kernels::{Error, KvCacheConfig, Result};

use super::AttentionSpec;

/// The environment variable that names the kernel: `own` or `flashinfer`.
const VARIABLE: &str = "CANDLEPOWER_FP8_DECODE";

/// Query heads of a KV head, at most: rows of a product.
const MAX_GROUP: usize = 16;

/// A kernel for the attention of decodes over an FP8 cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecodeKernelOfFp8 {
    /// FlashInfer's, which takes any heads.
    #[default]
    FlashInfer,
    /// `fp8_decode.cu`.
    Own,
}

/// The kernel for the decodes of some layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fp8DecodeChoice {
    /// The chosen kernel. It is FlashInfer's for caches that are not FP8.
    pub kernel: DecodeKernelOfFp8,
    /// Why it is not `fp8_decode.cu` in spite of an FP8 cache, unless the environment asks for FlashInfer's kernel.
    pub obstacle: Option<String>,
    /// Whether the obstacle is a fault that a trial has found.
    pub is_fault: bool,
}

impl DecodeKernelOfFp8 {
    /// The kernel that the environment variable `CANDLEPOWER_FP8_DECODE` asks for.
    ///
    /// # Errors
    /// The variable is neither `own` nor `flashinfer`.
    pub fn asked_for() -> Result<Self> {
        Self::parse(env::var(VARIABLE).ok().as_deref())
    }

    fn parse(text: Option<&str>) -> Result<Self> {
        match text {
            None | Some("" | "own") => Ok(Self::Own),
            Some("flashinfer") => Ok(Self::FlashInfer),
            Some(text) => {
                Err(Error::Metadata(format!("{VARIABLE}={text}: write own or flashinfer")))
            }
        }
    }
}

/// Chooses the kernel for the decodes of some layers on `device`. It is `fp8_decode.cu` for an FP8 cache, unless the environment
/// asks for another, if the layers allow it, and if it passes a trial. Each kind of heads is tried once in a process.
///
/// # Errors
/// The environment names no kernel.
pub fn fp8_decode_kernel(
    device: &Device,
    spec: &AttentionSpec,
    cache: &KvCacheConfig,
) -> Result<Fp8DecodeChoice> {
    let is_asked_for = DecodeKernelOfFp8::asked_for()? == DecodeKernelOfFp8::Own;
    if !is_asked_for || !device.is_cuda() || spec.cache_dtype != DType::F8E4M3 {
        return Ok(Fp8DecodeChoice::default());
    }
    let kernel = DecodeKernelOfFp8::FlashInfer;
    if let Some(obstacle) = fp8_decode_obstacle(spec, cache) {
        let obstacle = Some(obstacle.to_owned());
        return Ok(Fp8DecodeChoice { kernel, obstacle, is_fault: false });
    }
    #[cfg(feature = "cuda")]
    if let Some(fault) = crate::cuda::fp8_decode_fault(device, spec, cache) {
        return Ok(Fp8DecodeChoice { kernel, obstacle: Some(fault), is_fault: true });
    }
    Ok(Fp8DecodeChoice { kernel: DecodeKernelOfFp8::Own, ..Fp8DecodeChoice::default() })
}

/// Why `fp8_decode.cu` cannot compute decodes of these layers; `None` if it can.
pub(crate) fn fp8_decode_obstacle(
    spec: &AttentionSpec,
    cache: &KvCacheConfig,
) -> Option<&'static str> {
    let group = spec.heads / cache.num_kv_heads.max(1);
    let obstacles = [
        (spec.cache_dtype != DType::F8E4M3, "it takes an FP8 cache"),
        (!matches!(spec.dtype, DType::BF16 | DType::F16), "it takes bf16 and f16"),
        (cache.latent.is_some(), "it takes no latents"),
        (!matches!(cache.head_dim, 64 | 128 | 256), "it takes heads of 64, 128 and 256 elements"),
        (group > MAX_GROUP, "it takes up to 16 query heads for each KV head"),
    ];
    obstacles.into_iter().find_map(|(is_there, text)| is_there.then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: AttentionSpec = AttentionSpec {
        heads: 32,
        window: Some(100),
        dtype: DType::BF16,
        cache_dtype: DType::F8E4M3,
    };
    const CACHE: KvCacheConfig = KvCacheConfig {
        num_layers: 1,
        num_blocks: 8,
        block_size: 16,
        num_kv_heads: 8,
        head_dim: 128,
        latent: None,
    };

    #[test]
    fn the_environment_names_a_kernel() {
        use DecodeKernelOfFp8::{FlashInfer, Own};
        for (text, kernel) in
            [(None, Own), (Some(""), Own), (Some("own"), Own), (Some("flashinfer"), FlashInfer)]
        {
            assert_eq!(DecodeKernelOfFp8::parse(text).unwrap(), kernel, "{text:?}");
        }
        let error = DecodeKernelOfFp8::parse(Some("xqa")).unwrap_err().to_string();
        assert!(error.contains("CANDLEPOWER_FP8_DECODE=xqa: write own or flashinfer"), "{error}");
    }

    #[test]
    fn layers_that_the_kernel_lacks_are_named() {
        assert_eq!(fp8_decode_obstacle(&SPEC, &CACHE), None);
        let wide = AttentionSpec { heads: 16 * 8, dtype: DType::F16, ..SPEC };
        assert_eq!(fp8_decode_obstacle(&wide, &KvCacheConfig { head_dim: 64, ..CACHE }), None);
        for (spec, cache, word) in [
            (AttentionSpec { cache_dtype: DType::BF16, ..SPEC }, CACHE, "FP8"),
            (AttentionSpec { heads: 17 * 8, ..SPEC }, CACHE, "16 query heads"),
            (SPEC, KvCacheConfig { head_dim: 512, ..CACHE }, "256"),
            (SPEC, KvCacheConfig { latent: Some(512), head_dim: 576, ..CACHE }, "latents"),
        ] {
            let obstacle = fp8_decode_obstacle(&spec, &cache).unwrap_or_default();
            assert!(obstacle.contains(word), "`{obstacle}` without `{word}`");
        }
    }

    #[test]
    fn the_cpu_has_one_kernel() {
        let choice = fp8_decode_kernel(&Device::Cpu, &SPEC, &CACHE).unwrap();
        assert_eq!(choice, Fp8DecodeChoice::default());
    }
}
