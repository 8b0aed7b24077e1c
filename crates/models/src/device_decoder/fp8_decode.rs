//! The kernels for the attention of decodes over an FP8 cache, in words for the log.

use candlepower_gpu::{DecodeKernelOfFp8, Fp8DecodeChoice};

use super::{AttentionLine, Workspace};

impl Workspace {
    /// A line of the log on the kernels for decodes over an FP8 cache; `None` for other caches, and where the environment asks for
    /// FlashInfer's kernel.
    #[must_use]
    pub fn describe_fp8_decode(&self) -> Option<AttentionLine> {
        describe(&self.fp8_decodes)
    }
}

fn describe(choices: &[Fp8DecodeChoice]) -> Option<AttentionLine> {
    let own = choices.iter().filter(|choice| choice.kernel == DecodeKernelOfFp8::Own).count();
    let obstacle = choices.iter().find_map(|choice| choice.obstacle.as_deref());
    let text = match (own, obstacle) {
        (0, None) => return None,
        (0, Some(obstacle)) => {
            format!(
                "attention of decodes over the FP8 cache by FlashInfer's kernel: for the own one, {obstacle}"
            )
        }
        (_, None) => "attention of decodes over the FP8 cache by the own kernel".to_owned(),
        (_, Some(obstacle)) => format!(
            "attention of decodes over the FP8 cache by the own kernel in some layers; for the others, {obstacle}"
        ),
    };
    Some(AttentionLine { text, is_refused: choices.iter().any(|choice| choice.is_fault) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_tells_what_decodes_take() {
        let own = Fp8DecodeChoice { kernel: DecodeKernelOfFp8::Own, ..Fp8DecodeChoice::default() };
        let other = Fp8DecodeChoice {
            obstacle: Some("it takes no latents".to_owned()),
            ..Fp8DecodeChoice::default()
        };
        assert_eq!(describe(&[]), None);
        assert_eq!(describe(&[Fp8DecodeChoice::default()]), None);
        let all = describe(&[own.clone(), own.clone()]).unwrap();
        assert_eq!(all.text, "attention of decodes over the FP8 cache by the own kernel");
        let some = describe(&[own, other.clone()]).unwrap();
        assert!(some.text.ends_with("for the others, it takes no latents"), "{}", some.text);
        assert!(!all.is_refused && !some.is_refused);
        let none = describe(std::slice::from_ref(&other)).unwrap();
        assert!(none.text.ends_with("for the own one, it takes no latents") && !none.is_refused);
        assert!(describe(&[Fp8DecodeChoice { is_fault: true, ..other }]).unwrap().is_refused);
    }
}
