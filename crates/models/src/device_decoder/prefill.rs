//! The kernels for the attention of prompts on a device, in words for the log.

use candlepower_gpu::{AttentionSpec, PrefillChoice, PrefillKernel, PromptLayers, prefill_kernel};
use candlepower_kernels::KvCacheConfig;

use super::{DeviceDecoder, Workspace};
use crate::error::Result;

/// A line of the log on kernels of attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionLine {
    /// The line.
    pub text: String,
    /// Whether no layer has the kernel that was asked for, or the default one because of a fault.
    pub is_refused: bool,
}

impl DeviceDecoder {
    /// The kernel for the prompts of layers with a window and a kind of cache.
    pub(super) fn prefill_kernel(
        &self,
        spec: AttentionSpec,
        cache: &KvCacheConfig,
        kind: usize,
    ) -> Result<PrefillChoice> {
        let of_kind = |layer: usize| self.spec.kv_layer(layer).is_some_and(|kv| kv.kind == kind);
        let attentions = self.spec.layers.iter().enumerate().filter_map(|(layer, of)| {
            let attention = of.attention().filter(|_| of_kind(layer))?;
            (attention.window == spec.window).then_some(attention)
        });
        let has_softcap = attentions.clone().any(|attention| attention.softcap.is_some());
        // A plan with room for sinks has it for all layers of the model.
        let has_sinks = self.spec.attentions().any(|attention| attention.sinks);
        let layers = PromptLayers {
            spec,
            head_dim: cache.head_dim,
            has_latents: cache.latent.is_some(),
            has_softcap,
            has_sinks,
        };
        Ok(prefill_kernel(&self.device, &layers)?)
    }
}

impl Workspace {
    /// A line of the log on the kernels for prompts; `None` where the environment asks for none.
    #[must_use]
    pub fn describe_prefill(&self) -> Option<AttentionLine> {
        describe(&self.prefill)
    }
}

fn describe(choices: &[PrefillChoice]) -> Option<AttentionLine> {
    let hopper = choices.iter().filter(|choice| choice.kernel == PrefillKernel::Hopper).count();
    let mut obstacles: Vec<&str> = Vec::new();
    for obstacle in choices.iter().filter_map(|choice| choice.obstacle.as_deref()) {
        if !obstacles.contains(&obstacle) {
            obstacles.push(obstacle);
        }
    }
    let kernel = "FlashInfer's kernel for Hopper";
    let text = match (hopper, obstacles.is_empty()) {
        (0, true) => return None,
        (0, false) => format!("attention of prompts without {kernel}: {}", obstacles.join("; ")),
        (_, true) => format!("attention of long prompts by {kernel}"),
        (_, false) => format!(
            "attention of long prompts by {kernel} in some layers; for the others {}",
            obstacles.join("; ")
        ),
    };
    Some(AttentionLine { text, is_refused: hopper == 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(obstacle: &str) -> PrefillChoice {
        PrefillChoice { kernel: PrefillKernel::Fa2, obstacle: Some(obstacle.to_owned()) }
    }

    #[test]
    fn one_line_tells_what_prompts_take() {
        let hopper = PrefillChoice { kernel: PrefillKernel::Hopper, obstacle: None };
        let line = |choices: &[PrefillChoice]| describe(choices);
        assert_eq!(line(&[]), None);
        assert_eq!(line(&[PrefillChoice::default()]), None);
        let all = line(std::slice::from_ref(&hopper)).unwrap();
        assert_eq!(all.text, "attention of long prompts by FlashInfer's kernel for Hopper");
        assert!(!all.is_refused);
        let window = refused("it takes no sliding window");
        let some = line(&[window.clone(), hopper]).unwrap();
        assert!(some.text.ends_with("for the others it takes no sliding window"), "{}", some.text);
        assert!(!some.is_refused);
        let none = line(&[window.clone(), window, refused("it takes no FP8 cache")]).unwrap();
        assert_eq!(
            none.text,
            "attention of prompts without FlashInfer's kernel for Hopper: it takes no sliding window; it takes no FP8 cache"
        );
        assert!(none.is_refused);
    }
}
