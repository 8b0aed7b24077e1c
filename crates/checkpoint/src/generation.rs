//! Defaults for generation in a checkpoint: the tokens that end a text, and the sampling parameters.

use crate::{config::HfConfig, error::Result, files::CheckpointFiles};

/// `generation_config.json`, or what `config.json` says in its place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Ids that end a sequence; may be empty.
    pub eos_token_ids: Vec<u32>,
    /// The model's own values for requests that do not say.
    pub sampling: SamplingDefaults,
}

/// Sampling values of a checkpoint; `None` where it does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Divides the logits.
    pub temperature: Option<f64>,
    /// Keep the likeliest tokens of this much probability.
    pub top_p: Option<f64>,
    /// Keep so many of the likeliest tokens.
    pub top_k: Option<usize>,
    /// Keep tokens at least so likely, relative to the likeliest.
    pub min_p: Option<f64>,
    /// Divides the logits of tokens seen before.
    pub repetition_penalty: Option<f64>,
    /// Most new tokens.
    pub max_new_tokens: Option<usize>,
    /// Ids that the model must not sample: tokens that it reads and never writes.
    pub suppress_tokens: Vec<u32>,
}

impl GenerationConfig {
    /// Reads the files, where `configs` are `config.json` and the part of it that describes the text. Ends are those of all of
    /// them: fine-tuned models often name the end of a turn in one and that of a text in another.
    pub(crate) fn read(files: &CheckpointFiles, configs: &[&HfConfig]) -> Result<Self> {
        const ENDS: &str = "eos_token_id";
        let generation = files.json("generation_config.json")?;
        let mut found = Self::default();
        for config in generation.iter().chain(configs.iter().copied()) {
            found.add_ends(config.token_ids(ENDS)?);
        }
        let Some(g) = generation else {
            // GGUF files have it in the metadata.
            for config in configs.iter().take(1) {
                found.sampling.suppress_tokens = config.token_ids("suppress_tokens")?;
            }
            return Ok(found);
        };
        // transformers writes 0 for "off", and others -1.
        let count = |key: &str| match g.float_opt(key)? {
            Some(off) if off <= 0.0 => Ok(None),
            _ => g.count_opt(key),
        };
        found.sampling = SamplingDefaults {
            temperature: g.float_opt("temperature")?,
            top_p: g.float_opt("top_p")?,
            top_k: count("top_k")?,
            min_p: g.float_opt("min_p")?,
            repetition_penalty: g.float_opt("repetition_penalty")?,
            max_new_tokens: count("max_new_tokens")?,
            suppress_tokens: g.token_ids("suppress_tokens")?,
        };
        Ok(found)
    }

    /// Adds ends that are not there yet.
    pub(crate) fn add_ends(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            if !self.eos_token_ids.contains(&id) {
                self.eos_token_ids.push(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str, generation: Option<&'static str>) -> GenerationConfig {
        let files: Vec<(&'static str, &'static [u8])> =
            generation.map(|g| ("generation_config.json", g.as_bytes())).into_iter().collect();
        let files = CheckpointFiles::Embedded(Box::leak(files.into_boxed_slice()));
        let config = HfConfig::parse("config.json", config.as_bytes()).unwrap();
        GenerationConfig::read(&files, &[&config]).unwrap()
    }

    #[test]
    fn ends_are_those_of_all_files() {
        let config = r#"{"eos_token_id": 7}"#;
        assert_eq!(read(config, None).eos_token_ids, [7]);
        assert_eq!(read(config, Some("{}")).eos_token_ids, [7]);
        let both = read(config, Some(r#"{"eos_token_id": [128001, 128009]}"#));
        assert_eq!(both.eos_token_ids, [128001, 128009, 7]);
        assert_eq!(read(config, Some(r#"{"eos_token_id": -1}"#)).eos_token_ids, [7]);
        assert!(read("{}", None).eos_token_ids.is_empty());
    }

    #[test]
    fn sampling_values_are_read() {
        let g = read(
            "{}",
            Some(
                r#"{"temperature": 0.7, "top_p": 0.8, "top_k": 0.0, "max_new_tokens": -1, "do_sample": true, "suppress_tokens": [9, 8]}"#,
            ),
        );
        let expected = SamplingDefaults {
            temperature: Some(0.7),
            top_p: Some(0.8),
            suppress_tokens: vec![9, 8],
            ..Default::default()
        };
        assert_eq!(g.sampling, expected);
    }
}
