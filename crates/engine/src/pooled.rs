//! The models that make vectors or scores of texts: an encoder, or a decoder whose hidden states are pooled.

use candle_core::DType;
use candlepower_checkpoint::{Checkpoint, EncoderCheckpoint, Pooling};
use candlepower_models::{Decoder, Encoder, EncoderInput, LoadOptions, Pooler, load};
use rayon::{ThreadPool, prelude::*};

use crate::{
    Result,
    config::{EmbedderConfig, StartProgress},
};

/// The pooling of a decoder whose checkpoint and settings name none: the last token, which has seen all others, or the mean where
/// every token has.
fn default_pooling(checkpoint: &Checkpoint) -> Pooling {
    match checkpoint.spec().sees_both_ways() {
        true => Pooling::Mean,
        false => Pooling::Last,
    }
}

/// The model of an [`Embedder`](crate::Embedder).
#[derive(Clone, Copy, Debug)]
pub enum PoolingSource<'a> {
    /// An encoder, which is computed in f32.
    Encoder(&'a EncoderCheckpoint),
    /// A decoder, whose weights keep their dtype or get that of [`EmbedderConfig::dtype`].
    Decoder(&'a Checkpoint),
}

impl PoolingSource<'_> {
    /// Architecture name, as in `config.json`.
    pub(crate) fn architecture(&self) -> &'static str {
        match self {
            Self::Encoder(checkpoint) => checkpoint.architecture(),
            Self::Decoder(checkpoint) => checkpoint.architecture(),
        }
    }

    /// Size of the vocabulary; every token id is below it.
    pub(crate) fn vocab_size(&self) -> usize {
        match self {
            Self::Encoder(checkpoint) => checkpoint.spec().vocab_size,
            Self::Decoder(checkpoint) => checkpoint.spec().vocab_size,
        }
    }

    /// The longest input in tokens, where `asked` is the setting.
    pub(crate) fn max_model_len(&self, asked: Option<usize>) -> Result<usize> {
        Ok(match self {
            Self::Encoder(checkpoint) => checkpoint.max_model_len(asked)?,
            Self::Decoder(checkpoint) => checkpoint.max_input_len(asked)?,
        })
    }
}

/// A model that was loaded.
pub(crate) enum PoolingRunner {
    Encoder(Box<Encoder>),
    Decoder { model: Box<Decoder>, pooler: Pooler },
}

impl PoolingRunner {
    pub(crate) fn load(
        source: PoolingSource<'_>,
        config: &EmbedderConfig,
        pool: &ThreadPool,
        progress: &mut (dyn FnMut(StartProgress) + Send),
    ) -> Result<Self> {
        match source {
            PoolingSource::Encoder(checkpoint) => {
                let encoder =
                    Encoder::load(checkpoint, config.pooling, &mut |done| progress(done.into()))?;
                Ok(Self::Encoder(Box::new(encoder)))
            }
            PoolingSource::Decoder(checkpoint) => {
                let options = LoadOptions {
                    device: candle_core::Device::Cpu,
                    dtype: config.dtype,
                    load_format: config.load_format,
                    max_model_len: Some(source.max_model_len(config.max_model_len)?),
                };
                let model =
                    pool.install(|| load(checkpoint, &options, &mut |done| progress(done.into())))?;
                let sentence = checkpoint.sentence();
                let pooling = config.pooling.or(sentence.pooling);
                let pooling = pooling.unwrap_or_else(|| default_pooling(checkpoint));
                let width = model.spec().hidden_size;
                let pooler = Pooler::load(checkpoint.files(), sentence, pooling, width)?;
                Ok(Self::Decoder { model: Box::new(model), pooler })
            }
        }
    }

    /// Elements of a vector; `None` where the model gives scores.
    pub(crate) fn dimensions(&self) -> Option<usize> {
        match self {
            Self::Encoder(encoder) => encoder.dimensions(),
            Self::Decoder { pooler, .. } => Some(pooler.dimensions()),
        }
    }

    pub(crate) fn pooling(&self) -> Pooling {
        match self {
            Self::Encoder(encoder) => encoder.pooling(),
            Self::Decoder { pooler, .. } => pooler.pooling(),
        }
    }

    pub(crate) fn normalizes(&self) -> bool {
        match self {
            Self::Encoder(encoder) => encoder.normalizes(),
            Self::Decoder { pooler, .. } => pooler.normalizes(),
        }
    }

    pub(crate) fn weights_bytes(&self) -> u64 {
        match self {
            Self::Encoder(encoder) => encoder.weights_bytes(),
            Self::Decoder { model, .. } => model.weight_bytes() as u64,
        }
    }

    pub(crate) fn weights_dtype(&self) -> DType {
        match self {
            Self::Encoder(_) => DType::F32,
            Self::Decoder { model, .. } => model.weight_dtype(),
        }
    }

    /// Number of batches that are computed at the same time on `num_threads` threads: one a thread for an encoder, one on all threads
    /// for a decoder.
    pub(crate) fn batches_at_once(&self, num_threads: usize) -> usize {
        match self {
            Self::Encoder(_) => num_threads,
            Self::Decoder { .. } => 1,
        }
    }

    /// Computes some batches: for each input of a batch a vector, or a score alone.
    pub(crate) fn run(
        &self,
        batches: &[Vec<EncoderInput>],
        pool: &ThreadPool,
    ) -> Vec<Result<Vec<Vec<f32>>>> {
        pool.install(|| match self {
            Self::Encoder(encoder) => {
                let compute = |batch: &Vec<EncoderInput>| Ok(encoder.run(batch)?);
                batches.par_iter().with_max_len(1).map(compute).collect()
            }
            Self::Decoder { model, pooler } => {
                let compute = |batch: &Vec<EncoderInput>| {
                    let texts: Vec<&[u32]> =
                        batch.iter().map(|input| input.token_ids.as_slice()).collect();
                    let states = model.encode(&texts)?.flatten_all()?.to_vec1::<f32>()?;
                    pooled(&states, &texts, model.spec().hidden_size, pooler)
                };
                batches.iter().map(compute).collect()
            }
        })
    }
}

/// One vector for each text. The hidden states `[tokens, width]` of the texts lie one after the other.
fn pooled(
    mut states: &[f32],
    texts: &[&[u32]],
    width: usize,
    pooler: &Pooler,
) -> Result<Vec<Vec<f32>>> {
    let vector = |text: &&[u32]| {
        let (own, rest) = states.split_at(text.len() * width);
        states = rest;
        Ok(pooler.vector(own)?)
    };
    texts.iter().map(vector).collect()
}
