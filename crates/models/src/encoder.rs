//! An encoder: its checkpoint becomes vectors or scores of texts. It runs on the CPU, in f32.
//!
//! BERT and similar models run over our own kernels, ModernBERT and NomicBERT as candle-transformers has them. A text's result does not
//! depend on the other texts of its batch: with BERT not by a bit, otherwise up to the rounding of f32.

use candle_core::{Device, Tensor};
use candlepower_checkpoint::{EncoderCheckpoint, EncoderSpec, Pooling};

use crate::{
    LoadProgress,
    error::{Error, Result},
};

mod bert;
mod layers;
mod pooler;
mod pooling;
mod score;
mod weights;

use layers::Layers;
pub use pooler::Pooler;
use pooling::pool;
use score::Head;

/// The pooling of an encoder whose checkpoint names none, as in sentence-transformers.
const DEFAULT_POOLING: Pooling = Pooling::Mean;

/// A text, or a pair of texts, as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderInput {
    /// The tokens; never empty.
    pub token_ids: Vec<u32>,
    /// For each token its text of a pair, 0 or 1; empty where there is one text.
    pub type_ids: Vec<u32>,
}

/// An encoder that can be run. All of it is on the CPU, in f32.
pub struct Encoder {
    spec: EncoderSpec,
    layers: Layers,
    output: Output,
    weights_bytes: u64,
}

/// The result that is made of the last hidden states.
enum Output {
    /// A vector.
    Vector(Pooler),
    /// A score.
    Score(Head),
}

impl Encoder {
    /// Reads the weights. `pooling` overrides the checkpoint's.
    ///
    /// Every tensor that the architecture needs must be there in its shape, and every tensor that is there must be
    /// explained; both are checked before the first of the weights is read.
    ///
    /// # Errors
    /// Missing, unknown or misshapen tensors, damaged or missing files: each in one line that names it.
    pub fn load(
        checkpoint: &EncoderCheckpoint,
        pooling: Option<Pooling>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self> {
        let spec = checkpoint.spec().clone();
        // Files are checked before anything is computed, so a fault is reported at once.
        let mut tensors = weights::read(checkpoint, progress)?;
        let output = match spec.head {
            Some(head) => Output::Score(Head::new(&spec, head, &mut tensors)?),
            None => {
                let sentence = checkpoint.sentence();
                let pooling = pooling.or(sentence.pooling).unwrap_or(DEFAULT_POOLING);
                let files = checkpoint.files();
                Output::Vector(Pooler::load(files, sentence, pooling, spec.hidden_size)?)
            }
        };
        let layers = Layers::new(&spec, tensors)?;
        let dense_bytes = checkpoint.sentence().dense_bytes();
        let weights_bytes = checkpoint.num_parameters() * size_of::<f32>() as u64 + dense_bytes;
        Ok(Self { spec, layers, output, weights_bytes })
    }

    /// Elements of a vector; `None` where the model gives scores.
    pub fn dimensions(&self) -> Option<usize> {
        match &self.output {
            Output::Vector(pooler) => Some(pooler.dimensions()),
            Output::Score(_) => None,
        }
    }

    /// The pooling that makes one vector of hidden states.
    pub fn pooling(&self) -> Pooling {
        match &self.output {
            Output::Vector(pooler) => pooler.pooling(),
            Output::Score(head) => head.spec().pooling,
        }
    }

    /// Whether vectors have length one.
    pub fn normalizes(&self) -> bool {
        matches!(&self.output, Output::Vector(pooler) if pooler.normalizes())
    }

    /// Bytes of the weights in memory.
    pub fn weights_bytes(&self) -> u64 {
        self.weights_bytes
    }

    /// Computes one batch: for each input its vector, or its score alone.
    ///
    /// Inputs of about the same length are cheapest, because some layers pad the shorter ones.
    ///
    /// # Errors
    /// An input is empty, too long, or has a token that the model does not know; or a tensor operation failed.
    pub fn run(&self, inputs: &[EncoderInput]) -> Result<Vec<Vec<f32>>> {
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        let inputs = inputs.iter().map(|input| self.checked(input)).collect::<Result<Vec<_>>>()?;
        let width = self.spec.hidden_size;
        let states = self.layers.forward(&inputs)?;
        match &self.output {
            Output::Vector(pooler) => states.iter().map(|states| pooler.vector(states)).collect(),
            Output::Score(head) => {
                let pooling = head.spec().pooling;
                let pooled = states.iter().flat_map(|states| pool(states, width, pooling));
                let pooled: Vec<f32> = pooled.collect();
                let pooled = Tensor::from_vec(pooled, (inputs.len(), width), &Device::Cpu)?;
                Ok(head.forward(&pooled)?.into_iter().map(|score| vec![score]).collect())
            }
        }
    }

    /// The input for the layers, after checks.
    fn checked(&self, input: &EncoderInput) -> Result<EncoderInput> {
        let (len, limit) = (input.token_ids.len(), self.spec.max_positions);
        let vocab_size = self.spec.vocab_size;
        let problem = if len == 0 {
            "has no tokens".to_owned()
        } else if len > limit {
            format!("has {len} tokens; the model has {limit} positions")
        } else if let Some(id) = input.token_ids.iter().find(|id| **id as usize >= vocab_size) {
            format!("has the token {id}, which is outside the vocabulary of {vocab_size}")
        } else if !input.type_ids.is_empty() && input.type_ids.len() != len {
            format!("has {len} tokens and {} token types", input.type_ids.len())
        } else if self.spec.token_types < 2 {
            // Such a model does not tell the texts of a pair apart.
            return Ok(EncoderInput { token_ids: input.token_ids.clone(), type_ids: Vec::new() });
        } else if let Some(kind) =
            input.type_ids.iter().find(|kind| **kind as usize >= self.spec.token_types)
        {
            format!("has the token type {kind}; the model has {}", self.spec.token_types)
        } else {
            return Ok(input.clone());
        };
        Err(Error::Input(problem))
    }
}
